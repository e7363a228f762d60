"""How much CPU and memory a pod takes of its node, by kube-scheduler's arithmetic, and how much a node has.

In: structs of pods and nodes. Out: `Compute`, or None where a quantity is none. Containers add up; an init container
runs before them, beside the sidecars that were started until then, and the larger counts. What is asked for the pod as
a whole takes the place of both, and overhead comes on top. While a container is being resized the largest of what it
asks for, what kubelet has promised it and what it runs with counts, unless kubelet has said that it cannot be done.
"""

from collections.abc import Mapping, Sequence

from deviceplugin.errors import ParseError
from deviceplugin.kube.cluster_structs import (
    ClusterPodSpec,
    ClusterPodStatus,
    PlainContainer,
    PlainSpec,
    PlainStatus,
    ResizedStatus,
)
from deviceplugin.kube.quantity import exact_quantity
from deviceplugin.kube.structs import Amounts, Container
from deviceplugin.model.compute import NOTHING, Compute

_BINARY = {"Ki": 10, "Mi": 20, "Gi": 30}
_RESIZE_PENDING = "PodResizePending"
_INFEASIBLE = "Infeasible"
_Container = Container | PlainContainer


def pod_needs(spec: ClusterPodSpec | PlainSpec, status: ClusterPodStatus | PlainStatus) -> Compute | None:
    try:
        asked = _by_containers(spec, _Resizing(status))
        if spec.resources is not None:
            asked = _instead(asked, spec.resources.requests)
        return asked + _compute(spec.overhead) if spec.overhead is not None else asked
    except ParseError:
        return None


def node_offers(allocatable: Mapping[str, str | int]) -> Compute | None:
    try:
        return Compute(_milli(allocatable["cpu"]), _bytes(allocatable["memory"]))
    except (KeyError, ParseError):
        return None


class _Resizing:
    """What kubelet says of CPU and memory of the containers that run."""

    def __init__(self, status: ClusterPodStatus | PlainStatus) -> None:
        self.status = status
        self._refused: bool | None = None

    def __call__(self, container: _Container, statuses: Sequence[ResizedStatus] | None) -> Compute:
        wanted = _requests(container)
        for each in statuses or ():
            if each.name == container.name and each.resources is not None:
                real = _compute(each.resources.requests).max(_compute(each.allocated_resources))
                return real if real == wanted or self._is_refused else wanted.max(real)
        return wanted

    @property
    def _is_refused(self) -> bool:
        if self._refused is None:
            self._refused = any(
                each.type == _RESIZE_PENDING and each.reason == _INFEASIBLE for each in self.status.conditions or ()
            )
        return self._refused


def _by_containers(spec: ClusterPodSpec | PlainSpec, resizing: _Resizing) -> Compute:
    status = resizing.status
    apps = NOTHING
    for each in spec.containers or ():
        apps += resizing(each, status.container_statuses)
    if not spec.init_containers:
        return apps
    sidecars = most = NOTHING
    for each in spec.init_containers:
        if each.restart_policy == "Always":
            sidecars += resizing(each, status.init_container_statuses)
            most = most.max(sidecars)
        else:
            most = most.max(sidecars + _requests(each))
    return most.max(sidecars + apps)


def _instead(asked: Compute, pod: Amounts | None) -> Compute:
    if pod is None:
        return asked
    return Compute(
        asked.cpu_milli if pod.cpu is None else _milli(pod.cpu),
        asked.memory_bytes if pod.memory is None else _bytes(pod.memory),
    )


def _requests(container: _Container) -> Compute:
    return NOTHING if container.resources is None else _compute(container.resources.requests)


def _compute(amounts: Amounts | None) -> Compute:
    if amounts is None:
        return NOTHING
    return Compute(_milli(amounts.cpu or 0), _bytes(amounts.memory or 0))


def _milli(text: str | int) -> int:
    """Rounded up; nearly all are written as `250m` or `2`."""
    plain = str(text)
    if plain.isascii():
        if plain.isdigit():
            return int(plain) * 1000
        if plain[-1:] == "m" and plain[:-1].isdigit():
            return int(plain[:-1])
    return -int(-exact_quantity(plain) * 1000 // 1)


def _bytes(text: str | int) -> int:
    plain = str(text)
    if plain.isascii():
        if plain.isdigit():
            return int(plain)
        if plain[-2:] in _BINARY and plain[:-2].isdigit():
            return int(plain[:-2]) << _BINARY[plain[-2:]]
    return -int(-exact_quantity(plain) // 1)
