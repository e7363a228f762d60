"""CPU and memory that a pod takes of its node, by kube-scheduler's arithmetic, and those that a node has.

In: structs of pods and nodes. Out: `Compute`, or None if a quantity cannot be read. Containers add up. An init
container runs before them, beside the sidecars that were started until then; the larger sum counts. Resources of the
whole pod replace both, and overhead is added. During a resize the maximum of requested, allocated and actual resources
counts, unless kubelet reported that the resize is infeasible.
"""

from collections.abc import Mapping
from functools import lru_cache

from deviceplugin.errors import ParseError
from deviceplugin.kube.pods import statuses_by_name
from deviceplugin.kube.quantity import exact_quantity
from deviceplugin.kube.structs import (
    Amounts,
    ClusterPodSpec,
    ClusterPodStatus,
    ContainerSpec,
    ContainerStatus,
)
from deviceplugin.model.units import Compute

_MOST_CACHED = 10_000
_RESIZE_PENDING = "PodResizePending"
_INFEASIBLE = "Infeasible"
_Pair = tuple[int, int]
"""CPU and memory as in `Compute`; a tuple, because this runs for every change of every pod of the cluster."""
_NONE: _Pair = (0, 0)


def pod_needs(spec: ClusterPodSpec, status: ClusterPodStatus) -> Compute | None:
    try:
        cpu, memory = _by_containers(spec, status)
        if spec.resources is not None and (whole := spec.resources.requests) is not None:
            cpu = cpu if whole.cpu is None else _milli(whole.cpu)
            memory = memory if whole.memory is None else _bytes(whole.memory)
        more = _pair(spec.overhead)
    except ParseError:
        return None
    return _compute(cpu + more[0], memory + more[1])


_compute = lru_cache(_MOST_CACHED)(Compute)
"""The pods of a deployment need the same: equal values are stored once."""


def node_offers(allocatable: Mapping[str, str | int]) -> Compute | None:
    try:
        return Compute(_milli(allocatable["cpu"]), _bytes(allocatable["memory"]))
    except (KeyError, ParseError):
        return None


def _by_containers(spec: ClusterPodSpec, status: ClusterPodStatus) -> _Pair:
    apps, statuses = _NONE, statuses_by_name(status.container_statuses)
    for each in spec.containers or ():
        apps = _sum(apps, _takes(each, statuses, status))
    if not spec.init_containers:
        return apps
    sidecars = most = _NONE
    statuses = statuses_by_name(status.init_container_statuses)
    for each in spec.init_containers:
        if each.restart_policy == "Always":
            sidecars = _sum(sidecars, _takes(each, statuses, status))
            most = _most(most, sidecars)
        else:
            most = _most(most, _sum(sidecars, _requests(each)))
    return _most(most, _sum(sidecars, apps))


def _takes(container: ContainerSpec, statuses: Mapping[str, ContainerStatus], status: ClusterPodStatus) -> _Pair:
    wanted = _requests(container)
    found = statuses.get(container.name)
    if found is None or found.resources is None:
        return wanted
    real = _most(_pair(found.resources.requests), _pair(found.allocated_resources))
    return real if real == wanted or _is_refused(status) else _most(wanted, real)


def _is_refused(status: ClusterPodStatus) -> bool:
    """Kubelet reported that it cannot resize the pod."""
    return any(each.type == _RESIZE_PENDING and each.reason == _INFEASIBLE for each in status.conditions or ())


def _requests(container: ContainerSpec) -> _Pair:
    return _NONE if container.resources is None else _pair(container.resources.requests)


def _pair(amounts: Amounts | None) -> _Pair:
    return _NONE if amounts is None else (_milli(amounts.cpu or 0), _bytes(amounts.memory or 0))


def _sum(one: _Pair, other: _Pair) -> _Pair:
    return (one[0] + other[0], one[1] + other[1])


def _most(one: _Pair, other: _Pair) -> _Pair:
    return (max(one[0], other[0]), max(one[1], other[1]))


@lru_cache(_MOST_CACHED)
def _milli(text: str | int) -> int:
    """Rounded up."""
    return -int(-exact_quantity(text) * 1000 // 1)


@lru_cache(_MOST_CACHED)
def _bytes(text: str | int) -> int:
    return -int(-exact_quantity(text) // 1)
