"""What runs in each show of the demo, in one temporary directory.

Out: for the node's show a GPU node with the emulated driver, a stand-in kubelet and API server, and the real agent; for
the cluster's show an API server, the real `vcuda scheduler` with the shipped webhook configuration, a stand-in
kube-scheduler and two such nodes. The steps start agents and scheduler. Invariant: afterwards nothing runs, and without
`keep` the directory is gone.
"""

import base64
import json
import shutil
import tempfile
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from deviceplugin.model.node import format_inventory
from sandbox import emulated_gpus
from sandbox.admission import install_webhook
from sandbox.apiserver import ApiError, ApiServer, JsonObject
from sandbox.emulator_profile import write_profile
from sandbox.gpunode import EIGHT_GPUS, TOKEN, GpuNode, gpu_node
from sandbox.inventories import made_up_inventory
from sandbox.kubescheduler import KubeScheduler
from sandbox.program import ProgramFailureError
from sandbox.scheduler import NAMESPACE, SECRET, NoAnswerError, SchedulerProcess, scheduler_command
from scripts.demonstration.pods import CORE, MEMORY, POOL, RACK_POOL, RACKS

NODE = "gpu-node"
GPUS = 8
CLUSTER_NODES = ("node-a", "node-b")
CLUSTER_GPUS = 2
RACK_MIB = 81920
LONGEST_BASE = 40  # the path of a unix socket has 107 bytes at most


class DemoError(Exception):
    """The demo cannot go on; the message is one sentence for the user."""


TROUBLE = (DemoError, ProgramFailureError, NoAnswerError)


@contextmanager
def temporary_home(*, keep: bool) -> Iterator[Path]:
    _check_built()
    base = tempfile.gettempdir()
    home = Path(tempfile.mkdtemp(prefix="vcuda-demo-", dir=base if len(base) < LONGEST_BASE else "/tmp"))
    try:
        yield home
    finally:
        if not keep:
            shutil.rmtree(home, ignore_errors=True)


def _check_built() -> None:
    needed = {
        "the emulated driver": emulated_gpus.BUILT / "libcuda.so.1",
        "vcuda's library": emulated_gpus.INTERPOSERS / "libcuda.so.1",
        "the program of the greedy pods": emulated_gpus.PROGRAMS / "slice",
    }
    for what, path in needed.items():
        if not path.exists():
            raise DemoError(f"{what} is not built; run scripts/setup")


@dataclass(frozen=True, slots=True)
class SmallCluster:
    """The programs of the cluster's show."""

    server: ApiServer
    scheduler: SchedulerProcess
    kube_scheduler: KubeScheduler
    nodes: dict[str, GpuNode]
    home: Path

    def ca(self) -> str:
        """The CA of the scheduler's certificate, from the Secret; empty until `vcuda scheduler` has made it."""
        return _ca_in_secret(self.server)

    def ca_file(self) -> Path:
        path = self.home / "ca.crt"
        path.write_text(self.ca())
        return path


@asynccontextmanager
async def small_cluster(home: Path) -> AsyncIterator[SmallCluster]:
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(ApiServer(token=TOKEN))
        install_webhook(server)
        command = scheduler_command(home, server.kubeconfig(home / "kubeconfig"))
        scheduler = SchedulerProcess(command, lambda: _ca_in_secret(server))
        stack.push_async_callback(scheduler.destroy)
        nodes = {}
        for name in CLUSTER_NODES:
            profile = _two_gpus(home / name, name)
            nodes[name] = await stack.enter_async_context(one_node(home / name, name, cluster=server, profile=profile))
        yield SmallCluster(server, scheduler, KubeScheduler(server, scheduler), nodes, home)


def publish_agents(cluster: SmallCluster) -> None:
    """The endpoints of the agents' Service, by which the scheduler asks for use."""
    for name, node in cluster.nodes.items():
        slice_ = {
            "metadata": {"name": f"vcuda-agent-{name}", "labels": {"kubernetes.io/service-name": "vcuda-agent"}},
            "addressType": "IPv4",
            "ports": [{"port": node.agent.command.port}],
            "endpoints": [{"addresses": ["127.0.0.1"], "nodeName": name}],
        }
        cluster.server.store.create("endpointslices", slice_, namespace=NAMESPACE)


@contextmanager
def racks(server: ApiServer) -> Iterator[None]:
    """Nodes that are only objects: what an agent would have reported, and no kubelet."""
    for name, gpus in RACKS.items():
        server.store.create("nodes", _rack(name, gpus))
    try:
        yield
    finally:
        for name in RACKS:
            server.store.delete("nodes", name)


def one_node(
    home: Path, name: str = NODE, *, cluster: ApiServer | None = None, profile: Path = EIGHT_GPUS
) -> AbstractAsyncContextManager[GpuNode]:
    """Kubelet's clock runs 20 times as fast, so that nobody waits for a back-off."""
    return gpu_node(
        home,
        profile=profile,
        library=emulated_gpus.INTERPOSERS,
        cluster=cluster,
        node_name=name,
        speed=20.0,
    )


def _ca_in_secret(server: ApiServer) -> str:
    try:
        data: dict[str, str] = server.store.get("secrets", SECRET, namespace=NAMESPACE).get("data") or {}
    except ApiError:
        return ""
    return base64.b64decode(data.get("ca.crt", "")).decode()


def _two_gpus(home: Path, node: str) -> Path:
    """A profile with the first two A100s of the large machine, NVLink between them, and UUIDs of this node."""
    home.mkdir()
    document = json.loads(EIGHT_GPUS.read_text())
    document["gpus"] = [
        {**gpu, "uuid": f"GPU-{uuid.uuid5(uuid.NAMESPACE_DNS, f'{minor}.{node}')}"}
        for minor, gpu in enumerate(document["gpus"][:CLUSTER_GPUS])
    ]
    document["topology"] = {"default": "multiple"}
    for link in document["nvlink"]:
        link["gpus"] = list(range(CLUSTER_GPUS))
    path = home / "profile.json"
    write_profile(document, path)
    return path


def _rack(name: str, gpus: int) -> JsonObject:
    inventory = format_inventory(made_up_inventory(name, gpus=gpus, memory_mib=RACK_MIB), share_mode=True)
    annotations = {"tencent.com/vcuda-inventory": inventory}
    allocatable = {CORE: str(100 * gpus), MEMORY: str(gpus * RACK_MIB // emulated_gpus.BLOCK_MIB)}
    return {
        "metadata": {"name": name, "labels": {POOL: RACK_POOL}, "annotations": annotations},
        "status": {"allocatable": allocatable, "conditions": [{"type": "Ready", "status": "True"}]},
    }
