"""Reads a scene from its two files.

In: paths. Out: a `Scene` that can be simulated, or a ParseError that names the file. The content tells the format:
Kubernetes objects begin with `{` or with a line that is YAML; anything else is a table with the columns of the openb
trace.
"""

from collections.abc import Iterable
from pathlib import Path

from deviceplugin.errors import ConfigError, ParseError
from deviceplugin.placement.node_state import NodeState
from deviceplugin.simulate.cluster_objects import nodes_of_objects, tasks_of_objects
from deviceplugin.simulate.task import Scene, Task
from deviceplugin.simulate.trace import nodes_of_trace, tasks_of_trace

_LARGEST = 512 << 20


def read_scene(nodes: Path, pods: Path) -> Scene:
    found = _nodes(nodes)
    models = {view.gpu.model for node in found for view in node.snapshot.gpus}
    if not models:
        raise ParseError(f"{nodes}: no node has a GPU")
    tasks = _tasks(pods, models)
    if not any(task.demand for task in tasks):
        raise ParseError(f"{pods}: no pod requests a GPU")
    if any(container.request.blocks for task in tasks for container in task.pod.containers):
        _check_memory(found, nodes, pods)
    return Scene(found, tasks)


def _check_memory(found: Iterable[NodeState], nodes: Path, pods: Path) -> None:
    """Nothing would fit, and that would look like a result of the simulation."""
    for node in found:
        if any(not view.gpu.blocks for view in node.snapshot.gpus):
            raise ParseError(
                f"{pods}: pods request memory of GPUs, and {nodes} does not say how much memory the GPUs of node "
                f"{node.name[:60]} have; add the agent's annotation or the label nvidia.com/gpu.memory (MiB)"
            )


def _nodes(path: Path) -> tuple[NodeState, ...]:
    content = _read(path)
    read = nodes_of_objects if _holds_objects(content) else nodes_of_trace
    return tuple(read(content, file=str(path)))


def _tasks(path: Path, models: set[str]) -> tuple[Task, ...]:
    content, name = _read(path), str(path)
    if _holds_objects(content):
        return tuple(tasks_of_objects(content, file=name))
    return tuple(tasks_of_trace(content, file=name, models=models))


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
