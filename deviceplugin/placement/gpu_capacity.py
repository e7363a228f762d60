"""The GPUs of a node as bare numbers: what two nodes must have alike to be as good as each other for every pod.

In: a `NodeState`. Out: its `cards`, in an order of their own, without names, links and processes; a GPU that takes no
work at all is not among them. And the same cards after a pod, as the GPU policy would take them. Exact for a pod of one
container on GPUs of one size, but for a share over several GPUs that shall be close, since cards know no links; for
others an estimate, which orders nodes and decides nothing.
"""

import operator
from collections.abc import Sequence
from typing import NamedTuple

from deviceplugin.model.gpu import ComputeMode
from deviceplugin.model.pod_request import PodRequest
from deviceplugin.model.preferences import GpuPolicy
from deviceplugin.model.request import RequestKind
from deviceplugin.model.units import CORES_PER_GPU
from deviceplugin.placement.node_state import NodeState
from deviceplugin.placement.snapshot import GpuView


class GpuModel(NamedTuple):
    """What stays of a GPU whoever uses it; `whole_only`: it is never shared."""

    model: str
    blocks: int
    whole_only: bool = False


class GpuCapacity(NamedTuple):
    """One GPU with what is free on it."""

    kind: GpuModel
    cores: int
    blocks: int


Capacities = tuple[GpuCapacity, ...]


def capacities_of(state: NodeState) -> Capacities:
    """Sorted, so that nodes that are alike have equal cards."""
    return tuple(
        sorted(
            GpuCapacity(_kind(view, state.share_mode), view.free_cores, view.free_blocks)
            for view in state.open_gpus.views
        )
    )


def _kind(view: GpuView, share_mode: bool) -> GpuModel:
    gpu = view.gpu
    whole_only = not share_mode or gpu.compute_mode is ComputeMode.EXCLUSIVE_PROCESS
    return GpuModel(gpu.model, gpu.blocks, whole_only)


def capacities_after(pod: PodRequest, cards: Capacities, policy: GpuPolicy) -> Capacities | None:
    """What is left beside the pod; None where one container after the other does not fit."""
    return CapacityAfter(pod, policy)(cards)


class _Asked(NamedTuple):
    """What one container takes of each of so many GPUs."""

    gpus: int
    is_share: bool
    cores: int
    blocks: int

    def fits(self, cards: Capacities) -> list[GpuCapacity]:
        if self.is_share:
            cores, blocks = self.cores, self.blocks
            return [card for card in cards if card.cores >= cores and card.blocks >= blocks and not card[0].whole_only]
        return [card for card in cards if card.cores == CORES_PER_GPU and card.blocks == card[0].blocks >= self.blocks]

    def less(self, card: GpuCapacity) -> GpuCapacity:
        if not self.is_share:
            return GpuCapacity(card.kind, 0, 0)
        return GpuCapacity(card.kind, card.cores - self.cores, card.blocks - self.blocks)


class CapacityAfter:
    """`capacities_after` for one pod, for whoever asks it of many nodes."""

    def __init__(self, pod: PodRequest, policy: GpuPolicy) -> None:
        requests = [container.request for container in pod.containers]
        self._asked = [
            _Asked(each.gpus, each.kind is RequestKind.SHARE, each.cores_per_gpu, each.blocks_per_gpu)
            for each in requests
        ]
        wanted = pod.preferences.gpus
        self._wanted = wanted if wanted.models or wanted.not_models else None
        self._spreads = policy is GpuPolicy.SPREAD

    def __call__(self, cards: Capacities) -> Capacities | None:
        for asked in self._asked:
            left = self._after_one(asked, cards)
            if left is None:
                return None
            cards = left
        return cards

    def _after_one(self, asked: _Asked, cards: Capacities) -> Capacities | None:
        found = asked.fits(cards)
        if self._wanted is not None:
            found = [card for card in found if self._wanted.admits_model(card.kind.model)]
        if len(found) < asked.gpus:
            return None
        if len(found) > asked.gpus:
            found.sort(key=_FREE, reverse=self._spreads and asked.is_share)
        left = list(cards)
        for card in found[: asked.gpus]:
            left.remove(card)
            left.append(asked.less(card))
        left.sort()
        return tuple(left)


_FREE = operator.itemgetter(1, 2)
"""Cores and blocks of a card."""


def free_cores(cards: Sequence[GpuCapacity]) -> int:
    return sum(card.cores for card in cards)
