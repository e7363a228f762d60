"""Reads a scene from its two files.

In: paths. Out: a `Scene` that can be simulated, without the objects that cannot be read, or a ParseError that names the
file. The content tells the format:
Kubernetes objects begin with `{` or with a line that is YAML; anything else is a table with the columns of the openb
trace.
"""

from collections.abc import Sequence
from pathlib import Path

from deviceplugin.errors import ConfigError, ParseError
from deviceplugin.placement.node_state import NodeState
from deviceplugin.simulate.cluster_objects import nodes_of_objects, tasks_of_objects
from deviceplugin.simulate.trace import Scene, Task, nodes_of_trace, tasks_of_trace

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
