"""Tasks from Kubernetes objects.

In: objects; what is no pod is passed over. Out: a `Task` for each pod, read as the scheduler reads it; a pod that asks
for whole `nvidia.com/gpu` and nothing of ours asks for so many GPUs. CPU and memory are the pod's requests, added up as
kube-scheduler does. Where a pod runs already, and whether it has ended, is of no account: it is one that came. One
that stands there several times, because it was listed several times, came once.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import msgspec

from deviceplugin.errors import ParseError, VcudaError
from deviceplugin.kube.pods import pod_from
from deviceplugin.kube.quantity import exact_quantity, parse_quantity
from deviceplugin.kube.structs import PodObject
from deviceplugin.model.pod import Pod
from deviceplugin.model.pod_request import pod_request
from deviceplugin.model.units import CORES_PER_GPU, MIB, ResourceNames
from deviceplugin.placement.node_state import Spare
from deviceplugin.simulate.objects import Found, Quantities
from deviceplugin.simulate.task import Task, task

_PLAIN = "nvidia.com/gpu"
_FOREIGN_SHARES = ("nvidia.com/gpucores", "nvidia.com/gpumem", "nvidia.com/gpumem-percentage")


class _Resources(msgspec.Struct):
    requests: Quantities | None = None
    limits: Quantities | None = None


class _Container(msgspec.Struct, rename="camel"):
    resources: _Resources | None = None
    restart_policy: str | None = None

    def amount(self, name: str) -> str | int:
        own = self.resources or _Resources()
        return (own.requests or {}).get(name, (own.limits or {}).get(name, 0))

    def limit(self, name: str) -> str | int | None:
        return ((self.resources.limits if self.resources else None) or {}).get(name)


class _Spec(msgspec.Struct, rename="camel"):
    containers: list[_Container] | None = None
    init_containers: list[_Container] | None = None


class _Pod(msgspec.Struct):
    spec: _Spec | None = None


def tasks_of_objects(found: Iterator[Found], *, file: str) -> Iterator[Task]:
    seen: set[str] = set()
    count = 0
    for each in found:
        if each.kind != "Pod":
            continue
        count += 1
        pod = pod_from(each.read(PodObject), ResourceNames())
        if pod.api_uid not in seen:
            yield _task(each, pod)
        if pod.api_uid:
            seen.add(pod.api_uid)
    if not count:
        raise ParseError(f"{file} holds no object of kind Pod")


def _task(found: Found, pod: Pod) -> Task:
    spec = found.read(_Pod).spec or _Spec()
    try:
        return task(pod_request(pod if pod.is_gpu else _with_plain(pod, spec)), _needs(spec))
    except VcudaError as error:
        raise ParseError(f"{found.where}: {error.message}") from None


def _with_plain(pod: Pod, spec: _Spec) -> Pod:
    """Whole GPUs as the plain device plugin counts them."""
    written = [*(spec.init_containers or ()), *(spec.containers or ())]
    counts = [_plain(each) for each in written]
    own = zip(pod.containers, counts, strict=True)
    return replace(pod, containers=tuple(replace(each, cores=count * CORES_PER_GPU) for each, count in own))


def _plain(container: _Container) -> int:
    if foreign := [name for name in _FOREIGN_SHARES if container.limit(name) is not None]:
        raise ParseError(f"{foreign[0]} is translated when a pod is created; take pods from a cluster with the webhook")
    return parse_quantity(container.limit(_PLAIN) or 0)


def _needs(spec: _Spec) -> Spare:
    """The larger of what runs in the end and of each init container beside the sidecars that run by then."""
    sidecars, most = (0, 0), (0, 0)
    for each in spec.init_containers or ():
        own = _amounts(each)
        beside = (sidecars[0] + own[0], sidecars[1] + own[1])
        most = (max(most[0], beside[0]), max(most[1], beside[1]))
        if each.restart_policy == "Always":
            sidecars = beside
    apps = _sum([_amounts(each) for each in spec.containers or ()])
    return Spare(max(most[0], sidecars[0] + apps[0]), max(most[1], sidecars[1] + apps[1]))


def _amounts(container: _Container) -> tuple[int, int]:
    """Thousandths of a CPU and MiB, rounded up."""
    cpu, memory = exact_quantity(container.amount("cpu")), exact_quantity(container.amount("memory"))
    return -int(-cpu * 1000 // 1), -int(-memory / MIB // 1)


def _sum(amounts: Sequence[tuple[int, int]]) -> tuple[int, int]:
    return sum(cpu for cpu, _ in amounts), sum(memory for _, memory in amounts)
