"""What an evaluator answers to `place`: its choice, why, and why each other candidate comes after it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from deviceplugin.model.gpu import GpuUuid
from deviceplugin.placement.snapshot import GpuView


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
