"""`vcuda.sock`: gpu-manager's client as it is, malformed calls, many calls at once; one socket for each grant."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from pathlib import Path

import grpc
import pytest

from deviceplugin.container.gpu_manager.registration import MOST_CONNECTIONS, RegistrationServers
from deviceplugin.container.gpu_manager.registration_messages import RegistrationResult
from deviceplugin.ledger.grant import GrantId
from deviceplugin.wire import registration_pb2 as pb
from deviceplugin.wire import registration_pb2_grpc as rpc
from tests.cancelled_starts import cancel_at_each_turn

ONE, TWO = GrantId("g-0001"), GrantId("g-0002")
Handler = Callable[[GrantId, str], Awaitable[RegistrationResult]]
DONE = RegistrationResult(0)


class Calls:
    """Collects them; `handler` may be another one."""

    def __init__(self) -> None:
        self.got: list[tuple[GrantId, str]] = []
        self.handler: Handler | None = None

    async def __call__(self, grant: GrantId, name: str) -> RegistrationResult:
        self.got.append((grant, name))
        return DONE if self.handler is None else await self.handler(grant, name)


@pytest.fixture
def calls() -> Calls:
    return Calls()


@pytest.fixture
async def servers(short_tmp: Path, calls: Calls) -> AsyncIterator[RegistrationServers]:
    for grant in (ONE, TWO):
        (short_tmp / grant).mkdir()
    made = RegistrationServers(short_tmp, calls)
    yield made
    await made.serve(frozenset())


async def register(path: Path, **fields: str) -> None:
    """As gpu-client does it: without a deadline, any error is the end."""
    async with grpc.aio.insecure_channel(f"unix:{path}") as channel:
        await rpc.VCUDAServiceStub(channel).RegisterVDevice(pb.VDeviceRequest(**fields), timeout=60)


async def register_at_last(path: Path, **fields: str) -> None:
    """The server may see only after a while that the connections before have ended."""
    async with asyncio.timeout(60):
        while True:
            try:
                return await register(path, **fields)
            except grpc.aio.AioRpcError as error:
                if error.code() is not grpc.StatusCode.UNAVAILABLE:
                    raise
                await asyncio.sleep(0.05)


async def test_the_socket_says_which_grant_it_is(servers: RegistrationServers, calls: Calls) -> None:
    assert await servers.serve({ONE, TWO}) == {}
    await register(servers.path(TWO), pod_uid="another", container_id="id-2")
    await register(servers.path(ONE), pod_uid="another", container_id="id-1", container_name="x")
    await register(servers.path(ONE), container_name="main")
    await register(servers.path(ONE))
    assert calls.got == [(TWO, "id-2"), (ONE, "id-1"), (ONE, "main"), (ONE, "")]


async def test_the_wire_is_gpu_managers(servers: RegistrationServers, calls: Calls) -> None:
    await servers.serve({ONE})
    async with grpc.aio.insecure_channel(f"unix:{servers.path(ONE)}") as channel:
        call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(
            "/vcuda.VCUDAService/RegisterVDevice"
        )
        assert await call(b"\x0a\x00\x12\x03uid\x1a\x04name\x22\x02id", timeout=10) == b""
    assert calls.got == [(ONE, "id")]


async def test_any_user_may_connect(servers: RegistrationServers) -> None:
    await servers.serve({ONE})
    assert servers.path(ONE).stat().st_mode & 0o777 == 0o777


async def test_a_name_that_leads_elsewhere_is_refused(servers: RegistrationServers, calls: Calls) -> None:
    await servers.serve({ONE})
    codes = {}
    for name in ("..", ".", "../g-0002", "a/b", "/etc", "x" * 200, "a\nb", "\N{SNOWMAN}"):
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await register(servers.path(ONE), container_id=name)
        codes[name] = refused.value.code()
    assert codes == dict.fromkeys(codes, grpc.StatusCode.INVALID_ARGUMENT)
    assert calls.got == []


async def test_a_long_message_is_refused(servers: RegistrationServers, calls: Calls) -> None:
    await servers.serve({ONE})
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await register(servers.path(ONE), pod_uid="x" * 10_000)
    assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert calls.got == []


async def test_what_the_agent_answers_is_said(servers: RegistrationServers, calls: Calls) -> None:
    await servers.serve({ONE})

    async def full(grant: GrantId, name: str) -> RegistrationResult:
        return RegistrationResult(0, "UNAVAILABLE", "the disk is full; make room")

    calls.handler = full
    with pytest.raises(grpc.aio.AioRpcError, match="the disk is full; make room") as refused:
        await register(servers.path(ONE), container_id="id-1")
    assert refused.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_a_container_has_few_connections_and_another_one_its_own(
    servers: RegistrationServers, calls: Calls
) -> None:
    await servers.serve({ONE, TWO})
    held = [await asyncio.open_unix_connection(servers.path(ONE)) for _ in range(MOST_CONNECTIONS * 2)]
    try:
        async with asyncio.timeout(60):
            ends = [asyncio.create_task(ended(reader)) for reader, _ in held]
            await at_least(ends, MOST_CONNECTIONS)
        await register(servers.path(TWO), container_id="id-2")
    finally:
        for _, writer in held:
            writer.transport.abort()
    async with asyncio.timeout(60):
        await asyncio.wait(ends)
    await register_at_last(servers.path(ONE), container_id="id-1")
    assert calls.got == [(TWO, "id-2"), (ONE, "id-1")]


async def ended(reader: asyncio.StreamReader) -> None:
    """The server sends its settings first."""
    with contextlib.suppress(OSError):
        while await reader.read(1000):
            pass


async def at_least(tasks: Collection[asyncio.Task[None]], number: int) -> None:
    while sum(task.done() for task in tasks) < number:
        await asyncio.wait([task for task in tasks if not task.done()], return_when=asyncio.FIRST_COMPLETED)


async def test_a_registration_that_takes_too_long_is_ended(servers: RegistrationServers, calls: Calls) -> None:
    await servers.serve({ONE})

    async def hang(grant: GrantId, name: str) -> RegistrationResult:
        await asyncio.Event().wait()
        return DONE

    calls.handler = hang
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await register(servers.path(ONE), container_id="id-1")
    assert failed.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED


async def test_a_crowd_of_one_container_is_served_one_by_one(servers: RegistrationServers, calls: Calls) -> None:
    await servers.serve({ONE})
    at_once = most = 0

    async def count(grant: GrantId, name: str) -> RegistrationResult:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        await asyncio.sleep(0)
        at_once -= 1
        return DONE

    calls.handler = count
    await asyncio.gather(*(register(servers.path(ONE), container_id="id-1") for _ in range(6)))
    assert (len(calls.got), most) == (6, 1)


async def test_a_socket_that_a_killed_agent_left_is_taken_over(servers: RegistrationServers, calls: Calls) -> None:
    await servers.serve({ONE})
    stale = servers.path(ONE)
    await servers.serve(frozenset())
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(f"{stale}")  # closed without unlinking, as by a SIGKILL
    assert await servers.serve({ONE}) == {}
    await register(stale, container_id="id-1")
    assert calls.got == [(ONE, "id-1")]


async def test_a_closed_grant_answers_no_more(servers: RegistrationServers) -> None:
    await servers.serve({ONE})
    await servers.serve(frozenset())
    assert servers.open_grants == frozenset()
    with pytest.raises(grpc.aio.AioRpcError):
        await register(servers.path(ONE))


async def test_where_no_socket_can_be_there_is_none_and_the_others_are_served(
    servers: RegistrationServers, calls: Calls
) -> None:
    nowhere = GrantId("g-without-a-directory")
    failures = await servers.serve({ONE, nowhere})
    assert list(failures) == [nowhere]
    assert servers.open_grants == {ONE}
    await register(servers.path(ONE), container_id="id-1")
    assert calls.got == [(ONE, "id-1")]


async def test_a_server_whose_start_is_cancelled_ends_with_the_others(servers: RegistrationServers) -> None:
    await cancel_at_each_turn(lambda: servers.serve({ONE}), lambda: servers.serve(frozenset()))
