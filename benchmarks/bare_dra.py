"""The DRA driver to which the agent is compared: what every driver must do, and nothing else.

In: its name, kubelet's directory, the directory for CDI files, a kubeconfig. Out: one process that registers, reads
each claim from the API server, writes one synced CDI file with edits of the agent's size, and answers, until it is
ended. It has no ledger, no limits, no shared state, and does not look at pods.
"""

import asyncio
import json
import os
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import grpc

from deviceplugin.kubelet.grpc_endpoint import Endpoint, RegistryService
from deviceplugin.wire import dra_pb2 as pb
from deviceplugin.wire import dra_pb2_grpc as rpc
from sandbox.kubelet.apisource import ApiClient, from_kubeconfig

REGISTERED = "registered"
"""A file beside the socket: kubelet has taken the driver."""
KIND = "bare.example.org/share"
Json = dict[str, Any]
Context = grpc.aio.ServicerContext[Any, Any]


@dataclass(frozen=True, slots=True)
class BareDriver(rpc.DRAPluginServicer):
    """One for the node; `empty` is a directory to mount."""

    name: str
    api: ApiClient
    cdi: Path
    empty: Path

    async def NodePrepareResources(
        self, request: pb.NodePrepareResourcesRequest, _context: Context
    ) -> pb.NodePrepareResourcesResponse:
        answers = await asyncio.gather(*map(self._prepare, request.claims))
        return pb.NodePrepareResourcesResponse(claims=_by_uid(request.claims, answers))

    async def NodeUnprepareResources(
        self, request: pb.NodeUnprepareResourcesRequest, _context: Context
    ) -> pb.NodeUnprepareResourcesResponse:
        for each in request.claims:
            self._file(each).unlink(missing_ok=True)
        answers = [pb.NodeUnprepareResourceResponse() for _ in request.claims]
        return pb.NodeUnprepareResourcesResponse(claims=_by_uid(request.claims, answers))

    async def _prepare(self, claim: pb.Claim) -> pb.NodePrepareResourceResponse:
        path = f"/apis/resource.k8s.io/v1/namespaces/{claim.namespace}/resourceclaims/{claim.name}"
        found = await self.api.call("GET", path)
        results = found["status"]["allocation"]["devices"]["results"]
        _put(self._file(claim), json.dumps(_spec(claim.uid, self.empty)))
        devices = [_device(each, claim.uid) for each in results if each["driver"] == self.name]
        return pb.NodePrepareResourceResponse(devices=devices)

    def _file(self, claim: pb.Claim) -> Path:
        return self.cdi / f"bare-{claim.uid}.json"


def _by_uid(claims: Iterable[pb.Claim], answers: Iterable[Any]) -> dict[str, Any]:
    return dict(zip((each.uid for each in claims), answers, strict=True))


def _device(result: Json, uid: str) -> pb.Device:
    return pb.Device(
        request_names=[result["request"]],
        pool_name=result["pool"],
        device_name=result["device"],
        cdi_device_ids=[f"{KIND}={uid}"],
        share_id=result.get("shareID"),
    )


def _spec(uid: str, empty: Path) -> Json:
    """As many edits as a share of the agent has."""
    options = ["ro", "nosuid", "nodev", "bind"]
    mounted = ("/etc/vcuda", "/usr/local/nvidia", "/etc/vcuda-state", "/etc/vcuda-gpus")
    edits = {
        "env": ["LD_LIBRARY_PATH=/usr/local/nvidia/lib64", f"NVIDIA_VISIBLE_DEVICES={uid}"],
        "deviceNodes": [{"hostPath": "/dev/null", "path": f"/dev/x{at}", "permissions": "rw"} for at in range(3)],
        "mounts": [{"hostPath": str(empty), "containerPath": path, "options": options} for path in mounted],
    }
    return {"cdiVersion": "0.6.0", "kind": KIND, "devices": [{"name": uid, "containerEdits": edits}]}


def _put(path: Path, text: str) -> None:
    """On the disk when this returns; the name too, because the runtime looks for it after a crash of the node."""
    fresh = path.with_suffix(".new")
    with fresh.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


async def serve(name: str, root: Path, cdi: Path, kubeconfig: Path) -> None:
    empty = root / "plugins" / name / "empty"
    for each in (empty, root / "plugins_registry", cdi):
        each.mkdir(parents=True, exist_ok=True)
    async with ApiClient(from_kubeconfig(kubeconfig)) as api:
        driver = BareDriver(name, api, cdi, empty)
        own = Endpoint(empty.parent / "dra.sock", partial(rpc.add_DRAPluginServicer_to_server, driver))
        registry = RegistryService(
            name,
            kind="DRAPlugin",
            versions=("v1.DRAPlugin",),
            endpoint=str(own.path),
            on_registered=(empty.parent / REGISTERED).touch,
        )
        found = Endpoint(root / "plugins_registry" / f"{name}-bare-reg.sock", registry=registry)
        await own.start()
        await found.start()
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1], *map(Path, sys.argv[2:5])))
