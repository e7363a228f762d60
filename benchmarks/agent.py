"""The cost of the agent, compared with a bare device plugin in the same run.

Two stand-in kubelets run side by side: one with `vcuda agent` on the emulated driver (8 GPUs, 3,360 IDs), one with a
bare plugin that sends the same messages. Pods are admitted alternately, so that other load on the machine affects
both. Output: `allocate_ratio` and `prestart_ratio` (the agent's median call over that of the bare plugin, without the
`GET /pods` call that Allocate needs), `pods_call_ms`, `preferred_p99_ms`, `idle_cpu_percent` of one core, children
included, `rss_mib`, and `ready_s` from start to /readyz.

    python -m benchmarks.agent [--output json] [--short]
"""

import asyncio
import contextlib
import itertools
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.command import BenchmarkError, ends_in_one_sentence, options, show
from deviceplugin.model.units import ResourceNames
from sandbox.agent import AgentProcess
from sandbox.apiserver import container, pod
from sandbox.emulated_gpus import EmulatedGpus
from sandbox.gpunode import EIGHT_GPUS, Flags, agent_command
from sandbox.kubelet import Kubelet, KubeletOptions
from sandbox.kubelet.apisource import ApiClient, ApiSource, from_kubeconfig
from sandbox.kubelet.calls import Call

REPOSITORY = Path(__file__).resolve().parent.parent
NAMES = ResourceNames()
TOKEN = "stand-in-token"
SHORT = (4, 2, 0.2)
TURNS = 5
DEADLINE_S = 240.0  # only a hang is an error: a busy machine starts the agent slowly
SHARES = ((5, 4), (8, 8), (3, 4), (10, 8))  # a hundred of them fit on eight GPUs


@dataclass(frozen=True, slots=True)
class Result:
    """See the module's docstring; the fields after `ready_s` explain the others."""

    allocate_whole_ratio: float
    allocate_whole_ratio_min: float
    allocate_whole_ratio_max: float
    allocate_ratio: float
    prestart_ratio: float
    pods_call_ms: float
    preferred_p99_ms: float
    bare_preferred_p99_ms: float
    idle_cpu_percent: float
    rss_mib: float
    ready_s: float
    allocate_ms: float
    bare_allocate_ms: float
    prestart_ms: float
    bare_prestart_ms: float
    ids: int
    pods: int
    turns: int


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--pods", type=int, default=200, help="number of pods at the end (default: %(default)s)")
    parser.add_argument(
        "--measured", type=int, default=100, help="number of them that request GPUs (default: %(default)s)"
    )
    parser.add_argument("--idle", type=float, default=10.0, help="seconds of the idle phase (default: %(default)s)")
    given = parser.parse_args()
    if given.short:
        given.pods, given.measured, given.idle = SHORT
    show(asdict(asyncio.run(measure(given.pods, given.measured, given.idle))), given.output)


async def measure(pods: int, measured: int, idle_s: float) -> Result:
    base = Path(tempfile.mkdtemp(prefix="vb-", dir="/tmp"))
    try:
        async with contextlib.AsyncExitStack() as stack:
            kubeconfig = await stack.enter_async_context(running_api_server(base))
            api = await stack.enter_async_context(ApiClient(from_kubeconfig(kubeconfig)))
            own = await stack.enter_async_context(kubelet_of("node-1", base / "a", kubeconfig))
            bare = await stack.enter_async_context(kubelet_of("node-2", base / "b", kubeconfig))
            agent, ready_s = await stack.enter_async_context(running_agent(base, own, kubeconfig))
            await own.wait_registered(NAMES.core, NAMES.memory, deadline_s=DEADLINE_S)
            counts = (own.capacity(NAMES.core), own.capacity(NAMES.memory))
            await stack.enter_async_context(running_bare(bare, counts))
            await admit(api, own, bare, pods=pods, measured=measured)
            pods_call_ms = await pods_call(own, kubeconfig)
            idle = await idle_percent(agent.pid, idle_s)
            return summary(own, bare, counts, pods, pods_call_ms, idle, rss_mib(agent.pid), ready_s)
    finally:
        shutil.rmtree(base, ignore_errors=True)


def kubelet_of(node: str, root: Path, kubeconfig: Path) -> Kubelet:
    options = KubeletOptions(root=root, node_name=node, first_sync_s=0.05, token=TOKEN, resource_health_status=False)
    return Kubelet(options, ApiSource(options, from_kubeconfig(kubeconfig)))


@contextlib.asynccontextmanager
async def running_api_server(base: Path, nodes: Sequence[str] = ("node-1", "node-2")) -> AsyncIterator[Path]:
    """In a separate process: requests of the agent must not slow down the timed kubelet."""
    kubeconfig = base / "kubeconfig"
    command = [sys.executable, "-m", "sandbox.apiserver", "--port=0", f"--kubeconfig-out={kubeconfig}"]
    command += [f"--token={TOKEN}", *(f"--node={name}" for name in nodes)]
    process = await asyncio.create_subprocess_exec(*command, cwd=REPOSITORY, stdout=asyncio.subprocess.PIPE)
    try:
        assert process.stdout is not None
        await process.stdout.readline()
        yield kubeconfig
    finally:
        process.terminate()
        await process.wait()


async def no_registration(_agent: AgentProcess) -> None:
    """The stand-in kubelet registers device plugins itself."""


@contextlib.asynccontextmanager
async def running_agent(
    base: Path,
    kubelet: Kubelet,
    kubeconfig: Path,
    *,
    flags: Flags | None = None,
    registered: Callable[[AgentProcess], Awaitable[None]] = no_registration,
) -> AsyncIterator[tuple[AgentProcess, float]]:
    """The agent as an operator starts it, and the seconds until it is ready; `registered` is kubelet's part in that."""
    gpus = EmulatedGpus(EIGHT_GPUS, base / "gpus")
    quiet = {"log-level": "warning", "display-socket": "", **(flags or {})}
    agent = AgentProcess(agent_command(base, kubelet, gpus, kubeconfig=kubeconfig, flags=quiet))
    began = time.monotonic()
    await agent.start()
    try:
        await registered(agent)
        await agent.wait_ready(deadline_s=DEADLINE_S)
        yield agent, time.monotonic() - began
    finally:
        await agent.destroy()


@contextlib.asynccontextmanager
async def running_bare(kubelet: Kubelet, counts: tuple[int, int]) -> AsyncIterator[None]:
    command = [sys.executable, "-m", "benchmarks.bare", str(kubelet.options.plugin_dir), *map(str, counts)]
    process = subprocess.Popen(command, cwd=REPOSITORY)
    try:
        await kubelet.wait_registered(NAMES.core, NAMES.memory, deadline_s=DEADLINE_S)
        yield
    finally:
        process.terminate()
        process.wait()


async def admit(api: ApiClient, own: Kubelet, bare: Kubelet, *, pods: int, measured: int) -> None:
    """Pods without GPUs first, so that the lists are long; then GPU pods, alternately."""
    for number in range(pods):
        cores, blocks = SHARES[number % len(SHARES)] if number >= pods - measured else (0, 0)
        for kubelet in (own, bare):
            node = kubelet.options.node_name
            wanted = pod(f"{node}-{number}", container("c", cores=cores, blocks=blocks), node=node)
            created = await api.call("POST", "/api/v1/namespaces/default/pods", wanted)
            await kubelet.wait_running(created["metadata"]["uid"], deadline_s=DEADLINE_S)


async def pods_call(kubelet: Kubelet, kubeconfig: Path) -> float:
    ca = kubelet.options.root / "pki" / "kubelet.crt"
    command = [sys.executable, "-m", "benchmarks.pods_call", kubelet.pods_url, str(ca), str(kubeconfig), "60"]
    process = await asyncio.create_subprocess_exec(*command, cwd=REPOSITORY, stdout=asyncio.subprocess.PIPE)
    printed, _ = await process.communicate()
    if process.returncode:
        raise BenchmarkError("GET /pods could not be timed; its process says why above")
    return float(printed)


async def idle_percent(pid: int, seconds: float) -> float:
    await asyncio.sleep(1.0)
    before = cpu_seconds(pid)
    await asyncio.sleep(seconds)
    return (cpu_seconds(pid) - before) / seconds * 100


def summary(
    own: Kubelet,
    bare: Kubelet,
    counts: tuple[int, int],
    pods: int,
    pods_call_ms: float,
    idle: float,
    rss: float,
    ready_s: float,
) -> Result:
    allocate, bare_allocate = median_ms(own.calls.of("Allocate")), median_ms(bare.calls.of("Allocate"))
    start, bare_start = median_ms(own.calls.of("PreStartContainer")), median_ms(bare.calls.of("PreStartContainer"))
    ratios = whole_ratios(own.calls.of("Allocate"), bare.calls.of("Allocate"))
    return Result(
        allocate_whole_ratio=statistics.median(ratios),
        allocate_whole_ratio_min=min(ratios),
        allocate_whole_ratio_max=max(ratios),
        allocate_ratio=(allocate - pods_call_ms) / bare_allocate,
        prestart_ratio=start / bare_start,
        pods_call_ms=pods_call_ms,
        preferred_p99_ms=p99_ms(own.calls.of("GetPreferredAllocation")),
        bare_preferred_p99_ms=p99_ms(bare.calls.of("GetPreferredAllocation")),
        idle_cpu_percent=idle,
        rss_mib=rss,
        ready_s=ready_s,
        allocate_ms=allocate,
        bare_allocate_ms=bare_allocate,
        prestart_ms=start,
        bare_prestart_ms=bare_start,
        ids=sum(counts),
        pods=pods,
        turns=len(ratios),
    )


def whole_ratios(own: Sequence[Call], bare: Sequence[Call]) -> list[float]:
    """Of each turn: the median container's wait for all its calls, over that with the bare plugin."""
    waits, bare_waits = waits_of(own), waits_of(bare)
    turns = min(TURNS, len(waits))
    cut = [round(len(waits) * turn / turns) for turn in range(turns + 1)]
    return [
        statistics.median(waits[first:end]) / statistics.median(bare_waits[first:end])
        for first, end in itertools.pairwise(cut)
    ]


def waits_of(calls: Sequence[Call]) -> list[float]:
    """Of each container, in the order of their first calls."""
    waits: dict[tuple[str, str], float] = {}
    for call in calls:
        who = (call.uid, call.container)
        waits[who] = waits.get(who, 0.0) + call.ended - call.started
    return list(waits.values())


def p99_ms(calls: Sequence[Call]) -> float:
    took = sorted(call.ended - call.started for call in calls)
    return took[min(len(took) - 1, int(len(took) * 0.99))] * 1000


def median_ms(calls: Sequence[Call]) -> float:
    failed = [call.error for call in calls if call.error]
    if failed or not calls:
        raise BenchmarkError(f"calls of kubelet failed: {failed[:3] or 'none was made'}")
    return statistics.median(call.ended - call.started for call in calls) * 1000


def cpu_seconds(pid: int) -> float:
    """With that of children that have ended: user and system time of both, proc_pid_stat(5)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def rss_mib(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise BenchmarkError("the agent has ended")


if __name__ == "__main__":
    ends_in_one_sentence(main)
