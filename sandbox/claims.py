"""Kubelet's side of ResourceClaims over a driver's real sockets, and claims as kube-scheduler leaves them.

In: kubelet's directory, a driver's name, references to claims. Out: the driver's answers; objects for an API server;
kubelet's record of claims. The caller decides when kubelet calls. Facts kept: kubelet calls the driver that registered
last, over a connection that stays open, and writes its record before it calls.
"""

import json
import uuid
import zlib
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from deviceplugin.model.claims import ClaimRef
from deviceplugin.wire import dra_pb2 as pb
from deviceplugin.wire import dra_pb2_grpc as rpc
from deviceplugin.wire import pluginregistration_pb2 as registry
from deviceplugin.wire import pluginregistration_pb2_grpc as registry_rpc
from sandbox.kubelet.checkpoint import replace_file

DRIVER = "gpu.vcuda.tencent.com"
REQUEST = "gpu"
_CALL_S = 60.0
_RECORD = {"kind": "DRACheckpoint", "apiVersion": "checkpoint.dra.kubelet.k8s.io/v1"}
Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class DriverConnection:
    """An open connection to a driver."""

    stub: rpc.DRAPluginStub

    async def prepare(self, ref: ClaimRef) -> pb.NodePrepareResourceResponse:
        request = pb.NodePrepareResourcesRequest(claims=[_claim(ref)])
        answer = await self.stub.NodePrepareResources(request, timeout=_CALL_S)
        found: pb.NodePrepareResourceResponse = answer.claims[ref.uid]
        return found

    async def unprepare(self, ref: ClaimRef) -> str:
        """Answers the error, empty for none."""
        request = pb.NodeUnprepareResourcesRequest(claims=[_claim(ref)])
        answer = await self.stub.NodeUnprepareResources(request, timeout=_CALL_S)
        return str(answer.claims[ref.uid].error)


@dataclass(frozen=True, slots=True)
class ClaimKubelet:
    """What kubelet does with the claims of one driver; `root` is its directory."""

    root: Path
    driver: str = DRIVER

    def registry_sockets(self) -> list[Path]:
        """Kubelet calls the driver that came last."""
        found = (self.root / "plugins_registry").glob(f"{self.driver}-*-reg.sock")
        return sorted(found, key=lambda path: path.stat().st_mtime_ns)

    async def register(self) -> str:
        """Answers the socket that the driver serves."""
        async with grpc.aio.insecure_channel(f"unix:{self.registry_sockets()[-1]}") as channel:
            stub = registry_rpc.RegistrationStub(channel)
            info = await stub.GetInfo(registry.InfoRequest(), timeout=_CALL_S, wait_for_ready=True)
            await stub.NotifyRegistrationStatus(registry.RegistrationStatus(plugin_registered=True), timeout=_CALL_S)
            return str(info.endpoint)

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[DriverConnection]:
        """To the driver that came last, registered again."""
        async with grpc.aio.insecure_channel(f"unix:{await self.register()}") as channel:
            yield DriverConnection(rpc.DRAPluginStub(channel))

    def record(
        self,
        claims: Iterable[ClaimRef],
        answers: Mapping[str, Json] | None = None,
        *,
        pods: Mapping[str, Iterable[str]] | None = None,
    ) -> None:
        """Kubelet's dra_manager_state, these claims and no others (pkg/kubelet/cm/dra/state/checkpoint.go).

        `answers`: devices by the claim's UID; none before the driver has answered. `pods`: UIDs by the claim's UID;
        kubelet adds a pod before it calls the driver, so a claim that is not named here has one all the same.
        """
        entries = [
            {
                "ClaimUID": ref.uid,
                "ClaimName": ref.name,
                "Namespace": ref.namespace,
                "PodUIDs": {pod: {} for pod in (pods or {}).get(ref.uid, (f"pod-of-{ref.uid}",))},
                "DriverState": {
                    self.driver: {"Devices": [answers[ref.uid]] if answers and ref.uid in answers else None}
                },
            }
            for ref in claims
        ]
        text = json.dumps({**_RECORD, "ClaimInfoStateList": entries}, separators=(",", ":"))
        file = {"Data": text, "Checksum": zlib.crc32(text.encode())}
        replace_file(self.root / "dra_manager_state", json.dumps(file))


def recorded_device(pool: str, device: str, cdi: str, *, share_id: str) -> Json:
    """For `record`: as kubelet writes down a driver's answer."""
    names = {"PoolName": pool, "DeviceName": device, "ShareID": share_id}
    return {**names, "RequestNames": [REQUEST], "CDIDeviceIDs": [cdi]}


def allocated_claim(
    name: str,
    users: Mapping[str, str],
    *,
    pool: str,
    device: str = "gpu-0",
    cores: int = 20,
    memory: str = "2Gi",
    driver: str = DRIVER,
) -> Json:
    """As kube-scheduler leaves it: one share, reserved for the pods of `users`, their UIDs by name.

    What consumes capacity has a share ID (structured/internal of k8s.io/dynamic-resource-allocation).
    """
    consumed = {"cores": str(cores), "memory": memory}
    result = {"request": REQUEST, "driver": driver, "pool": pool, "device": device, "consumedCapacity": consumed}
    result["shareID"] = str(uuid.uuid4())
    reserved = [{"resource": "pods", "name": pod, "uid": uid} for pod, uid in users.items()]
    status = {"allocation": {"devices": {"results": [result]}}, "reservedFor": reserved}
    return {"metadata": {"name": name}, "spec": {}, "status": status}


def pod_using(claim: str, name: str, *, node: str) -> Json:
    """Bound to the node; its container `main` has the claim."""
    container = {"name": "main", "image": "i", "resources": {"claims": [{"name": "gpu"}]}}
    claims = [{"name": "gpu", "resourceClaimName": claim}]
    spec = {"nodeName": node, "containers": [container], "resourceClaims": claims}
    return {"metadata": {"name": name}, "spec": spec}


def _claim(ref: ClaimRef) -> pb.Claim:
    return pb.Claim(namespace=ref.namespace, name=ref.name, uid=ref.uid)
