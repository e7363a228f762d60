"""Writes one Binding, and finds out what has become of it.

In: what was committed for a pod, and the annotations that say so. Out: an empty string where the pod is bound, or the
sentence for its condition; the books say the same. A failure is followed by a look at the pod: it may be bound all the
same. Where even that leaves it open, `Unconfirmed` holds what was committed.
"""

from collections.abc import Mapping
from typing import Protocol

import structlog

from deviceplugin.cluster.extender.bind.unconfirmed import PodApi, Unconfirmed
from deviceplugin.cluster.extender.wire import BindOrder
from deviceplugin.errors import KubeError, KubeNotFoundError, VcudaError
from deviceplugin.model.allocation import PodRef

log = structlog.get_logger("vcuda.cluster")
_TIMED_OUT = 408


class Api(PodApi, Protocol):
    """What bind needs of the API server."""

    async def bind(self, pod: PodRef, node: str, annotations: Mapping[str, str]) -> None: ...


class CarryOut:
    """The only writer of the extender's pods."""

    def __init__(self, api: Api, unconfirmed: Unconfirmed) -> None:
        self._api = api
        self._unconfirmed = unconfirmed

    async def write(self, order: BindOrder, annotations: Mapping[str, str]) -> str:
        """However it ends, what is committed now has somebody who looks after it."""
        try:
            said = await self._write(order, annotations)
        except BaseException:
            self._unconfirmed.doubt(order.pod, order.node)
            raise
        return said

    async def _write(self, order: BindOrder, annotations: Mapping[str, str]) -> str:
        try:
            await self._api.bind(order.pod, order.node, annotations)
        except VcudaError as error:
            return await self._look(order, error)
        if self._unconfirmed.is_committed(order.pod.uid, order.node):  # else the watch was faster
            self._unconfirmed.expect(order.pod)
        return ""

    async def _look(self, order: BindOrder, error: VcudaError) -> str:
        """After a failure: is the pod bound all the same?"""
        log.warning("a Binding failed", pod=str(order.pod), node=order.node, cause=error.message)
        try:
            found = await self._api.get_pod(order.pod)
        except KubeNotFoundError:
            self._unconfirmed.gone(order.pod)
            return error.message
        except VcudaError:
            self._unconfirmed.doubt(order.pod, order.node)
            return error.message
        if found.node or found.is_terminal:
            self._unconfirmed.found(found)
        elif _is_final(error):
            self._unconfirmed.refused(order.pod, order.node)
        else:
            self._unconfirmed.doubt(order.pod, order.node)
        if found.node == order.node:
            return ""
        return f"pod {order.pod} is bound to node {found.node} already" if found.node else error.message


def _is_final(error: VcudaError) -> bool:
    """The API server has refused: this Binding will not be carried out later."""
    return isinstance(error, KubeError) and 400 <= error.code < 500 and error.code != _TIMED_OUT
