"""`vcuda.sock`: gpu-manager's client as it is, malformed calls, many calls at once; one socket for each grant."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable
from pathlib import Path

import grpc
import pytest

from deviceplugin.errors import ContainerError
from deviceplugin.gpu_manager.registration import FEW, MOST_CONNECTIONS, MOST_OF_POD, RegistrationServers
from deviceplugin.ledger.grant import GrantId
from deviceplugin.wire import registration_pb2 as pb
from deviceplugin.wire import registration_pb2_grpc as rpc
from tests.waiting import until

ONE, TWO = GrantId("g-0001"), GrantId("g-0002")
Handler = Callable[[GrantId, str], Awaitable[None]]


class Calls:
    """Collects them; `handler` may be another one."""

    def __init__(self) -> None:
        self.got: list[tuple[GrantId, str]] = []
        self.handler: Handler | None = None
        self.refused: list[tuple[GrantId, str]] = []

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
    made = RegistrationServers(short_tmp, calls, lambda grant, why: calls.refused.append((grant, why)))
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
    assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
    assert calls.got == []
    assert calls.refused == [(ONE, "a frame has 10008 bytes")]


async def test_what_goes_wrong_inside_is_a_sentence_without_a_traceback(
    servers: RegistrationServers, calls: Calls
) -> None:
    async def full(grant: GrantId, name: str) -> None:
        raise ContainerError("the disk of caf\u00e9 is 100 % full; make room")

    async def broken(grant: GrantId, name: str) -> None:
        raise ZeroDivisionError("secret")

    async def hang(grant: GrantId, name: str) -> None:
        await asyncio.Event().wait()

    await servers.serve({ONE})
    said = {}
    for handler in (full, broken, hang):
        calls.handler = handler
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await register(servers.path(ONE), container_id="id-1")
        said[failed.value.code()] = str(failed.value.details())
    assert said[grpc.StatusCode.UNAVAILABLE] == "the disk of caf\u00e9 is 100 % full; make room"
    assert "secret" not in said[grpc.StatusCode.INTERNAL]
    assert "try again" in said[grpc.StatusCode.DEADLINE_EXCEEDED]


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


async def test_a_crowd_of_one_container_is_served_one_by_one(servers: RegistrationServers, calls: Calls) -> None:
    await servers.serve({ONE})
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


PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


def frame(kind: int, payload: bytes, *, stream: int = 1, flags: int = 0) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


HELLO = PREFACE + frame(4, b"", stream=0)
CALL = frame(1, b"\x82", flags=4)
GARBAGE = {
    "no HTTP/2": b"GET / HTTP/1.1\r\nHost: " + b"x" * 100,
    "headers without end": HELLO + frame(1, b"\x82") + frame(9, b"x" * 8000) * 20,
    "empty headers without end": HELLO + frame(1, b"\x82") + frame(9, b"") * 1000,
    "pings": HELLO + frame(6, bytes(8), stream=0) * 1000,
    "settings": HELLO + frame(4, b"", stream=0) * 1000,
    "resets": HELLO
    + b"".join(CALL[:5] + i.to_bytes(4, "big") + b"\x82" + frame(3, bytes(4), stream=i) for i in range(1, 9999, 2)),
    "streams": HELLO + b"".join(CALL[:5] + i.to_bytes(4, "big") + b"\x82" for i in range(1, 99, 2)),
    "a long frame": HELLO + b"\xff\xff\xff\0\0\0\0\0\1",
    "a long message": HELLO + CALL + frame(0, b"\0" + bytes(8000)),
    "a false length": HELLO + CALL + frame(0, b"\0\0\0\0\xffabc", flags=1),
    "compressed": HELLO + CALL + frame(0, b"\1\0\0\0\3abc", flags=1),
    "no protobuf": HELLO + CALL + frame(0, b"\0\0\0\0\3\xff\xff\xff", flags=1),
    "padding": HELLO + CALL + frame(0, b"\xff" * 9, flags=9),
    "no message": HELLO + frame(1, b"\x82", flags=5),
    "headers in headers": HELLO + frame(1, b"\x82") + frame(1, b"\x82", stream=3),
    "nothing more": HELLO,
}


@pytest.mark.parametrize("garbage", GARBAGE.values(), ids=GARBAGE)
async def test_garbage_ends_its_connection_and_the_others_go_on(
    servers: RegistrationServers, calls: Calls, garbage: bytes
) -> None:
    """Security A-5. The grant is named; another one's connections are served meanwhile."""
    await servers.serve({ONE, TWO})
    reader, writer = await asyncio.open_unix_connection(servers.path(ONE))
    writer.write(garbage)
    for _ in range(3):
        await register(servers.path(TWO), container_id="id-2")
    async with asyncio.timeout(60):
        await ended(reader)
    writer.transport.abort()
    await until(lambda: calls.refused != [])
    ((grant, why),) = calls.refused
    assert grant == ONE
    assert ("no whole call" in why) == (garbage == HELLO)
    assert calls.got == [(TWO, "id-2")] * 3
    await register_at_last(servers.path(ONE), container_id="id-1")


async def test_who_sends_garbage_waits_longer_and_others_do_not(servers: RegistrationServers, calls: Calls) -> None:
    """Counted: without a wait a thousand of them would be ended in that time."""
    await servers.serve({ONE, TWO})

    async def attack() -> None:
        while True:
            with contextlib.suppress(OSError):
                reader, writer = await asyncio.open_unix_connection(servers.path(ONE))
                try:
                    writer.write(GARBAGE["headers without end"])
                    await ended(reader)
                finally:
                    writer.transport.abort()
                    writer.close()
            await asyncio.sleep(0)

    attacks = [asyncio.create_task(attack()) for _ in range(12)]
    try:
        for _ in range(40):
            await register(servers.path(TWO), container_id="id-2")
    finally:
        for each in attacks:
            each.cancel()
        await asyncio.wait(attacks)
    assert calls.got == [(TWO, "id-2")] * 40
    assert 0 < len(calls.refused) < 30


async def test_a_request_may_come_in_any_pieces_and_several_on_one_connection(
    servers: RegistrationServers, calls: Calls
) -> None:
    """With padding, priorities, trailers of settings and headers in two parts, as HTTP/2 allows."""
    await servers.serve({ONE})
    reader, writer = await asyncio.open_unix_connection(servers.path(ONE))
    message = b"\0\0\0\0\x06\x22\x04id-1"
    sent = HELLO + frame(4, b"", stream=0, flags=1) + frame(8, b"\0\0\1\0", stream=0) + frame(2, bytes(5))
    for stream in (1, 3):
        sent += frame(1, b"\x82", stream=stream) + frame(9, b"\x84", stream=stream, flags=4)
        sent += frame(0, message[:3], stream=stream) + frame(0, b"\2" + message[3:] + bytes(2), stream=stream, flags=9)
    for at in range(len(sent)):
        writer.write(sent[at : at + 1])
        await asyncio.sleep(0)
    await until(lambda: calls.got == [(ONE, "id-1")] * 2)
    async with asyncio.timeout(60):
        answered = await reader.readuntil(b"grpc-status\x010")
    assert b"application/grpc" in answered
    writer.transport.abort()
    assert calls.refused == []


async def test_sockets_stay_when_the_agent_ends(servers: RegistrationServers) -> None:
    await servers.serve({ONE})
    await servers.close()
    assert servers.path(ONE).is_socket()


def call(name: str, *, stream: int = 1) -> bytes:
    message = pb.VDeviceRequest(container_id=name).SerializeToString()
    return frame(1, b"\x82", stream=stream, flags=4) + frame(
        0, b"\0" + len(message).to_bytes(4, "big") + message, stream=stream, flags=1
    )


async def answers(servers: RegistrationServers, sent: Iterable[bytes]) -> bytes:
    """All that comes until the connection ends, to calls that are sent together."""
    reader, writer = await asyncio.open_unix_connection(servers.path(ONE))
    writer.write(HELLO + b"".join(sent))
    got = bytearray()
    async with asyncio.timeout(60):
        with contextlib.suppress(OSError):
            while more := await reader.read(1000):
                got += more
    writer.transport.abort()
    return bytes(got)


async def test_a_bad_name_is_garbage_and_ends_its_connection(servers: RegistrationServers, calls: Calls) -> None:
    """A thousand on one connection were answered without a pause, and the agent's loop did nothing else."""
    await servers.serve({ONE})
    got = await answers(servers, (call("!", stream=number) for number in range(1, 2001, 2)))
    assert got.count(b"grpc-status\x013") == 1
    assert calls.refused == [(ONE, "this is neither the id nor the name of a container")]


HUNG_UP = {
    "nothing": b"",
    "half of the preface": PREFACE[:10],
    "settings": HELLO,
    "pings": HELLO + frame(6, bytes(8), stream=0) * 30,
    "half of a frame": HELLO + CALL[:5],
    "headers": HELLO + CALL,
    "goes with a word": HELLO + frame(7, bytes(8), stream=0),
}


@pytest.mark.parametrize("sent", HUNG_UP.values(), ids=HUNG_UP)
async def test_who_goes_before_its_call_is_whole_is_counted_each_time(
    servers: RegistrationServers, calls: Calls, sent: bytes
) -> None:
    await servers.serve({ONE, TWO})
    for _ in range(3):
        with socket.socket(socket.AF_UNIX) as one:
            one.connect(f"{servers.path(ONE)}")
            one.sendall(sent)
    await until(lambda: len(calls.refused) == 3, seen=lambda: calls.refused, within=10)
    assert calls.refused == [(ONE, "it ended before a call was whole")] * 3
    await register(servers.path(ONE), container_id="id-1")


async def test_a_connection_has_few_calls_and_says_where_it_ends(servers: RegistrationServers, calls: Calls) -> None:
    """gRPC makes those that come later on another connection; so nobody keeps a place."""
    await servers.serve({ONE})
    got = await answers(servers, (call(f"id-{number}", stream=number) for number in range(1, 41, 2)))
    assert got.count(b"grpc-status\x010") == len(calls.got) == 8
    assert got.endswith(frame(7, (15).to_bytes(4, "big") + bytes(4), stream=0))
    assert calls.refused == []


async def flood(path: Path, name: str = "") -> None:
    """Without a pause, each time with another name unless one is given."""
    number = 0
    while True:
        number += 1
        with contextlib.suppress(grpc.aio.AioRpcError):
            await register(path, container_id=name or f"id-{number}")


@contextlib.asynccontextmanager
async def flooded(paths: Collection[Path]) -> AsyncIterator[None]:
    tasks = [asyncio.create_task(flood(path)) for path in paths]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


@pytest.fixture
async def two_pods(short_tmp: Path, calls: Calls) -> AsyncIterator[tuple[RegistrationServers, list[GrantId]]]:
    """One has ten containers, the other has grant `ONE`."""
    crowd = [GrantId(f"g-crowd-{number}") for number in range(10)]
    for grant in (ONE, *crowd):
        (short_tmp / grant).mkdir()
    made = RegistrationServers(short_tmp, calls, lambda *_: None, pod_of=lambda grant: grant[:6])
    await made.serve({ONE, *crowd})
    yield made, crowd
    await made.serve(frozenset())


async def test_a_pod_with_many_containers_has_one_turn_in_a_round(
    two_pods: tuple[RegistrationServers, list[GrantId]], calls: Calls
) -> None:
    """Each container had a part of its own, so a pod with many had as many."""
    servers, crowd = two_pods
    async with flooded([servers.path(grant) for grant in crowd]):
        await until(lambda: len(calls.got) > 3)
        before = len(calls.got)
        for number in range(5):
            await register(servers.path(ONE), container_id=f"id-{number}")
        theirs = [grant for grant, _ in calls.got[before:] if grant != ONE]
    assert len(theirs) < 5 * 5
    assert len(set(theirs)) > 1


async def test_a_pod_with_many_containers_has_a_bound_of_connections(
    two_pods: tuple[RegistrationServers, list[GrantId]], calls: Calls
) -> None:
    """Those that say nothing; the other pod registers meanwhile."""
    servers, crowd = two_pods
    held = []
    for grant in crowd:
        for _ in range(4):
            held.append(await asyncio.open_unix_connection(servers.path(grant)))
            held[-1][1].write(HELLO)
    answered = [asyncio.create_task(reader.read(1)) for reader, _ in held]
    try:
        await until(lambda: sum(task.done() for task in answered) == MOST_OF_POD)
        await register(servers.path(ONE), container_id="id-1")
        assert sum(task.done() for task in answered) == MOST_OF_POD
    finally:
        for _, writer in held:
            writer.transport.abort()
        await asyncio.wait(answered)
        for task in answered:
            task.exception()


async def test_processes_that_wait_with_the_same_name_are_answered_together(
    servers: RegistrationServers, calls: Calls
) -> None:
    """And by a look that began after they came: they are in what it finds."""
    began, go = asyncio.Event(), asyncio.Event()

    async def wait(grant: GrantId, name: str) -> None:
        began.set()
        await go.wait()

    calls.handler = wait
    await servers.serve({ONE})
    made = []
    for _ in range(5):
        made.append(await asyncio.open_unix_connection(servers.path(ONE)))
        made[-1][1].write(HELLO + call("id-1"))
        await began.wait()
    await asyncio.sleep(1)
    go.set()
    async with asyncio.timeout(60):
        await asyncio.gather(*(reader.readuntil(b"grpc-status\x010") for reader, _ in made))
    for _, writer in made:
        writer.transport.abort()
    assert calls.got == [(ONE, "id-1")] * 2


async def test_who_registers_again_and_again_waits_longer_and_others_do_not(
    servers: RegistrationServers, calls: Calls
) -> None:
    await servers.serve({ONE, TWO})
    async with flooded([servers.path(ONE)]):
        await until(lambda: len(calls.got) > FEW)
        before = len(calls.got)
        for _ in range(20):
            await register(servers.path(TWO), container_id="id-2")
        assert len([grant for grant, _ in calls.got[before:] if grant == ONE]) < 8
