"""What placement answers: the GPUs, the evaluator that chose them, why, and why not the others.

In: a `Selection` is what an evaluator answers to `place`. Out: a `Choice` is what `place` answers.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from deviceplugin.model.allocation import GpuShare
from deviceplugin.model.gpu import Gpu, GpuUuid
from deviceplugin.model.request import RequestKind
from deviceplugin.placement.snapshot import GpuView


@dataclass(frozen=True, slots=True)
class PassedOver:
    """A GPU that was not chosen, and a phrase that says why."""

    gpu: Gpu
    reason: str


@dataclass(frozen=True, slots=True)
class Choice:
    """GPUs in minor order with what is taken of each; `reason` is one sentence for people and logs."""

    evaluator: RequestKind
    gpus: tuple[Gpu, ...]
    shares: tuple[GpuShare, ...]
    reason: str
    passed_over: tuple[PassedOver, ...] = ()


@dataclass(frozen=True, slots=True)
class Selection:
    """`chosen` in minor order; `against` has a phrase for each candidate that was not chosen."""

    chosen: tuple[GpuView, ...]
    reason: str
    against: Mapping[GpuUuid, str]


def first_difference(one: Sequence[object], other: Sequence[object]) -> int:
    """Where two keys of one order part; equal keys part behind their last place."""
    parted = (at for at, (a, b) in enumerate(zip(one, other, strict=True)) if a != b)
    return next(parted, len(one))
