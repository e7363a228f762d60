"""Reads a scene from its two files.

In: paths. Out: a `Scene` that can be simulated, without the objects that cannot be read, or a ParseError that names the
file. The content tells the format:
Kubernetes objects begin with `{` or with a line that is YAML; anything else is a table with the columns of the openb
trace.

Nodes and tasks from Kubernetes objects in a file, as `kubectl get nodes,pods -o yaml` (or json) writes them.

In: the bytes of a file: objects, lists, several YAML documents. Out: `NodeState` without pods, and a `Task` for each
pod. An object that cannot be read is left out with a sentence that names its place, as the scheduler skips such a node;
where all of a kind are such, the first sentence is the error. A node's GPUs are those of the agent's inventory
annotation; without an agent, as many as its `vcuda-core` or `nvidia.com/gpu`, of the model and memory in its labels.
Cordoned and unhealthy GPUs stay so; cordoned and unready nodes count like others, because the plan is for the whole
cluster. A pod is parsed as the scheduler does; one with only `nvidia.com/gpu` requests whole GPUs. Where it runs and
whether it has ended does not matter. A pod that is listed several times counts once.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec
import yaml

from deviceplugin.errors import ConfigError, ParseError, VcudaError, one_line
from deviceplugin.kube.cluster_objects import cluster_node, cluster_pod
from deviceplugin.kube.structs import (
    Amounts,
    ClusterNodeObject,
    ContainerSpec,
    Meta,
    PodObject,
    PodSpec,
    Resources,
    exact_quantity,
    parse_quantity,
)
from deviceplugin.model.annotation_names import annotation_names
from deviceplugin.model.gpu import Driver, Gpu, GpuUuid, Inventory
from deviceplugin.model.node import parse_inventory
from deviceplugin.model.pod import Pod
from deviceplugin.model.pod_request import pod_request
from deviceplugin.model.topology import Topology
from deviceplugin.model.units import BLOCK_BYTES, CORES_PER_GPU, MIB, ResourceNames
from deviceplugin.placement.node_state import NodeState, Spare, node_state
from deviceplugin.simulate.trace import Scene, Task, nodes_of_trace, task, tasks_of_trace
from deviceplugin.structs import replace

Quantities = dict[str, str | int]
_Read = TypeVar("_Read")
_Made = TypeVar("_Made")
_PLAIN = "nvidia.com/gpu"
_MODELS = ("nvidia.com/gpu.product", "gaia.tencent.com/gpu-model")
_MEMORY_MIB = "nvidia.com/gpu.memory"
_MOST_GPUS = 64
_NAMES = ResourceNames()
_FOREIGN_SHARES = ("nvidia.com/gpucores", "nvidia.com/gpumem", "nvidia.com/gpumem-percentage")


class Found(NamedTuple):
    """An object, and its place for error sentences."""

    kind: str
    where: str
    content: dict[str, Any]

    def read(self, form: type[_Read]) -> _Read:
        try:
            return msgspec.convert(self.content, form)
        except msgspec.MsgspecError as error:
            raise ParseError(str(error)) from None


class _TextLoader(yaml.CSafeLoader):
    """Times and fractions stay text, as in JSON."""

    yaml_implicit_resolvers = {  # noqa: RUF012 - as PyYAML declares it
        first: [(tag, form) for tag, form in forms if not tag.endswith((":timestamp", ":float"))]
        for first, forms in yaml.CSafeLoader.yaml_implicit_resolvers.items()
    }


def _every(
    content: bytes, file: str, kind: str, make: Callable[[Found], _Made | None]
) -> tuple[tuple[_Made, ...], list[str]]:
    """What `make` makes of the objects of one kind, and a sentence for each that cannot be read."""
    made: list[_Made] = []
    left_out: list[str] = []
    for number, item in enumerate(_documents(content, file), start=1):
        for each in _flat(item, f"{file}, object {number}"):
            if isinstance(each, str):
                left_out.append(each)
            elif each.kind == kind:
                try:
                    found = make(each)
                except VcudaError as error:
                    left_out.append(f"{each.where}: {error.message}")
                else:
                    made += [] if found is None else [found]
    if not made:
        raise ParseError(left_out[0] if left_out else f"{file} holds no object of kind {kind}")
    return tuple(made), left_out


def _documents(content: bytes, file: str) -> list[Any]:
    try:
        if content.lstrip()[:1] in (b"{", b"["):
            return [msgspec.json.decode(content)]
        return [each for each in yaml.load_all(content, Loader=_TextLoader) if each is not None]
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = f" line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise ParseError(f"{file}{place}: {error.problem or 'this is no YAML'}") from None
    except (yaml.YAMLError, msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise ParseError(f"{file} cannot be read: {one_line(str(error))}") from None


def _flat(item: Any, where: str) -> Iterator[Found | str]:  # noqa: ANN401 - any YAML or JSON
    """Objects, and a sentence for each item that is none."""
    kind = item.get("kind") if isinstance(item, dict) else None
    if isinstance(kind, str) and kind.endswith("List") and isinstance(item.get("items"), list):
        item = item["items"]
        for each in item:
            if isinstance(each, dict):
                each.setdefault("kind", kind.removesuffix("List") or None)
    if isinstance(item, list):
        for number, each in enumerate(item, start=1):
            yield from _flat(each, f"{where}.{number}")
        return
    if not isinstance(kind, str):
        yield f"{where} is not a Kubernetes object: it has no kind"
        return
    meta = item.get("metadata")
    name = str(meta.get("name", "")) if isinstance(meta, dict) else ""
    yield Found(kind, f"{where} ({kind} {name[:60]})", item)


def nodes_of_objects(content: bytes, *, file: str) -> tuple[tuple[NodeState, ...], list[str]]:
    """And a sentence for each node that is left out."""
    names: set[str] = set()

    def node(found: Found) -> NodeState:
        made = _node(found)
        if not made.name or made.name in names:
            raise ParseError("it has no unique name")
        names.add(made.name)
        return made

    return _every(content, file, "Node", node)


def _node(found: Found) -> NodeState:
    item = found.read(ClusterNodeObject)
    allocatable = (item.status.allocatable if item.status else None) or {}
    spare = Spare(
        int(exact_quantity(allocatable.get("cpu", 0)) * 1000),
        int(exact_quantity(allocatable.get("memory", 0)) / MIB),
    )
    inventory, share_mode = _inventory(item.metadata, allocatable)
    cordoned = cluster_node(item, _NAMES).cordoned(inventory)
    return replace(node_state(item.metadata.name, inventory, (), share_mode=share_mode, cordoned=cordoned), spare=spare)


def _inventory(meta: Meta, allocatable: Quantities) -> tuple[Inventory, bool]:
    written = (meta.annotations or {}).get(annotation_names(_NAMES.domain).inventory)
    if written is not None:
        return parse_inventory(written)
    count = parse_quantity(allocatable.get(_NAMES.core, 0)) // CORES_PER_GPU
    count = count or parse_quantity(allocatable.get(_PLAIN, 0))
    if not 0 <= count <= _MOST_GPUS:
        raise ParseError(f"{count} GPUs are not possible; a node has 0 to {_MOST_GPUS}")
    labels = meta.labels or {}
    memory = _memory_of_one(labels, allocatable, count)
    model = next((labels[label] for label in _MODELS if label in labels), "unknown")
    gpus = tuple(Gpu(GpuUuid(f"{meta.name}/{minor}"), minor, minor, model, memory) for minor in range(count))
    return Inventory(gpus, Topology(tuple(range(count))), Driver("", (0, 0))), True


def _memory_of_one(labels: Mapping[str, str], allocatable: Quantities, count: int) -> int:
    """In bytes; 0 if unknown."""
    if count and (blocks := parse_quantity(allocatable.get(_NAMES.memory, 0))):
        return blocks // count * BLOCK_BYTES
    return parse_quantity(labels.get(_MEMORY_MIB, 0)) * MIB


def tasks_of_objects(content: bytes, *, file: str) -> tuple[tuple[Task, ...], list[str]]:
    """And a sentence for each pod that is left out."""
    seen: set[str] = set()

    def once(found: Found) -> Task | None:
        item = found.read(PodObject)
        if item.metadata.uid in seen:
            return None
        if item.metadata.uid:
            seen.add(item.metadata.uid)
        return _task(item)

    return _every(content, file, "Pod", once)


def _task(item: PodObject) -> Task:
    spec = item.spec or PodSpec()
    containers = [*(spec.init_containers or ()), *(spec.containers or ())]
    for each in containers:
        _complete(each.resources)
    found = cluster_pod(item, _NAMES)
    if found.needs is None:
        raise ParseError("it requests CPU or memory that is not a Kubernetes quantity")
    needs = Spare(found.needs.cpu_milli, -(-found.needs.memory_bytes // MIB))
    return task(pod_request(found.pod if found.pod.is_gpu else _with_plain(found.pod, containers)), needs)


def _complete(resources: Resources | None) -> None:
    """As the API server does: a request that is not written is the limit."""
    if resources is None or not resources.limits:
        return
    requests = resources.requests = resources.requests or Amounts()
    requests.cpu = resources.limits.get("cpu") if requests.cpu is None else requests.cpu
    requests.memory = resources.limits.get("memory") if requests.memory is None else requests.memory


def _with_plain(pod: Pod, containers: Sequence[ContainerSpec]) -> Pod:
    """Whole GPUs, as NVIDIA's device plugin counts them."""
    own = zip(pod.containers, map(_plain, containers), strict=True)
    return replace(pod, containers=tuple(replace(each, cores=count * CORES_PER_GPU) for each, count in own))


def _plain(container: ContainerSpec) -> int:
    limits = (container.resources.limits if container.resources else None) or {}
    if foreign := [name for name in _FOREIGN_SHARES if name in limits]:
        raise ParseError(f"{foreign[0]} is translated when a pod is created; take pods from a cluster with the webhook")
    return parse_quantity(limits.get(_PLAIN, 0))


_LARGEST = 512 << 20


def read_scene(nodes: Path, pods: Path) -> Scene:
    found, strange = _nodes(nodes)
    models = {view.gpu.model for node in found for view in node.snapshot.gpus}
    if not models:
        raise ParseError(f"{nodes}: no node has a GPU")
    tasks, odd = _tasks(pods, models)
    if not any(task.demand for task in tasks):
        raise ParseError(f"{pods}: no pod requests a GPU")
    left_out = dict.fromkeys([*strange, *odd])  # one file may hold both
    if any(container.request.blocks for task in tasks for container in task.pod.containers):
        found, unknown = _with_memory(found, nodes, pods)
        left_out |= dict.fromkeys(unknown)
    return Scene(found, tasks, tuple(left_out))


def _with_memory(found: Sequence[NodeState], nodes: Path, pods: Path) -> tuple[tuple[NodeState, ...], list[str]]:
    """Nothing would fit on the others, and that would look like a result of the simulation."""
    known = tuple(node for node in found if _knows_memory(node))
    unknown = [
        f"{pods}: pods request memory of GPUs, and {nodes} does not say how much memory the GPUs of node "
        f"{node.name[:60]} have; add the agent's annotation or the label nvidia.com/gpu.memory (MiB)"
        for node in found
        if not _knows_memory(node)
    ]
    if unknown and not any(node.snapshot.gpus for node in known):
        raise ParseError(unknown[0])
    return known, unknown


def _knows_memory(node: NodeState) -> bool:
    return all(view.gpu.blocks for view in node.snapshot.gpus)


def _nodes(path: Path) -> tuple[tuple[NodeState, ...], Sequence[str]]:
    content, name = _read(path), str(path)
    if _holds_objects(content):
        return nodes_of_objects(content, file=name)
    return tuple(nodes_of_trace(content, file=name)), ()


def _tasks(path: Path, models: set[str]) -> tuple[tuple[Task, ...], Sequence[str]]:
    content, name = _read(path), str(path)
    if _holds_objects(content):
        return tasks_of_objects(content, file=name)
    return tuple(tasks_of_trace(content, file=name, models=models)), ()


def _read(path: Path) -> bytes:
    try:
        if path.stat().st_size > _LARGEST:
            raise ParseError(f"{path} is larger than {_LARGEST >> 20} MiB; split it")
        content = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
    if not content.strip():
        raise ParseError(f"{path} is empty")
    return content


def _holds_objects(content: bytes) -> bool:
    """The header of a table has commas before any colon; the first line of YAML is a comment, a mark or a key."""
    first = content.lstrip(b"\xef\xbb\xbf \t\r\n").split(b"\n", 1)[0].strip()
    return first[:1] in (b"{", b"[", b"#", b"-", b"%") or b":" in first.split(b",", 1)[0]
