"""`vcuda.sock`: gpu-manager's client as it is, malformed calls, many calls at once; one socket for each grant."""

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import grpc
import pytest

from deviceplugin.container.gpu_manager.registration import RegistrationServers
from deviceplugin.errors import ContainerError
from deviceplugin.ledger.grant import GrantId
from deviceplugin.wire import registration_pb2 as pb
from deviceplugin.wire import registration_pb2_grpc as rpc

ONE, TWO = GrantId("g-0001"), GrantId("g-0002")
Handler = Callable[[GrantId, str], Awaitable[None]]


class Calls:
    """Collects them; `handler` may be another one."""

    def __init__(self) -> None:
        self.got: list[tuple[GrantId, str]] = []
        self.handler: Handler | None = None

    async def __call__(self, grant: GrantId, name: str) -> None:
        self.got.append((grant, name))
        if self.handler is not None:
            await self.handler(grant, name)


@pytest.fixture
def calls() -> Calls:
    return Calls()


@pytest.fixture
async def servers(short_tmp: Path, calls: Calls) -> AsyncIterator[RegistrationServers]:
    for grant in (ONE, TWO):
        (short_tmp / grant).mkdir()
    made = RegistrationServers(short_tmp, calls)
    yield made
    await made.close_all()


async def register(path: Path, **fields: str) -> None:
    """As gpu-client does it: without a deadline, any error is the end."""
    async with grpc.aio.insecure_channel(f"unix:{path}") as channel:
        await rpc.VCUDAServiceStub(channel).RegisterVDevice(pb.VDeviceRequest(**fields), timeout=10)


async def test_the_socket_says_which_grant_it_is(servers: RegistrationServers, calls: Calls) -> None:
    assert await servers.open(ONE)
    assert await servers.open(TWO)
    await register(servers.path(TWO), pod_uid="whoever", container_id="id-2")
    await register(servers.path(ONE), pod_uid="whoever", container_id="id-1", container_name="x")
    await register(servers.path(ONE), container_name="main")
    await register(servers.path(ONE))
    assert calls.got == [(TWO, "id-2"), (ONE, "id-1"), (ONE, "main"), (ONE, "")]


async def test_the_wire_is_gpu_managers(servers: RegistrationServers, calls: Calls) -> None:
    await servers.open(ONE)
    async with grpc.aio.insecure_channel(f"unix:{servers.path(ONE)}") as channel:
        call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(
            "/vcuda.VCUDAService/RegisterVDevice"
        )
        assert await call(b"\x0a\x00\x12\x03uid\x1a\x04name\x22\x02id", timeout=10) == b""
    assert calls.got == [(ONE, "id")]


async def test_any_user_may_connect(servers: RegistrationServers) -> None:
    await servers.open(ONE)
    assert servers.path(ONE).stat().st_mode & 0o777 == 0o777


@pytest.mark.parametrize("name", ["..", ".", "../g-0002", "a/b", "/etc", "x" * 200, "a\nb", "\N{SNOWMAN}"])
async def test_a_name_that_leads_elsewhere_is_refused(servers: RegistrationServers, calls: Calls, name: str) -> None:
    await servers.open(ONE)
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await register(servers.path(ONE), container_id=name)
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert calls.got == []


async def test_a_long_message_is_refused(servers: RegistrationServers, calls: Calls) -> None:
    await servers.open(ONE)
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await register(servers.path(ONE), pod_uid="x" * 10_000)
    assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert calls.got == []


async def test_what_goes_wrong_inside_is_a_sentence_without_a_traceback(
    servers: RegistrationServers, calls: Calls
) -> None:
    await servers.open(ONE)

    async def full(grant: GrantId, name: str) -> None:
        raise ContainerError("the disk is full; make room")

    async def broken(grant: GrantId, name: str) -> None:
        raise ZeroDivisionError("secret")

    calls.handler = full
    with pytest.raises(grpc.aio.AioRpcError, match="the disk is full; make room"):
        await register(servers.path(ONE), container_id="id-1")
    calls.handler = broken
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await register(servers.path(ONE), container_id="id-1")
    assert failed.value.code() is grpc.StatusCode.INTERNAL
    assert "secret" not in str(failed.value.details())


async def test_a_registration_that_takes_too_long_is_ended(servers: RegistrationServers, calls: Calls) -> None:
    await servers.open(ONE)

    async def hang(grant: GrantId, name: str) -> None:
        await asyncio.Event().wait()

    calls.handler = hang
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await register(servers.path(ONE), container_id="id-1")
    assert failed.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED


async def test_a_crowd_of_one_container_is_served_one_by_one(servers: RegistrationServers, calls: Calls) -> None:
    await servers.open(ONE)
    at_once = most = 0

    async def count(grant: GrantId, name: str) -> None:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        await asyncio.sleep(0)
        at_once -= 1

    calls.handler = count
    await asyncio.gather(*(register(servers.path(ONE), container_id="id-1") for _ in range(6)))
    assert (len(calls.got), most) == (6, 1)


async def test_a_socket_that_a_killed_agent_left_is_taken_over(servers: RegistrationServers, calls: Calls) -> None:
    await servers.open(ONE)
    stale = servers.path(ONE)
    await servers.close(ONE)
    listener = await asyncio.start_unix_server(lambda reader, writer: None, stale)
    listener.close()
    assert stale.exists(), "as after a SIGKILL"
    assert await servers.open(ONE)
    await register(stale, container_id="id-1")
    assert calls.got == [(ONE, "id-1")]


async def test_a_closed_grant_answers_no_more(servers: RegistrationServers) -> None:
    await servers.open(ONE)
    await servers.close(ONE)
    await servers.close(ONE)
    assert servers.open_grants == frozenset()
    with pytest.raises(grpc.aio.AioRpcError):
        await register(servers.path(ONE))


async def test_where_no_socket_can_be_there_is_none(short_tmp: Path, servers: RegistrationServers) -> None:
    deep = RegistrationServers(short_tmp / ("d" * (108 - len(os.fsencode(short_tmp)))), Calls())
    assert not await deep.open(ONE)
    assert not await servers.open(GrantId("g-without-a-directory"))
