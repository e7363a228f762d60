"""What runs during the cluster's half, all in one temporary directory of which nothing is left afterwards.

In: nothing. Out: an API server, the real `vcuda scheduler` with the shipped webhook configuration, a stand-in
kube-scheduler, and two nodes with real agents that are the play's to start. Further nodes can join as objects only.
"""

import base64
import json
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from deviceplugin.model.inventory_annotation import format_inventory
from sandbox.admission import install_webhook
from sandbox.apiserver import ApiError, ApiServer, JsonObject
from sandbox.emulated_gpus import BLOCK_MIB, INTERPOSERS
from sandbox.gpunode import EIGHT_GPUS, TOKEN, GpuNode, gpu_node
from sandbox.inventories import made_up_inventory
from sandbox.kubescheduler import KubeScheduler
from sandbox.scheduler import NAMESPACE, SECRET, SchedulerProcess, scheduler_command
from scripts.demonstration.cluster.cast import CORE, MEMORY, POOL, RACK_POOL, RACKS
from scripts.demonstration.home import temporary_home

NODES = ("node-a", "node-b")
GPUS = 2
KUBELET_SPEED = 20.0
RETRY_MAX_S = 40.0
RACK_MIB = 81920


@dataclass(frozen=True, slots=True)
class Stage:
    """`authority` is a file with what the scheduler's certificate is signed by, for `vcuda explain`."""

    server: ApiServer
    scheduler: SchedulerProcess
    kube_scheduler: KubeScheduler
    nodes: dict[str, GpuNode]
    home: Path

    @property
    def authority(self) -> Path:
        path = self.home / "authority.crt"
        path.write_text(authority_in_secret(self.server))
        return path


@asynccontextmanager
async def set_up(*, keep: bool) -> AsyncIterator[Stage]:
    """Everything but scheduler and agents is running."""
    with temporary_home(keep=keep) as home:
        async with AsyncExitStack() as stack:
            server = await stack.enter_async_context(ApiServer(token=TOKEN))
            install_webhook(server)
            command = scheduler_command(home, server.kubeconfig(home / "kubeconfig"))
            scheduler = SchedulerProcess(command, lambda: authority_in_secret(server))
            stack.push_async_callback(scheduler.destroy)
            nodes = {name: await stack.enter_async_context(_node(home / name, name, server)) for name in NODES}
            yield Stage(server, scheduler, KubeScheduler(server, scheduler), nodes, home)


def authority_in_secret(server: ApiServer) -> str:
    """Where kube-scheduler finds it; empty until `vcuda scheduler` has made it."""
    try:
        data: dict[str, str] = server.store.get("secrets", SECRET, namespace=NAMESPACE).get("data") or {}
    except ApiError:
        return ""
    return base64.b64decode(data.get("ca.crt", "")).decode()


@contextmanager
def racks(server: ApiServer) -> Iterator[None]:
    """Nodes without a machine: what an agent would have reported, and nobody there who starts anything."""
    for name, gpus in RACKS.items():
        server.store.create("nodes", _rack(name, gpus))
    try:
        yield
    finally:
        for name in RACKS:
            server.store.delete("nodes", name)


@asynccontextmanager
async def _node(home: Path, name: str, server: ApiServer) -> AsyncIterator[GpuNode]:
    node = gpu_node(
        home,
        profile=_profile(home, name),
        library=INTERPOSERS,
        cluster=server,
        node_name=name,
        speed=KUBELET_SPEED,
        retry_max_s=RETRY_MAX_S,
    )
    async with node as made:
        yield made


def _profile(home: Path, name: str) -> Path:
    """The first two A100s of the large machine, linked to each other, with UUIDs of their own."""
    home.mkdir()
    document = json.loads(EIGHT_GPUS.read_text())
    document["gpus"] = [
        {**gpu, "uuid": f"GPU-{uuid.uuid5(uuid.NAMESPACE_DNS, f'{minor}.{name}')}"}
        for minor, gpu in enumerate(document["gpus"][:GPUS])
    ]
    document["topology"] = {"default": "multiple"}
    for link in document["nvlink"]:
        link["gpus"] = list(range(GPUS))
    path = home / "profile.json"
    path.write_text(json.dumps(document))
    return path


def _rack(name: str, gpus: int) -> JsonObject:
    inventory = format_inventory(made_up_inventory(name, gpus=gpus, memory_mib=RACK_MIB), share_mode=True)
    metadata = {
        "name": name,
        "labels": {POOL: RACK_POOL},
        "annotations": {"tencent.com/vcuda-inventory": inventory},
    }
    allocatable = {CORE: str(100 * gpus), MEMORY: str(gpus * RACK_MIB // BLOCK_MIB)}
    status = {"allocatable": allocatable, "conditions": [{"type": "Ready", "status": "True"}]}
    return {"metadata": metadata, "status": status}
