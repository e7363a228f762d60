"""How many files and functions of `deviceplugin` the simplest Allocate, filter, bind and explain enter.

Allocate: the first call for one container of 20 cores on a node with four GPUs, with kubelet's `/pods` as the only
identity source. Filter: one pod of 50 cores, three nodes with two GPUs, binpack. Bind: of that pod to the node that
filter chose. Explain: of such a pod that filter has refused, because six pods hold all GPUs. Decoding of requests and
writing of answers is not counted.
Output (keys of `--output json`): `<call>_files`, `<call>_functions`, and `<call>_calls`, how often functions were
called. `--list` prints the functions instead, each with its number of calls. The counts are the same on every machine
with one version of Python, and in the short form.

    python -m benchmarks.call_path [--list] [--output json] [--short]
"""

import asyncio
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import deviceplugin
from benchmarks.command import ends_in_one_sentence, options, show
from deviceplugin.cluster.extender.extender import Extender
from deviceplugin.cluster.extender.wire import BindingArgs, ExtenderArgs
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
    """What was entered: `<file>:<function>` below `deviceplugin`, each with its number of calls."""

    functions: Counter[str] = field(default_factory=Counter)

    @property
    def files(self) -> set[str]:
        return {name.partition(":")[0] for name in self.functions}

    @property
    def calls(self) -> int:
        return self.functions.total()

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
            self.functions[f"{path.relative_to(_PRODUCT)}:{name}"] += 1


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


class _Api:
    """Takes a Binding; every other request is a failure of the measurement."""

    async def bind(self, pod: PodRef, node: str, annotations: Mapping[str, str]) -> None:
        pass

    async def get_pod(self, pod: PodRef) -> Pod:
        raise AssertionError(pod)

    async def annotate_node(self, name: str, annotations: Mapping[str, str | None]) -> None:
        raise AssertionError(name)


_NODES = ("node-1", "node-2", "node-3")


def _extender() -> Extender:
    """After its start, with the simplest policy; the default one enters two files more."""
    extender = Extender(_Api(), PlacementSettings(node_policy=NodePolicy.BINPACK))
    for name in _NODES:
        extender.put_node(_node(name))
    extender.warm_up()
    return extender


def trace_filter() -> Trace:
    """From `Extender.filter` to its answer."""
    found, extender = Trace(), _extender()
    with found.running():
        extender.filter(ExtenderArgs(_pod(), _NODES))
    return found


def trace_bind() -> Trace:
    """From `Extender.bind` to its answer, after the watch has shown the pod and filter has chosen its node."""
    found, extender, pod = Trace(), _extender(), _pod()
    extender.put_pod(pod)
    (node,) = extender.filter(ExtenderArgs(pod, _NODES)).names

    async def run() -> str:
        with found.running():
            return await extender.bind(BindingArgs(pod.pod.ref, node))

    assert asyncio.run(run()) == ""
    return found


def trace_explain() -> Trace:
    """From `Extender.explain` to its answer."""
    found, extender = Trace(), _extender()
    for number in range(2 * len(_NODES)):
        assert extender.filter(ExtenderArgs(_pod(f"holder-{number}", cores=100), _NODES)).names
    pod = _pod()
    extender.put_pod(pod)
    assert not extender.filter(ExtenderArgs(pod, _NODES)).names

    async def run() -> bool:
        with found.running():
            return await extender.explain("default", "pod") is not None

    assert asyncio.run(run())
    return found


def _node(name: str) -> ClusterNode:
    inventory = made_up_inventory(name, gpus=2)
    blocks = sum(gpu.blocks for gpu in inventory.gpus)
    text = format_inventory(inventory, share_mode=True)
    return ClusterNode(name=name, uid=f"uid-{name}", inventory=text, ready=True, cores=200, blocks=blocks)


def _pod(name: str = "pod", *, cores: int = 50) -> ClusterPod:
    ref = PodRef(PodUid(f"uid-{name}"), "default", name)
    container = PodContainer(ContainerRef(ref, "main"), ContainerRole.APP, 0, cores, 8)
    return ClusterPod(Pod(ref=ref, containers=(container,), api_uid=ref.uid, resource_version="1"))


TRACES = {"allocate": trace_allocate, "filter": trace_filter, "bind": trace_bind, "explain": trace_explain}


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--list", action="store_true", help="print every function that was entered")
    given = parser.parse_args()
    found = {call: trace() for call, trace in TRACES.items()}
    if given.list:
        calls = (f"{call} {count:3} {name}" for call, trace in found.items() for name, count in _most_called(trace))
        print("\n".join(calls))
        return
    show({key: count for call, trace in found.items() for key, count in _figures(call, trace)}, given.output)


def _most_called(trace: Trace) -> list[tuple[str, int]]:
    return sorted(trace.functions.items(), key=lambda each: (-each[1], each[0]))


def _figures(call: str, trace: Trace) -> Iterator[tuple[str, int]]:
    yield f"{call}_files", len(trace.files)
    yield f"{call}_functions", len(trace.functions)
    yield f"{call}_calls", trace.calls


if __name__ == "__main__":
    ends_in_one_sentence(main)
