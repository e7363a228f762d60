"""The GPUs of a node as bare numbers: what two nodes must have alike to be as good as each other for every pod.

In: a `NodeState`. Out: its `cards`, in an order of their own, without names, links and processes; a GPU that takes no
work at all is not among them. And the same cards after a pod, as the GPU policy would take them. Exact for a pod of one
container on GPUs of one size; for others an estimate, which orders nodes and decides nothing.
"""

from collections.abc import Sequence
from typing import NamedTuple

from deviceplugin.model.gpu import ComputeMode
from deviceplugin.model.pod_request import PodRequest
from deviceplugin.model.preferences import GpuFilter, GpuPolicy
from deviceplugin.model.request import Request, RequestKind
from deviceplugin.model.units import CORES_PER_GPU
from deviceplugin.placement.node_state import NodeState
from deviceplugin.placement.snapshot import GpuView


class Kind(NamedTuple):
    """What stays of a GPU whoever uses it; `whole_only`: it is never shared."""

    model: str
    blocks: int
    whole_only: bool = False


class Card(NamedTuple):
    """One GPU with what is free on it."""

    kind: Kind
    cores: int
    blocks: int

    @property
    def is_whole(self) -> bool:
        return self.cores >= CORES_PER_GPU and self.blocks >= self.kind.blocks


Cards = tuple[Card, ...]


def cards_of(state: NodeState) -> Cards:
    """Sorted, so that nodes that are alike have equal cards."""
    return tuple(
        sorted(Card(_kind(view, state.share_mode), view.free_cores, view.free_blocks) for view in state.open_gpus.views)
    )


def _kind(view: GpuView, share_mode: bool) -> Kind:
    gpu = view.gpu
    whole_only = not share_mode or gpu.compute_mode is ComputeMode.EXCLUSIVE_PROCESS
    return Kind(gpu.model, gpu.blocks, whole_only)


def after(pod: PodRequest, cards: Cards, policy: GpuPolicy) -> Cards | None:
    """What is left beside the pod; None where one container after the other does not fit."""
    left: Cards | None = cards
    for container in pod.containers:
        if left is None:
            return None
        left = _after_one(container.request, left, pod.preferences.gpus, policy)
    return left


def _after_one(request: Request, cards: Cards, wanted: GpuFilter, policy: GpuPolicy) -> Cards | None:
    is_share = request.kind is RequestKind.SHARE
    found = [card for card in cards if (_has_share if is_share else _has_whole)(card, request)]
    if wanted.models or wanted.not_models:
        found = [card for card in found if wanted.admits_model(card.kind.model)]
    if len(found) < request.gpus:
        return None
    if len(found) > request.gpus:
        found.sort(key=_free, reverse=policy is GpuPolicy.SPREAD and is_share)
    left = list(cards)
    for card in found[: request.gpus]:
        left.remove(card)
        left.append(_less(card, request) if is_share else Card(card.kind, 0, 0))
    left.sort()
    return tuple(left)


def _has_share(card: Card, request: Request) -> bool:
    return card.cores >= request.cores_per_gpu and card.blocks >= request.blocks_per_gpu and not card.kind.whole_only


def _has_whole(card: Card, request: Request) -> bool:
    return card.is_whole and card.blocks >= request.blocks_per_gpu


def _free(card: Card) -> tuple[int, int]:
    return (card.cores, card.blocks)


def _less(card: Card, request: Request) -> Card:
    return Card(card.kind, card.cores - request.cores_per_gpu, card.blocks - request.blocks_per_gpu)


def free_cores(cards: Sequence[Card]) -> int:
    return sum(card.cores for card in cards)
