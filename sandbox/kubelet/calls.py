"""Every message that went to a plugin, in order: what its users look at.

In: each RPC as it is made. Out: `Call` records with request, answer or error, and times. Also here: how Go prints a
gRPC error, because kubelet pastes that text into the pod's status.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any

import grpc

CLOSING = "rpc error: code = Canceled desc = grpc: the client connection is closing"
Message = Any  # a protobuf message; the generated code is not typed here


@dataclass(frozen=True, slots=True)
class Call:
    """One RPC; `uid` and `container` say for whom, which the plugin never learns."""

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

    def __init__(self, changed: Callable[[], None]) -> None:
        self._changed = changed
        self._calls: list[Call] = []
        self._open: list[tuple[str, str]] = []

    def of(self, method: str, *, uid: str | None = None) -> tuple[Call, ...]:
        return tuple(call for call in self._calls if call.method == method and uid in (None, call.uid))

    @property
    def all(self) -> tuple[Call, ...]:
        return tuple(self._calls)

    def open(self, method: str) -> tuple[str, ...]:
        """UIDs of the pods for which the plugin has not answered such a call yet."""
        return tuple(uid for name, uid in self._open if name == method)

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
        self._changed()
        response, error = None, ""
        try:
            response = await rpc(request)
        except grpc.aio.AioRpcError as failure:
            error = go_text(failure)
            raise PluginError(error) from failure
        except asyncio.CancelledError as failure:
            if _is_cancelled():
                error = "not answered: kubelet died"
                raise
            error = CLOSING
            raise PluginError(error) from failure
        except BaseException as failure:
            error = f"not answered: {type(failure).__name__}"
            raise
        finally:
            ended = time.monotonic()
            self._open.remove((method, uid))
            self._calls.append(Call(method, resource, uid, container, request, response, error, started, ended))
        return response


def _is_cancelled() -> bool:
    """Whether this task was cancelled, rather than the call: grpc.aio says both in the same way."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def go_text(error: grpc.aio.AioRpcError) -> str:
    """`rpc error: code = ResourceExhausted desc = ...`, as grpc-go prints it."""
    words = error.code().name.split("_")
    code = "Canceled" if words == ["CANCELLED"] else "".join(word.capitalize() for word in words)
    return f"rpc error: code = {code} desc = {error.details()}"


def quoted(words: Iterable[str]) -> str:
    """A list as Go's `%q` prints it."""
    return "[" + " ".join(f'"{word}"' for word in words) + "]"
