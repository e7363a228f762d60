"""Nodes and tasks from CSV tables of the openb trace, or other tables with the same columns.

In: `sn, cpu_milli, memory_mib, gpu, model` of each node and `cpu_milli, memory_mib, num_gpu, gpu_milli` of each task;
optional: `name` and `gpu_spec` (allowed models, separated by `|`). Out: `NodeState` and `Task`. The trace has no
memory of GPUs and no links, so no task requests them. An error is one ParseError that names file, line and column,
because such files are long and written by scripts.

One task of a workload, and the scene: the nodes on which tasks may run.
"""

import csv
import io
from _csv import Reader
from collections.abc import Collection, Iterator, Sequence

import msgspec

from deviceplugin.errors import ParseError
from deviceplugin.model.allocation import ContainerRole, PodRef, PodUid
from deviceplugin.model.gpu import Driver, Gpu, GpuUuid, Inventory
from deviceplugin.model.pod_request import ContainerRequest, PodRequest
from deviceplugin.model.preferences import GpuFilter, Preferences
from deviceplugin.model.request import Request
from deviceplugin.model.topology import Topology
from deviceplugin.model.units import CORES_PER_GPU
from deviceplugin.placement.fit import demand_of
from deviceplugin.placement.node_state import NodeState, Spare, node_state
from deviceplugin.placement.snapshot import peak_use
from deviceplugin.structs import replace


class Task(msgspec.Struct, frozen=True):
    """A pod with its CPU and memory; `demand` is its request of all GPUs, in cores."""

    pod: PodRequest
    needs: Spare
    demand: int


def task(pod: PodRequest, needs: Spare) -> Task:
    """The demand is that of the phase that demands most: init containers run before the app containers."""
    asked = ((each.role, each.index, demand_of(each.request).total) for each in pod.containers)
    return Task(pod, needs, peak_use(asked).cores)


class Scene(msgspec.Struct, frozen=True):
    """A cluster without tasks, and the tasks that arrive, unordered.

    `left_out`: objects of the files that cannot be read, one sentence each; the others are simulated.
    """

    nodes: tuple[NodeState, ...]
    tasks: tuple[Task, ...]
    left_out: tuple[str, ...] = ()

    @property
    def gpus(self) -> int:
        return sum(len(node.snapshot.gpus) for node in self.nodes)

    @property
    def capacity(self) -> int:
        """In cores."""
        return self.gpus * CORES_PER_GPU


LARGEST = 10**9
_OTHER_SEPARATORS = {";": "semicolons", "\t": "tabs"}
NODE_COLUMNS = ("sn", "cpu_milli", "memory_mib", "gpu", "model")
TASK_COLUMNS = ("cpu_milli", "memory_mib", "num_gpu", "gpu_milli")
MOST_GPUS = 64
MILLI_PER_GPU = 1000
_MILLI_PER_CORE = MILLI_PER_GPU // CORES_PER_GPU


class Row(msgspec.Struct, frozen=True):
    """One line below the header."""

    file: str
    line: int
    fields: dict[str, str]

    def text(self, column: str) -> str:
        return self.fields.get(column, "").strip()

    def number(self, column: str, *, most: int = LARGEST) -> int:
        written = self.text(column)
        if not (written.isascii() and written.isdigit() and len(written) <= 12 and int(written) <= most):
            raise self.wrong(column, f"{_shown(written)} is not a whole number from 0 to {most}")
        return int(written)

    def wrong(self, column: str, what: str) -> ParseError:
        return ParseError(f"{self.file} line {self.line}, column {column}: {what}")


def read_rows(content: bytes, *, file: str, columns: Sequence[str]) -> Iterator[Row]:
    """`columns` must be present, in any order.

    Others are ignored, and so are lines of empty fields from spreadsheets.
    """
    lines = csv.reader(io.StringIO(_text(content, file), newline=""), strict=True)
    header = [name.strip() for name in _next(lines, file) or ()]
    if not any(header):
        raise ParseError(f"{file} is empty; it needs a first line with the columns {', '.join(columns)}")
    if len(header) == 1 and (other := next((each for each in _OTHER_SEPARATORS if each in header[0]), None)):
        raise ParseError(f"{file} line 1 is separated by {_OTHER_SEPARATORS[other]}; write commas between the columns")
    if missing := [name for name in columns if name not in header]:
        raise ParseError(f"{file} line 1 has no column {' and no column '.join(missing)}; it has {', '.join(header)}")
    if twice := [name for name in columns if header.count(name) > 1]:
        raise ParseError(f"{file} line 1 has column {twice[0]} twice")
    count = 0
    while (fields := _next(lines, file)) is not None:
        if not any(fields):
            continue
        if len(fields) != len(header):
            at = f"column {header[len(fields)]} is missing" if len(fields) < len(header) else "the rest has no column"
            raise ParseError(
                f"{file} line {lines.line_num} has {len(fields)} fields and the header {len(header)}: {at}"
            )
        count += 1
        yield Row(file, lines.line_num, dict(zip(header, fields, strict=True)))
    if not count:
        raise ParseError(f"{file} has no line below its header")


def _text(content: bytes, file: str) -> str:
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ParseError(f"{file} line {line} is no UTF-8 text") from None


def _next(lines: Reader, file: str) -> list[str] | None:
    try:
        return next(lines, None)
    except csv.Error as error:
        raise ParseError(f"{file} line {lines.line_num} is no line of comma-separated values: {error}") from None


def _shown(text: str) -> str:
    return repr(text[:40]) if text else "nothing"


def nodes_of_trace(content: bytes, *, file: str) -> Iterator[NodeState]:
    names: dict[str, int] = {}
    for row in read_rows(content, file=file, columns=NODE_COLUMNS):
        name = row.text("sn")
        if not name:
            raise row.wrong("sn", "the node has no name")
        if name in names:
            raise row.wrong("sn", f"node {name[:60]} stands in line {names[name]} already")
        names[name] = row.line
        yield _node(name, row)


def tasks_of_trace(content: bytes, *, file: str, models: Collection[str]) -> Iterator[Task]:
    """`models` are those of the nodes; a task that names another model is an error in one of the files."""
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
    """A part of a core counts as one core, because shares are requested in whole cores."""
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
    """A trace names whole models, a filter parts of names: a task for A10 must not get A100."""
    more = (name for name in sorted(known) if name not in wanted and any(_is_in(each, name) for each in wanted))
    return tuple(name for name in more if not any(_is_in(name, each) for each in wanted))


def _is_in(part: str, name: str) -> bool:
    return part.lower() in name.lower()
