"""Containers on one GPU run the same program, which takes all that it can get; each gets its share.

In: containers that kubelet has started. Out: for each what its pod asked for, what its limits file says, and what it
got, by its own account and by the driver's. The program is library/programs/slice.c; it knows nothing of vcuda and runs
beside the demo without root: links stand for mounts, VCUDA_DIR for /etc/vcuda, CUDA_VISIBLE_DEVICES for device nodes.
Invariant: a program finds only what the answer to Allocate names.
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec

from sandbox.consistency import SeenPod
from sandbox.emulated_gpus import PROGRAMS
from sandbox.gpunode import GpuNode
from sandbox.kubelet import ContainerView
from sandbox.limits_file import decode
from scripts.demonstration.setup import DemoError

SECONDS = 5.0
MORE_S = 60.0
ENDLESS_S = 1e6
MIB = 1 << 20
GRANT = Path("/etc/vcuda")


class Nvml(msgspec.Struct, frozen=True):
    """What NVML told the program about its GPU while it held its memory."""

    total_bytes: int


class Report(msgspec.Struct, frozen=True):
    """The line that the program prints; library/programs/slice.c says what is in it."""

    total_bytes: int
    free_bytes: int
    got_bytes: int
    refusal: str
    seconds: float
    share_percent: float
    nvml: Nvml | None


class Slice(msgspec.Struct, frozen=True):
    """One container: cores are percent of the GPU's time, `held_bytes` is the most that the driver saw it hold.

    For `cpu_wait_s` its threads were ready and this machine had no processor for them: without one it cannot use its
    share.
    """

    pod: str
    cores: int
    blocks: int
    limit_cores: int
    limit_bytes: int
    held_bytes: int
    report: Report
    cpu_wait_s: float = 0.0


@dataclass(slots=True)
class _Running:
    """A program, and what driver and kernel say of its process."""

    pod: SeenPod
    process: asyncio.subprocess.Process
    limits: Path
    held_bytes: int = 0
    cpu_wait_s: float = 0.0

    async def report(self) -> Slice:
        """When the program has ended."""
        out, errors = await self.process.communicate()
        if self.process.returncode or errors:
            raise DemoError(f"the program in {self.pod.name} failed: {errors.decode().strip() or 'it printed nothing'}")
        if not self.held_bytes:
            raise DemoError(f"the driver has not seen the program in {self.pod.name}")
        (limits,) = decode(self.limits.read_bytes()).devices
        (container,) = self.pod.containers
        return Slice(
            pod=self.pod.name,
            cores=container.cores,
            blocks=container.blocks,
            limit_cores=limits.cores,
            limit_bytes=limits.memory_bytes,
            held_bytes=self.held_bytes,
            report=msgspec.json.decode(out, type=Report),
            cpu_wait_s=self.cpu_wait_s,
        )


async def run(node: GpuNode, pods: Iterable[SeenPod]) -> list[Slice]:
    """One program for the one container of each pod, all at once, until the last one has ended."""
    async with started(node, pods, seconds=SECONDS) as running:
        try:
            async with asyncio.timeout(SECONDS + MORE_S), asyncio.TaskGroup() as group:
                watch = group.create_task(_watch(node, running))
                slices = await asyncio.gather(*(each.report() for each in running))
                watch.cancel()
        except TimeoutError:
            raise DemoError(f"the greedy programs did not end within {SECONDS + MORE_S:g} s") from None
        return slices


@asynccontextmanager
async def started(
    node: GpuNode, pods: Iterable[SeenPod], *, seconds: float = ENDLESS_S
) -> AsyncIterator[list[_Running]]:
    """The programs, which end with the block at the latest."""
    running: list[_Running] = []
    try:
        for pod in pods:
            running += [await _start(node, pod, seconds)]
        yield running
    finally:
        for each in running:
            if each.process.returncode is None:
                each.process.kill()
                await each.process.wait()


async def _start(node: GpuNode, pod: SeenPod, seconds: float) -> _Running:
    """It holds its memory until it ends, so that the driver can be asked about it."""
    (container,) = pod.containers
    base = node.home / "containers" / pod.name
    _mount(container.view, base)
    process = await asyncio.create_subprocess_exec(
        *(PROGRAMS / "slice", "--exact", "--seconds", str(seconds), "--hold-mib", str(MIB)),
        env={**node.gpus.environment, **_environment(container.view, base)},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    return _Running(pod, process, base / "limits")


def _mount(view: ContainerView, base: Path) -> None:
    if GRANT.exists():
        raise DemoError(f"{GRANT} exists on this machine, and every program obeys the limits in it; move it away")
    base.mkdir(parents=True)
    mounts = {Path(mount.container_path): Path(mount.host_path) for mount in view.mounts}
    for path in sorted(path for path in mounts if path != GRANT and path.is_relative_to(GRANT)):
        place = base / path.relative_to(GRANT)
        place.parent.mkdir(parents=True, exist_ok=True)
        if mounts[path].is_dir():
            place.symlink_to(mounts[path])
        else:
            place.hardlink_to(mounts[path])  # a mounted file is no link, and the library opens no links
    for entry in mounts[GRANT].iterdir():
        if not (base / entry.name).exists():
            (base / entry.name).symlink_to(entry)


def _environment(view: ContainerView, base: Path) -> dict[str, str]:
    return {
        "VCUDA_DIR": str(base),
        "CUDA_VISIBLE_DEVICES": view.env["NVIDIA_VISIBLE_DEVICES"],
        "LD_LIBRARY_PATH": ":".join(str(view.host_path(path)) for path in view.env["LD_LIBRARY_PATH"].split(":")),
    }


async def _watch(node: GpuNode, running: Sequence[_Running]) -> None:
    """Until it is cancelled."""
    by_pid = {each.process.pid: each for each in running}
    while True:
        shown = json.loads(await asyncio.to_thread(node.gpus.command, "show", "--json"))
        for process in (process for gpu in shown["gpus"] for process in gpu["processes"]):
            if (seen := by_pid.get(process["pid"])) is not None:
                seen.held_bytes = max(seen.held_bytes, process["memory_mib"] * MIB)
        for pid, seen in by_pid.items():
            seen.cpu_wait_s = max(seen.cpu_wait_s, _cpu_wait_s(pid))
        await asyncio.sleep(0.5)


def _cpu_wait_s(pid: int) -> float:
    """The second number of each thread's schedstat; 0 if the kernel keeps none or the process has ended."""
    waited = 0
    for path in Path(f"/proc/{pid}/task").glob("*/schedstat"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            waited += int(path.read_text().split()[1])
    return waited / 1e9
