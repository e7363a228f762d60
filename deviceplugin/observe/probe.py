"""Whether our own gRPC servers answer: the question behind `/healthz`.

In: the sockets that should answer. Out: a phrase for each that does not. A real call over a real connection, because a
socket file says nothing about the server behind it. A sick GPU or an absent kubelet is no reason to be restarted, so
neither is looked at here.
"""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import grpc

from deviceplugin.wire import deviceplugin_pb2 as pb
from deviceplugin.wire import deviceplugin_pb2_grpc as rpc

_DEADLINE_S = 1.0


async def silent(sockets: Sequence[Path]) -> tuple[str, ...]:
    """One phrase for each socket that gives no answer within a second."""
    phrases = await asyncio.gather(*(_ask(socket) for socket in sockets))
    return tuple(phrase for phrase in phrases if phrase)


async def _ask(socket: Path) -> str:
    async with grpc.aio.insecure_channel(f"unix:{socket}") as channel:
        try:
            await rpc.DevicePluginStub(channel).GetDevicePluginOptions(pb.Empty(), timeout=_DEADLINE_S)
        except grpc.aio.AioRpcError as error:
            return f"the device plugin on {socket} does not answer ({error.code().name.lower()})"
    return ""
