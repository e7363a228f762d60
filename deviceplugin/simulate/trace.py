"""Nodes and tasks from the tables of the openb trace, or from any with the same columns.

In: `sn, cpu_milli, memory_mib, gpu, model` of each node and `cpu_milli, memory_mib, num_gpu, gpu_milli` of each task,
`name` and `gpu_spec` (models that it may use, separated by `|`) where there are such columns. Out: `NodeState` and
`Task`. Such a trace says nothing of the memory of GPUs, so no task asks for any, and nothing of links.
"""

from collections.abc import Collection, Iterator
from dataclasses import replace

from deviceplugin.model.allocation import ContainerRole, PodRef, PodUid
from deviceplugin.model.gpu import Driver, Gpu, GpuUuid, Inventory
from deviceplugin.model.pod_request import ContainerRequest, PodRequest
from deviceplugin.model.preferences import GpuFilter, Preferences
from deviceplugin.model.request import Request
from deviceplugin.model.topology import Topology
from deviceplugin.model.units import CORES_PER_GPU
from deviceplugin.placement.node_state import NodeState, Spare, node_state
from deviceplugin.simulate.rows import Row, read_rows
from deviceplugin.simulate.task import Task, task

NODE_COLUMNS = ("sn", "cpu_milli", "memory_mib", "gpu", "model")
TASK_COLUMNS = ("cpu_milli", "memory_mib", "num_gpu", "gpu_milli")
MOST_GPUS = 64
MILLI_PER_GPU = 1000
_MILLI_PER_CORE = MILLI_PER_GPU // CORES_PER_GPU


def nodes_of_trace(content: bytes, *, file: str) -> Iterator[NodeState]:
    names: dict[str, int] = {}
    for row in read_rows(content, file=file, columns=NODE_COLUMNS):
        name = row.text("sn")
        if not name:
            raise row.wrong("sn", "a node needs a name")
        if name in names:
            raise row.wrong("sn", f"node {name[:60]} stands in line {names[name]} already")
        names[name] = row.line
        yield _node(name, row)


def tasks_of_trace(content: bytes, *, file: str, models: Collection[str]) -> Iterator[Task]:
    """`models` are those of the nodes; a task that names another is a mistake in one of the two files."""
    for row in read_rows(content, file=file, columns=TASK_COLUMNS):
        wanted = _models(row, models)
        request = _request(row)
        ref = PodRef(PodUid(f"{row.line}"), "", row.text("name") or f"line-{row.line}")
        container = ContainerRequest("main", ContainerRole.APP, 0, request) if request else None
        pod = PodRequest(ref, (container,) if container else (), Preferences(gpus=wanted))
        yield task(pod, Spare(row.number("cpu_milli"), row.number("memory_mib")))


def _node(name: str, row: Row) -> NodeState:
    count, model = row.number("gpu", most=MOST_GPUS), row.text("model")
    if count and not model:
        raise row.wrong("model", f"the {count} GPUs of node {name[:60]} need a model")
    gpus = tuple(Gpu(GpuUuid(f"{name}/{minor}"), minor, minor, model, 0) for minor in range(count))
    inventory = Inventory(gpus, Topology(tuple(range(count))), Driver("", (0, 0)))
    spare = Spare(row.number("cpu_milli"), row.number("memory_mib"))
    return replace(node_state(name, inventory, ()), spare=spare)


def _request(row: Row) -> Request | None:
    """Part of a core counts as one, as for everyone who asks for a share in whole cores."""
    count = row.number("num_gpu", most=MOST_GPUS)
    milli = row.number("gpu_milli", most=MILLI_PER_GPU)
    if not count:
        return None
    if not milli:
        raise row.wrong("gpu_milli", f"a task of {count} GPUs asks for 1 to {MILLI_PER_GPU} of each, not 0")
    cores = -(-milli // _MILLI_PER_CORE)
    return Request(cores * count, 0, 1 if cores == CORES_PER_GPU else count)


def _models(row: Row, known: Collection[str]) -> GpuFilter:
    wanted = tuple(sorted({word.strip() for word in row.text("gpu_spec").split("|") if word.strip()}))
    for model in wanted:
        if model not in known:
            raise row.wrong(
                "gpu_spec", f"no node has a GPU of model {model[:60]}; the nodes have {', '.join(sorted(known))}"
            )
    return GpuFilter(models=wanted, not_models=_longer(wanted, known))


def _longer(wanted: Collection[str], known: Collection[str]) -> tuple[str, ...]:
    """Here a model is a whole name, in a filter a part of one: whoever wants A10 does not get A100."""
    more = (name for name in sorted(known) if name not in wanted and any(_is_in(each, name) for each in wanted))
    return tuple(name for name in more if not any(_is_in(name, each) for each in wanted))


def _is_in(part: str, name: str) -> bool:
    return part.lower() in name.lower()
