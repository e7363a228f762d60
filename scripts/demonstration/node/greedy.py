"""Two containers on one GPU run the same program, which takes all that it can get; each gets its slice.

In: two containers that kubelet has started. Out: what each asked for, what its limits file says, and what it got: by
its own account, and by the driver's. The program is library/programs/slice.c, which knows nothing of vcuda.
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec

from deviceplugin.container.limits_file import decode
from sandbox.emulated_gpus import PROGRAMS
from sandbox.gpunode import GpuNode
from sandbox.kubelet import ContainerView
from scripts.demonstration.document import GreedyContainer, GreedyReport
from scripts.demonstration.failure import DemoError
from scripts.demonstration.node.container import lay_out, limits_file

PROGRAM = PROGRAMS / "slice"
SECONDS = 5.0
MORE_S = 15.0
MIB = 1 << 20
EVERYTHING_MIB = 1 << 20


@dataclass(slots=True)
class _Watched:
    """Of a process, by what driver and kernel say: the most memory it had, how long it waited for a processor."""

    memory: int = 0
    cpu_wait_s: float = 0.0


Watched = dict[int, _Watched]


@dataclass(frozen=True, slots=True)
class Asked:
    """A container that runs it, and what its pod asks for."""

    pod: str
    view: ContainerView
    cores: int
    blocks: int


@dataclass(frozen=True, slots=True)
class _Running:
    asked: Asked
    process: asyncio.subprocess.Process
    limits: Path


async def run(node: GpuNode, asked: Iterable[Asked]) -> tuple[GreedyContainer, ...]:
    """All at once, until the last one has ended."""
    async with _started(node, asked) as running:
        told = asyncio.gather(*(_told(each) for each in running))
        try:
            async with asyncio.timeout(SECONDS + MORE_S):
                watched = await _watch(node, running, told)
                reports = await told
        except TimeoutError:
            raise DemoError(f"the greedy programs were not over after {SECONDS + MORE_S:g} s") from None
        finally:
            told.cancel()
            await asyncio.gather(told, return_exceptions=True)
    return tuple(_found(each, report, watched) for each, report in zip(running, reports, strict=True))


@asynccontextmanager
async def _started(node: GpuNode, asked: Iterable[Asked]) -> AsyncIterator[list[_Running]]:
    running: list[_Running] = []
    try:
        for container in asked:
            running += [await _start(node, container)]
        yield running
    finally:
        for each in running:
            if each.process.returncode is None:
                each.process.kill()
                await each.process.wait()


async def _start(node: GpuNode, asked: Asked) -> _Running:
    """It holds all of its memory to its end, so that the driver can be asked about it."""
    emulator = {name: value for name, value in node.gpus.environment.items() if name.startswith("VCUDA_EMULATOR_")}
    environment = lay_out(asked.view, node.home / "containers" / asked.pod, emulator)
    process = await asyncio.create_subprocess_exec(
        *(PROGRAM, "--exact", "--seconds", str(SECONDS), "--hold-mib", str(EVERYTHING_MIB)),
        env=environment,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    return _Running(asked, process, limits_file(environment))


async def _told(running: _Running) -> GreedyReport:
    out, errors = await running.process.communicate()
    if running.process.returncode or errors:
        raise DemoError(f"the program in {running.asked.pod} failed: {errors.decode().strip() or 'it said nothing'}")
    return msgspec.json.decode(out, type=GreedyReport)


async def _watch(node: GpuNode, running: Iterable[_Running], until: "asyncio.Future[list[GreedyReport]]") -> Watched:
    """By PID, until all have ended."""
    found: Watched = {each.process.pid: _Watched() for each in running}
    while not until.done():
        shown = json.loads(await asyncio.to_thread(node.gpus.command, "show", "--json"))
        for process in (process for gpu in shown["gpus"] for process in gpu["processes"]):
            seen = found.setdefault(process["pid"], _Watched())
            seen.memory = max(seen.memory, process["memory_mib"] * MIB)
        for pid, seen in found.items():
            seen.cpu_wait_s = max(seen.cpu_wait_s, _cpu_wait_s(pid))
        await asyncio.wait([until], timeout=0.5)
    return found


def _cpu_wait_s(pid: int) -> float:
    """The second number of each thread's schedstat; 0 where the kernel keeps none, or the process has ended."""
    waited = 0
    for path in Path(f"/proc/{pid}/task").glob("*/schedstat"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            waited += int(path.read_text().split()[1])
    return waited / 1e9


def _found(running: _Running, report: GreedyReport, watched: Watched) -> GreedyContainer:
    (limits,) = decode(running.limits.read_bytes()).devices
    seen = watched[running.process.pid]
    if not seen.memory:
        raise DemoError(f"the driver has not seen the program in {running.asked.pod}")
    return GreedyContainer(
        pod=running.asked.pod,
        container=running.asked.view.container,
        cores=running.asked.cores,
        blocks=running.asked.blocks,
        limit_cores=limits.cores,
        limit_bytes=limits.memory_bytes,
        held_bytes=seen.memory,
        got_cores=report.share_percent,
        report=report,
        cpu_wait_s=round(seen.cpu_wait_s, 3),
    )
