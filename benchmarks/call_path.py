"""How many files and functions of `deviceplugin` the simplest Allocate and the simplest filter enter.

Allocate: the first call for one container of 20 cores on a node with four GPUs, with kubelet's `/pods` as the only
identity source. Filter: one pod of 50 cores, three nodes with two GPUs, binpack. Decoding of requests is not counted.
Output (keys of `--output json`): `<call>_files`, `<call>_functions`, and `<call>_calls`, how often functions were
called. `--list` prints the functions instead. The counts are the same on every machine, and in the short form.

    python -m benchmarks.call_path [--list] [--output json] [--short]
"""

import asyncio
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import deviceplugin
from benchmarks.command import ends_in_one_sentence, options, show
from deviceplugin.cluster.extender.extender import Extender
from deviceplugin.cluster.extender.wire import ExtenderArgs
from deviceplugin.config.scheduler import PlacementSettings
from deviceplugin.kubelet.plugin import Context, ResourcePlugin
from deviceplugin.ledger.grant import Source
from deviceplugin.model.allocation import ContainerRef, ContainerRole, PodRef, PodUid
from deviceplugin.model.node import ClusterNode, format_inventory
from deviceplugin.model.pod import ClusterPod, Pod, PodContainer
from deviceplugin.model.preferences import NodePolicy
from deviceplugin.wire import deviceplugin_pb2 as pb
from sandbox.inventories import made_up_inventory
from sandbox.station import pod_json, station

_PRODUCT = Path(deviceplugin.__file__).parent


@dataclass
class Trace:
    """What was entered: `<file>` and `<file>:<function>` below `deviceplugin`, and the number of calls."""

    files: set[str] = field(default_factory=set)
    functions: set[str] = field(default_factory=set)
    calls: int = 0

    @contextmanager
    def running(self, task: "asyncio.Task[Any] | None" = None) -> Iterator[None]:
        """Counts calls in this thread; with `task` only those of the task, because others run while it waits."""

        def profile(frame: FrameType, event: str, _arg: object) -> None:
            if event == "call" and (task is None or asyncio.current_task() is task):
                self._enter(frame.f_code)

        sys.setprofile(profile)
        try:
            yield
        finally:
            sys.setprofile(None)

    def _enter(self, code: CodeType) -> None:
        """A lambda, a generator expression and an inner function count as the function that contains them."""
        path, name = Path(code.co_filename), code.co_qualname.partition(".<locals>")[0]
        if path.is_relative_to(_PRODUCT) and "<" not in name:
            self.files.add(str(path.relative_to(_PRODUCT)))
            self.functions.add(f"{path.relative_to(_PRODUCT)}:{name}")
            self.calls += 1


def trace_allocate() -> Trace:
    """From `ResourcePlugin.Allocate` to its answer, called by the stand-in kubelet."""
    found = Trace()
    allocate = ResourcePlugin.Allocate

    async def traced(plugin: ResourcePlugin, request: pb.AllocateRequest, context: Context) -> pb.AllocateResponse:
        if found.calls:
            return await allocate(plugin, request, context)
        with found.running(asyncio.current_task()):
            return await allocate(plugin, request, context)

    async def run(base: Path) -> None:
        async with station(base, made_up_inventory("node-1", gpus=4), sources=(Source.PODS,)) as node:
            await node.kubelet.admit(pod_json("pod", ("main", 20, 4)))

    ResourcePlugin.Allocate = traced  # type: ignore[assignment, method-assign]
    try:
        with tempfile.TemporaryDirectory(prefix="vc-") as base:
            asyncio.run(run(Path(base)))
    finally:
        ResourcePlugin.Allocate = allocate  # type: ignore[method-assign]
    return found


_NO_REQUEST = "filter sends no request to the API server"


class _NoApi:
    """Every request is a failure of the measurement."""

    async def bind(self, pod: PodRef, node: str, annotations: Mapping[str, str]) -> None:
        raise AssertionError(_NO_REQUEST)

    async def get_pod(self, pod: PodRef) -> Pod:
        raise AssertionError(_NO_REQUEST)

    async def annotate_node(self, name: str, annotations: Mapping[str, str | None]) -> None:
        raise AssertionError(_NO_REQUEST)


def trace_filter() -> Trace:
    """From `Extender.filter` to its answer, after the extender has started.

    By the simplest policy; the default one enters two files more.
    """
    found, extender = Trace(), Extender(_NoApi(), PlacementSettings(node_policy=NodePolicy.BINPACK))
    for name in ("node-1", "node-2", "node-3"):
        extender.put_node(_node(name))
    extender.warm_up()
    args = ExtenderArgs(_pod(), ("node-1", "node-2", "node-3"))
    with found.running():
        extender.filter(args)
    return found


def _node(name: str) -> ClusterNode:
    inventory = made_up_inventory(name, gpus=2)
    blocks = sum(gpu.blocks for gpu in inventory.gpus)
    text = format_inventory(inventory, share_mode=True)
    return ClusterNode(name=name, uid=f"uid-{name}", inventory=text, ready=True, cores=200, blocks=blocks)


def _pod() -> ClusterPod:
    ref = PodRef(PodUid("uid-pod"), "default", "pod")
    container = PodContainer(ContainerRef(ref, "main"), ContainerRole.APP, 0, 50, 8)
    return ClusterPod(Pod(ref=ref, containers=(container,), api_uid=ref.uid, resource_version="1"))


TRACES = {"allocate": trace_allocate, "filter": trace_filter}


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--list", action="store_true", help="print every function that was entered")
    given = parser.parse_args()
    found = {call: trace() for call, trace in TRACES.items()}
    if given.list:
        print("\n".join(f"{call} {name}" for call, trace in found.items() for name in sorted(trace.functions)))
        return
    show({key: count for call, trace in found.items() for key, count in _figures(call, trace)}, given.output)


def _figures(call: str, trace: Trace) -> Iterator[tuple[str, int]]:
    yield f"{call}_files", len(trace.files)
    yield f"{call}_functions", len(trace.functions)
    yield f"{call}_calls", trace.calls


if __name__ == "__main__":
    ends_in_one_sentence(main)
