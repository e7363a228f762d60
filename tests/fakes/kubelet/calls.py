"""Every message that went to a plugin, in order: what tests assert on.

In: each RPC as it is made. Out: `Call` records with request, answer or error, and times. Also here: how Go prints a
gRPC error, because kubelet pastes that text into the pod's status.
"""

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import grpc

Message = Any  # a protobuf message; the generated code is not typed here


@dataclass(frozen=True, slots=True)
class Call:
    """One RPC; `uid` and `container` say for whom, which the plugin is never told."""

    method: str
    resource: str
    uid: str
    container: str
    request: Message
    response: Message
    error: str
    started: float
    ended: float


class PluginError(Exception):
    """An RPC to a plugin failed; the text is the one that Go's gRPC would print."""


class CallLog:
    """Grows by one record for each finished RPC."""

    def __init__(self) -> None:
        self._calls: list[Call] = []
        self._open: list[tuple[str, str]] = []

    def of(self, method: str, *, uid: str | None = None) -> tuple[Call, ...]:
        return tuple(call for call in self._calls if call.method == method and uid in (None, call.uid))

    @property
    def all(self) -> tuple[Call, ...]:
        return tuple(self._calls)

    def open_methods(self) -> tuple[str, ...]:
        """Calls that the plugin has not answered yet."""
        return tuple(method for method, _ in self._open)

    def note(self, method: str, resource: str, error: str) -> None:
        """Records something that ended by itself, such as a stream."""
        now = time.monotonic()
        self._calls.append(Call(method, resource, "", "", None, None, error, now, now))

    async def record(
        self,
        rpc: Callable[[Message], Awaitable[Message]],
        request: Message,
        *,
        method: str,
        resource: str,
        uid: str = "",
        container: str = "",
    ) -> Message:
        """Makes the call and records it, failed or not; a failure is raised as PluginError."""
        started = time.monotonic()
        self._open.append((method, uid))
        response, error = None, ""
        try:
            response = await rpc(request)
        except grpc.aio.AioRpcError as failure:
            error = go_text(failure)
            raise PluginError(error) from failure
        except BaseException as failure:
            error = f"not answered: {type(failure).__name__}"
            raise
        finally:
            ended = time.monotonic()
            self._open.remove((method, uid))
            self._calls.append(Call(method, resource, uid, container, request, response, error, started, ended))
        return response


def go_text(error: grpc.aio.AioRpcError) -> str:
    """`rpc error: code = ResourceExhausted desc = ...`, as grpc-go prints it."""
    words = error.code().name.split("_")
    code = "Canceled" if words == ["CANCELLED"] else "".join(word.capitalize() for word in words)
    return f"rpc error: code = {code} desc = {error.details()}"
