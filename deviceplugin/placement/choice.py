"""What placement answers: the GPUs, the evaluator that chose them, why, and why not the others."""

from dataclasses import dataclass

from deviceplugin.model.allocation import GpuShare
from deviceplugin.model.gpu import Gpu
from deviceplugin.model.request import RequestKind


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
