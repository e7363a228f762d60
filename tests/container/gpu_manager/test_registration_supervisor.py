"""The registration process: what a container does to it, and what the agent has of that."""

import asyncio
import os
import resource
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest
from structlog.testing import capture_logs

from deviceplugin.container.gpu_manager.registration_messages import RegistrationCall, line
from deviceplugin.container.gpu_manager.registration_supervisor import RegistrationSupervisor
from deviceplugin.errors import ContainerError
from deviceplugin.ledger.grant import GrantId
from deviceplugin.wire import registration_pb2 as pb
from deviceplugin.wire import registration_pb2_grpc as rpc
from tests.library.compiler import SHARED, compiled
from tests.waiting import RETRYING

ONE, TWO = GrantId("g-0001"), GrantId("g-0002")
PATIENCE_S = 120.0
Handler = Callable[[GrantId, str], Awaitable[None]]


class Registered:
    """What the agent was asked; `handler` is what it does then."""

    def __init__(self) -> None:
        self.got: list[tuple[GrantId, str]] = []
        self.handler: Handler | None = None

    async def __call__(self, grant: GrantId, name: str) -> None:
        self.got.append((grant, name))
        if self.handler is not None:
            await self.handler(grant, name)


@pytest.fixture
def registered() -> Registered:
    return Registered()


@asynccontextmanager
async def supervised(base: Path, registered: Registered) -> AsyncIterator[RegistrationSupervisor]:
    for grant in (ONE, TWO):
        (base / grant).mkdir()
    supervisor = RegistrationSupervisor(base, registered)
    running = asyncio.create_task(supervisor.run())
    try:
        yield supervisor
    finally:
        running.cancel()
        await asyncio.wait([running])
        assert running.cancelled()


async def register(path: Path, name: str = "id-1") -> None:
    """Waits for the socket, as gpu-client does."""
    async with grpc.aio.insecure_channel(f"unix:{path}", options=RETRYING) as channel:
        request = pb.VDeviceRequest(container_id=name)
        await rpc.VCUDAServiceStub(channel).RegisterVDevice(request, timeout=PATIENCE_S, wait_for_ready=True)


async def until(holds: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < end, what
        await asyncio.sleep(0.02)


def pid_of(supervisor: RegistrationSupervisor) -> int:
    assert supervisor.process is not None
    return supervisor.process.pid


def is_alive(pid: int) -> bool:
    """Not gone, and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


async def test_a_container_registers_through_a_process_with_limits(short_tmp: Path, registered: Registered) -> None:
    async with supervised(short_tmp, registered) as supervisor:
        assert supervisor.process is None, "nobody wants a socket"
        supervisor.serve(frozenset({ONE, TWO}))
        await register(short_tmp / ONE / "vcuda.sock", "id-1")
        await register(short_tmp / TWO / "vcuda.sock", "id-2")
        assert registered.got == [(ONE, "id-1"), (TWO, "id-2")]

        pid = pid_of(supervisor)
        room = resource.prlimit(pid, resource.RLIMIT_DATA)[1] - memory_of(pid, "VmData")
        assert 32 << 20 < room <= 64 << 20, "whatever the stacks of gRPC's threads take, more on a larger machine"
        assert resource.prlimit(pid, resource.RLIMIT_NOFILE)[1] <= 4096
        assert resource.prlimit(pid, resource.RLIMIT_CORE) == (0, 0)
        assert Path(f"/proc/{pid}/oom_score_adj").read_text().strip() == "1000"

        supervisor.serve(frozenset({TWO}))
        await until(lambda: not (short_tmp / ONE / "vcuda.sock").exists(), "its grant has ended")
        await register(short_tmp / TWO / "vcuda.sock", "id-3")
        assert pid_of(supervisor) == pid
    assert not is_alive(pid)


async def test_it_has_the_same_room_on_a_large_machine(
    short_tmp: Path, registered: Registered, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stacks of gRPC's threads count as data: 64 processors take more than a fixed limit."""
    source = Path(__file__).parents[1] / "native/cpus.c"
    monkeypatch.setenv("LD_PRELOAD", str(compiled(short_tmp / "cpus.so", *SHARED, source, "-ldl")))
    async with supervised(short_tmp, registered) as supervisor:
        supervisor.serve(frozenset({ONE}))
        await register(short_tmp / ONE / "vcuda.sock")
        room = resource.prlimit(pid_of(supervisor), resource.RLIMIT_DATA)[1]
        assert room - memory_of(pid_of(supervisor), "VmData") > 32 << 20


async def test_what_goes_wrong_inside_is_a_sentence_without_a_traceback(
    short_tmp: Path, registered: Registered
) -> None:
    async def full(grant: GrantId, name: str) -> None:
        raise ContainerError("the disk is full; make room")

    async def broken(grant: GrantId, name: str) -> None:
        raise ZeroDivisionError("secret")

    async def hang(grant: GrantId, name: str) -> None:
        await asyncio.Event().wait()

    said = {}
    async with supervised(short_tmp, registered) as supervisor:
        supervisor.serve(frozenset({ONE}))
        for handler in (full, broken, hang):
            registered.handler = handler
            with pytest.raises(grpc.aio.AioRpcError) as failed:
                await register(short_tmp / ONE / "vcuda.sock")
            said[failed.value.code()] = str(failed.value.details())
    assert said[grpc.StatusCode.UNAVAILABLE] == "the disk is full; make room"
    assert "secret" not in said[grpc.StatusCode.INTERNAL]
    assert "try again" in said[grpc.StatusCode.DEADLINE_EXCEEDED]


async def test_killed_it_is_started_again_and_said_once(short_tmp: Path, registered: Registered) -> None:
    with capture_logs() as logs:
        async with supervised(short_tmp, registered) as supervisor:
            supervisor.serve(frozenset({ONE}))
            for name in ("a", "b", "c"):
                await register(short_tmp / ONE / "vcuda.sock", name)
                assert supervisor.process is not None
                process = supervisor.process
                process.kill()
                await process.wait()
            await register(short_tmp / ONE / "vcuda.sock", "d")
    assert [name for _, name in registered.got] == ["a", "b", "c", "d"]
    (said,) = [entry for entry in logs if entry["event"] == "registration_process_ended"]
    assert "ended by SIGKILL" in said["error"]


async def test_a_flood_of_headers_ends_the_process_and_not_more(short_tmp: Path, registered: Registered) -> None:
    """Security 4: HTTP/2 CONTINUATION frames, which gRPC keeps before it counts them."""
    with capture_logs() as logs:
        async with supervised(short_tmp, registered) as supervisor:
            supervisor.serve(frozenset({ONE, TWO}))
            await register(short_tmp / ONE / "vcuda.sock")
            before, pid = memory_of(os.getpid()), pid_of(supervisor)
            await asyncio.gather(*(asyncio.to_thread(flood, short_tmp / ONE / "vcuda.sock", pid) for _ in range(8)))
            assert memory_of(os.getpid()) - before < 32 << 20
            await register(short_tmp / TWO / "vcuda.sock", "id-2")
    assert registered.got == [(ONE, "id-1"), (TWO, "id-2")]
    assert len([entry for entry in logs if entry["event"] == "registration_process_ended"]) <= 1


def frame(kind: int, payload: bytes, *, stream: int = 1) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes([kind, 0]) + stream.to_bytes(4, "big") + payload


def flood(path: Path, pid: int) -> None:
    """One request without an end, until the process that reads it ends or closes the connection 20 times."""
    header = b"\x00\x03abc\x64" + b"x" * 100
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, b"", stream=0) + frame(1, b"\x00\x01a\x01b")
    for _ in range(20):
        with socket.socket(socket.AF_UNIX) as to:
            to.settimeout(10)
            try:
                to.connect(str(path))
                to.sendall(preface)
                for _ in range(1000):
                    to.sendall(frame(9, header * 80))
            except OSError:
                if not is_alive(pid):
                    return


def memory_of(pid: int, kind: str = "VmRSS") -> int:
    (found,) = [each for each in Path(f"/proc/{pid}/status").read_text().splitlines() if each.startswith(f"{kind}:")]
    return int(found.split()[1]) << 10


async def test_what_is_no_message_ends_it_and_what_nobody_asked_for_is_ignored(
    short_tmp: Path, registered: Registered, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if a container had taken the process over."""
    spoken = line(RegistrationCall(1, "g-strange", "x")) + line(RegistrationCall(2, ONE, "x")) * 3 + b"nonsense\n"
    program = short_tmp / "taken-over"
    program.write_bytes(b"#!/bin/sh\ncat <<'END'\n" + spoken + b"END\nexec sleep 600\n")
    program.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(program))
    release = asyncio.Event()

    async def wait(grant: GrantId, name: str) -> None:
        await release.wait()

    registered.handler = wait
    with capture_logs() as logs:
        async with supervised(short_tmp, registered) as supervisor:
            supervisor.serve(frozenset({ONE}))
            await until(lambda: any(each["event"] == "registration_process_ended" for each in logs), "it is ended")
    assert registered.got == [(ONE, "x")], "one call of a grant at a time"
