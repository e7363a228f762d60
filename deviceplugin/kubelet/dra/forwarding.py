"""Gives kubelet's calls to the agent that still serves the node, while this one waits for its end.

In: calls, the sockets of other agents of the node. Out: the other's answer, or None where none answers any more.
Invariant: a call is forwarded once: two agents that both wait do not send it to and fro.
"""

from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

import grpc

from deviceplugin.wire import dra_pb2_grpc as rpc

_FORWARDED = ("vcuda-forwarded", "1")
Context = grpc.aio.ServicerContext[Any, Any]
Answer = TypeVar("Answer")
Method = Callable[..., Awaitable[Answer]]


class Forwarding:
    """`others` lists the sockets as they are now."""

    def __init__(self, others: Callable[[], Iterable[Path]]) -> None:
        self._others = others

    async def answer(
        self, method: Callable[[rpc.DRAPluginStub], Method[Answer]], request: object, context: Context
    ) -> Answer | None:
        if _FORWARDED in (context.invocation_metadata() or ()):
            await context.abort(grpc.StatusCode.UNAVAILABLE, "this agent does not serve yet")
        for path in self._others():
            async with grpc.aio.insecure_channel(f"unix:{path}") as channel:
                call = method(rpc.DRAPluginStub(channel))
                try:
                    return await call(request, metadata=(_FORWARDED,), timeout=context.time_remaining())
                except grpc.aio.AioRpcError:
                    continue  # killed, ended just now, or waiting itself
        return None
