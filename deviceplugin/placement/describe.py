"""Sentences about placement: lists of GPUs, requests, and why there is no room.

In: values. Out: text for people, one line each, short on a node of 64 GPUs too.
"""

from collections import Counter
from collections.abc import Iterable
from functools import lru_cache

from deviceplugin.model.request import Request
from deviceplugin.model.topology import Level
from deviceplugin.model.units import CORES_PER_GPU, memory_of, memory_text
from deviceplugin.placement.candidates import Survey
from deviceplugin.placement.fit import GpuRejection
from deviceplugin.placement.snapshot import GpuView

_LONGEST_LIST = 8


def gpus_text(minors: Iterable[int]) -> str:
    """`GPU 3`, `GPUs 0-3 and 5`; runs are folded, and a list of many runs is cut."""
    return _gpus_text(tuple(sorted(set(minors))))


@lru_cache(1024)  # the same few sets come again and again; the text depends on nothing else
def _gpus_text(numbers: tuple[int, ...]) -> str:
    found = _runs(numbers)
    shown = [_run_text(*run) for run in found[:_LONGEST_LIST]]
    if hidden := sum(last - first + 1 for first, last in found[_LONGEST_LIST:]):
        shown.append(f"{hidden} more")
    return f"GPU{'' if len(numbers) == 1 else 's'} {listed(shown)}"


def numbers_text(numbers: Iterable[int]) -> str:
    """`0-3,5`: the same runs without words, all of them."""
    return ",".join(_run_text(*run) for run in _runs(tuple(sorted(set(numbers)))))


def _run_text(first: int, last: int) -> str:
    return str(first) if first == last else f"{first}-{last}"


def _runs(numbers: tuple[int, ...]) -> list[tuple[int, int]]:
    """First and last of each run of three or more; shorter ones number by number."""
    runs: list[tuple[int, int]] = []
    for number in numbers:
        if runs and runs[-1][1] == number - 1 and (runs[-1][0] < number - 1 or number + 1 in numbers):
            runs[-1] = (runs[-1][0], number)
        else:
            runs.append((number, number))
    return runs


def listed(parts: list[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    return " and ".join(filter(None, [", ".join(parts[:-1]), parts[-1]])) if parts else ""


def level_text(level: Level | None) -> str:
    if level is None:
        return "no common level"
    return "NVLink" if level is Level.NVLINK else level.name


def request_text(request: Request) -> str:
    """What was asked: `30 cores and 2 GiB of one GPU`, `4 whole GPUs with 10 GiB each`."""
    if request.is_share:
        where = "one GPU" if request.gpus == 1 else f"each of {request.gpus} GPUs"
        return f"{request.cores_per_gpu} cores and {memory_text(request.blocks_per_gpu)} of {where}"
    gpus = "1 whole GPU" if request.gpus == 1 else f"{request.gpus} whole GPUs"
    if not request.blocks:
        return gpus
    return f"{gpus} with {memory_text(request.blocks_per_gpu)}{'' if request.gpus == 1 else ' each'}"


def rejection_text(rejection: GpuRejection, view: GpuView) -> str:
    """What speaks against this one GPU."""
    match rejection:
        case GpuRejection.UNHEALTHY:
            return f"unavailable: {view.health.reason}" if view.health.reason else "unhealthy"
        case GpuRejection.SMALL:
            return f"too small: {memory_text(view.gpu.blocks)} in all"
        case GpuRejection.IN_USE:
            return f"partly allocated: {_allocated_text(view)}"
        case GpuRejection.CORES:
            return f"only {view.free_cores} cores free"
        case GpuRejection.MEMORY:
            return f"only {memory_text(view.free_blocks)} free"
        case _:
            return str(rejection.value)


def _allocated_text(view: GpuView) -> str:
    memory = memory_of(view.gpu.blocks - view.free_blocks, view.gpu.blocks)
    return f"{CORES_PER_GPU - view.free_cores} of {CORES_PER_GPU} cores, {memory}"


def no_room(request: Request, survey: Survey, *, one_numa: bool = False, hopeless: bool = False) -> str:
    """The sentence of a CapacityError: what was asked, what is free if, what to do.

    `hopeless`: the pod of this container would not fit on the empty node either. To wait is advised only if the end
    of a pod can help.
    """
    apart = one_numa and request.gpus > _most_on_one_numa(survey)
    fitting = [view.gpu.minor for view in survey.candidates.views]
    if not fitting and not survey.rejected:
        return f"{request_text(request)} asked, but this node has no GPU; ask on a node that has one"
    if len(fitting) >= request.gpus:
        return (
            f"{request_text(request)} on one NUMA node asked, but {gpus_text(fitting)}, which fit, are on several; "
            f"ask for fewer GPUs{' ' if hopeless or apart else ', wait until a pod ends, '}or let the GPUs be on "
            "several NUMA nodes"
        )
    found = [f"only {gpus_text(fitting)} {_is(len(fitting))} free"] if fitting else []
    found += [_counted(rejection, survey) for rejection in GpuRejection if _blocked_by(rejection, survey)]
    advice = "let the GPUs be on several NUMA nodes" if apart else _advice(request, survey, hopeless)
    return f"{request_text(request)} asked, but {listed(found)}; {advice}"


def _most_on_one_numa(survey: Survey) -> int:
    """Of the GPUs that fit, or will when pods end. GPUs whose NUMA node is not known count as one node."""
    views = [*survey.candidates.views, *(view for view, rejection in survey.rejected if rejection.resolvable)]
    return max(Counter(view.gpu.numa for view in views).values(), default=0)


def _blocked_by(rejection: GpuRejection, survey: Survey) -> list[GpuView]:
    return [view for view, found in survey.rejected if found is rejection]


def _counted(rejection: GpuRejection, survey: Survey) -> str:
    views = _blocked_by(rejection, survey)
    text = f"{gpus_text(view.gpu.minor for view in views)} {_is(len(views))} {rejection.value}"
    if rejection is GpuRejection.CORES:
        best = max(views, key=lambda view: view.free_cores)
        return f"{text} (at most {best.free_cores} free, on GPU {best.gpu.minor})"
    if rejection is GpuRejection.MEMORY:
        best = max(views, key=lambda view: view.free_blocks)
        return f"{text} (at most {memory_text(best.free_blocks)} free, on GPU {best.gpu.minor})"
    if rejection is GpuRejection.SMALL:
        return f"{text} (at most {memory_text(max(view.gpu.blocks for view in views))})"
    return text


def _advice(request: Request, survey: Survey, hopeless: bool) -> str:
    waiting = sum(rejection.resolvable for _, rejection in survey.rejected)
    fitting = len(survey.candidates.views)
    if fitting + waiting >= request.gpus:
        if hopeless:
            return "waiting does not help here, so ask for less for all its containers together or on another node"
        return "ask for less or wait until a pod ends"
    if fitting + waiting + len(_blocked_by(GpuRejection.CORDONED, survey)) >= request.gpus:
        return "ask for less, or have a GPU uncordoned"
    if _blocked_by(GpuRejection.UNWANTED, survey) or _blocked_by(GpuRejection.MODEL, survey):
        return "ask for less, let the pod use other GPUs too, or ask on another node"
    if fitting + waiting:
        return f"waiting does not help here, so ask for at most {fitting + waiting} GPU{_s(fitting + waiting)}"
    if any(rejection is GpuRejection.SMALL for _, rejection in survey.rejected):
        return "waiting does not help here, so ask for less memory or another node"
    return "ask on another node, or see why with nvidia-smi on this one"


def _s(count: int) -> str:
    return "" if count == 1 else "s"


def _is(count: int) -> str:
    return "is" if count == 1 else "are"
