"""Writes one Binding and finds out its result.

In: an assumed pod. Out: an empty string if the pod is bound, or the sentence for its condition; the cache then says the
same. The annotations of a Binding have gpu-manager's forms and vcuda's; the node's agent applies exactly these. After a
failure the pod is read, because it may be bound all the same. Where that leaves the result open, `UnconfirmedBindings`
keeps the pod's GPUs.
"""

from collections.abc import Mapping
from typing import Protocol

import structlog

from deviceplugin.cluster.extender.bind.unconfirmed import PodApi, UnconfirmedBindings
from deviceplugin.cluster.extender.cache.pod_hold import PodHold
from deviceplugin.cluster.extender.wire import BindingArgs
from deviceplugin.errors import KubeError, KubeNotFoundError, VcudaError
from deviceplugin.model import annotations as text
from deviceplugin.model.allocation import ContainerRole, PodRef
from deviceplugin.model.annotation_names import annotation_names
from deviceplugin.model.gpu import Inventory
from deviceplugin.model.units import ResourceNames

log = structlog.get_logger("vcuda.cluster")
_TIMED_OUT = 408


class BindApi(PodApi, Protocol):
    """What bind needs of the API server."""

    async def bind(self, pod: PodRef, node: str, annotations: Mapping[str, str]) -> None: ...


class BindingWriter:
    """The only writer of the extender's pods."""

    def __init__(self, api: BindApi, unconfirmed: UnconfirmedBindings) -> None:
        self._api = api
        self._unconfirmed = unconfirmed

    async def write(self, order: BindingArgs, annotations: Mapping[str, str]) -> str:
        """However it ends, the assumed pod is bound, released or handed to `UnconfirmedBindings`."""
        try:
            return await self._write(order, annotations)
        except BaseException:
            self._unconfirmed.mark_uncertain(order.pod, order.node)
            raise

    async def _write(self, order: BindingArgs, annotations: Mapping[str, str]) -> str:
        try:
            await self._api.bind(order.pod, order.node, annotations)
        except VcudaError as error:
            return await self._read_result(order, error)
        if self._unconfirmed.is_assumed(order.pod.uid, order.node):  # else the watch was faster
            self._unconfirmed.await_watch(order.pod)
        return ""

    async def _read_result(self, order: BindingArgs, error: VcudaError) -> str:
        """After a failure: is the pod bound all the same?"""
        log.warning("bind_failed", pod=str(order.pod), node=order.node, error=error.message)
        try:
            found = await self._api.get_pod(order.pod)
        except KubeNotFoundError:
            self._unconfirmed.deleted(order.pod)
            return error.message
        except VcudaError:
            self._unconfirmed.mark_uncertain(order.pod, order.node)
            return error.message
        if found.node or found.is_terminal:
            self._unconfirmed.read(found)
        elif _is_final(error):
            self._unconfirmed.rejected(order.pod, order.node)
        else:
            self._unconfirmed.mark_uncertain(order.pod, order.node)
        if found.node == order.node:
            return ""
        return f"pod {order.pod} is already bound to node {found.node}" if found.node else error.message


def _is_final(error: VcudaError) -> bool:
    """The API server has rejected the request: this Binding will not take effect later."""
    return isinstance(error, KubeError) and 400 <= error.code < 500 and error.code != _TIMED_OUT


def binding_annotations(
    held: PodHold, inventory: Inventory | None, *, now_ns: int, names: ResourceNames
) -> dict[str, str]:
    """GPU indices are written for app containers only: that is what they count."""
    known = annotation_names(names.domain)
    shares = {each.owner.name: each.shares for each in held.allocations}
    out = {
        known.predicate_time: str(now_ns),
        known.predicate_node: held.node,
        known.gpu_assigned: "false",
        known.allocation: text.format_allocation(text.PodAllocation(held.pod.uid, shares)),
    }
    minors = {gpu.uuid: gpu.minor for gpu in inventory.gpus} if inventory else {}
    for each in held.allocations:
        indices = sorted(minors[uuid] for uuid in each.uuids if uuid in minors)
        if each.role is ContainerRole.APP and indices:
            out[known.gpu_indices(each.index)] = text.format_gpu_indices(indices)
    return out
