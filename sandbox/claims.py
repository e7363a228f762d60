"""Kubelet's side of ResourceClaims over a driver's real sockets, and claims as kube-scheduler leaves them.

In: kubelet, a driver's name, references to claims. Out: the driver's answers; objects for an API server; kubelet's
record of claims. The caller decides when kubelet calls. Facts kept: kubelet's plugin watcher has taken the driver that
is called, its connection stays open, and the record is written before the call.
"""

import json
import uuid
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from deviceplugin.model.claims import ClaimRef, ClaimUid
from deviceplugin.wire import dra_pb2 as pb
from deviceplugin.wire import dra_pb2_grpc as rpc
from sandbox.kubelet import Kubelet
from sandbox.kubelet.calls import go_text
from sandbox.kubelet.checkpoint import replace_file

DRIVER = "gpu.vcuda.tencent.com"
REQUEST = "gpu"
CALL_S = 45.0
"""Kubelet's limit for a call: `defaultClientCallTimeout` of cm/dra/plugin/dra_plugin.go."""
_RECORD = {"kind": "DRACheckpoint", "apiVersion": "checkpoint.dra.kubelet.k8s.io/v1"}
Json = dict[str, Any]


class ClaimCallError(Exception):
    """What kubelet says about a call that did not do what was asked; it stands on the pod."""


@dataclass(frozen=True, slots=True)
class DriverConnection:
    """An open connection to a driver. All claims of a pod go in one call; ClaimCallError if one of them fails."""

    stub: rpc.DRAPluginStub

    async def prepare(self, *refs: ClaimRef) -> dict[str, pb.NodePrepareResourceResponse]:
        """Answers by the claim's UID."""
        request = pb.NodePrepareResourcesRequest(claims=map(_claim, refs))
        return await _asked("NodePrepareResources", self.stub.NodePrepareResources, request, refs)

    async def unprepare(self, *refs: ClaimRef) -> None:
        request = pb.NodeUnprepareResourcesRequest(claims=map(_claim, refs))
        await _asked("NodeUnprepareResources", self.stub.NodeUnprepareResources, request, refs)


@dataclass(frozen=True, slots=True)
class ClaimKubelet:
    """What kubelet does with the claims of one driver."""

    kubelet: Kubelet
    driver: str = DRIVER

    @property
    def root(self) -> Path:
        return self.kubelet.options.root

    @property
    def connection(self) -> DriverConnection:
        """To the plugin that kubelet calls now; PluginError if none is registered."""
        return DriverConnection(self.kubelet.drivers.get(self.driver).stub)

    def record(
        self,
        claims: Iterable[ClaimRef],
        answers: Mapping[str, Json] | None = None,
        *,
        pods: Mapping[str, Iterable[str]] | None = None,
    ) -> None:
        write_record(self.root, self.driver, claims, answers, pods=pods)


def write_record(
    root: Path,
    driver: str,
    claims: Iterable[ClaimRef],
    answers: Mapping[str, Json] | None = None,
    *,
    pods: Mapping[str, Iterable[str]] | None = None,
) -> None:
    """Kubelet's dra_manager_state, these claims and no others (pkg/kubelet/cm/dra/state/checkpoint.go).

    `answers`: devices by the claim's UID; none before the driver has answered. `pods`: UIDs by the claim's UID; kubelet
    adds a pod before it calls the driver, so a claim that is not named here has one all the same.
    """
    entries = [
        {
            "ClaimUID": ref.uid,
            "ClaimName": ref.name,
            "Namespace": ref.namespace,
            "PodUIDs": {pod: {} for pod in (pods or {}).get(ref.uid, (f"pod-of-{ref.uid}",))},
            "DriverState": {driver: {"Devices": [answers[ref.uid]] if answers and ref.uid in answers else None}},
        }
        for ref in claims
    ]
    text = json.dumps({**_RECORD, "ClaimInfoStateList": entries}, separators=(",", ":"))
    replace_file(root / "dra_manager_state", json.dumps({"Data": text, "Checksum": zlib.crc32(text.encode())}))


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


async def _asked(method: str, call: Callable[..., Any], request: Any, refs: Sequence[ClaimRef]) -> dict[str, Any]:
    """As cm/dra/manager.go reads an answer, but for Go's random order: the claim that it does not know comes first."""
    try:
        answers = dict((await call(request, timeout=CALL_S)).claims)
    except grpc.aio.AioRpcError as error:
        raise ClaimCallError(f"{method}: {go_text(error)}") from error
    names = {ref.uid: ref.name for ref in refs}
    for uid in answers:
        if uid not in names:
            raise ClaimCallError(f"{method} returned result for unknown claim UID {uid}")
    for uid, answer in answers.items():
        if answer.error:
            raise ClaimCallError(f"{method} failed for ResourceClaim {names[ClaimUid(uid)]}: {answer.error}")
    if skipped := len(names) - len(answers):
        raise ClaimCallError(f"{method} skipped {skipped} ResourceClaims")
    return answers


def _claim(ref: ClaimRef) -> pb.Claim:
    return pb.Claim(namespace=ref.namespace, name=ref.name, uid=ref.uid)
