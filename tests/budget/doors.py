"""What a process may use while its doors are flooded, and the flood.

In: a pid, a port and a way of `flood`. Out: the ports, the peak of the memory and the descriptors as the kernel counts
them, and the limits of the chart. Invariant: after `flooding` no process is left.
"""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import yaml

from deviceplugin.kube.structs import parse_quantity
from tests.waiting import PATIENCE_S

ROOT = Path(__file__).resolve().parents[2]
CONNECTIONS = 1100  # more than there are descriptors
DESCRIPTORS = 1024
OF_EACH_KIND = ("half-a-handshake", "slow-headers", "slow-body", "largest-bodies", "pipelined")
"""Ways of `flood`: connections, heads, bodies that do not come, bodies that do, answers that are not read."""
_LISTEN = "0A"


def memory_limit(program: str) -> int:
    """Of the container of `agent` or `scheduler`, by the chart's defaults."""
    values = yaml.safe_load((ROOT / "daemonset/chart/values.yaml").read_text())
    return parse_quantity(values[program]["resources"]["limits"]["memory"])


def peak_memory(pid: int) -> int:
    """Since its start."""
    (line,) = [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmHWM:")]
    return int(line.split()[1]) << 10


def descriptors(pid: int) -> int:
    return sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())


def listening(pid: int) -> set[int]:
    """The TCP ports on which the process listens, as the kernel says: proc_pid_net(5)."""
    own = set()
    for each in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(OSError):  # closed since
            own.add(str(each.readlink()))
    rows = [
        row.split() for table in ("tcp", "tcp6") for row in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()
    ]
    return {
        int(address.rpartition(":")[2], 16)
        for _, address, _, state, *_, inode in (row[:10] for row in rows)
        if state == _LISTEN and f"socket:[{inode}]" in own
    }


@dataclass(frozen=True, slots=True)
class Flood:
    """One way to flood a port. `paths` are asked for in turn; `size` is that of a body."""

    port: int
    way: str
    count: int
    paths: tuple[str, ...]
    size: int
    tls: bool = False

    @property
    def arguments(self) -> tuple[str, ...]:
        transport = "tls" if self.tls else "plain"
        return str(self.port), transport, self.way, str(self.count), ",".join(self.paths), str(self.size)


@asynccontextmanager
async def flooding(flood: Flood) -> AsyncIterator[None]:
    """From when each of its connections was tried once."""
    program = str(Path(__file__).with_name("flood.py"))
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, program, *flood.arguments),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,  # asyncio's words about connections that are closed on it
    )
    try:
        assert process.stdout is not None
        async with asyncio.timeout(PATIENCE_S):
            assert await process.stdout.readline() == b"ready\n"
        yield
        assert process.returncode is None, "the flood ended by itself"
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
