"""The cost of the agent, compared with a bare device plugin in the same run.

Two stand-in kubelets run side by side: one with `vcuda agent` on the emulated driver (8 GPUs, 3,360 IDs), one with a
bare plugin that sends the same messages. Pods are admitted alternately, so that other load on the machine affects
both. Output: `allocate_whole_ratio` and `prestart_whole_ratio` (both calls of a container, over those of the bare
plugin), `pods_call_ms` (the `GET /pods` that Allocate needs), `preferred_p99_ms`, `idle_cpu_percent` of one core,
children included, `rss_mib`; from the start of the process `offered_s`, until the sockets are there, and `ready_s`,
until /readyz, which needs kubelet's next look at them; `imports_s`, the least that a start takes.

    python -m benchmarks.agent [--output json] [--short]
"""

import asyncio
import contextlib
import itertools
import os
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.command import BenchmarkError, ends_in_one_sentence, options, scratch_folder, show
from deviceplugin.kubelet.registration import SOCKETS
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
IMPORTS = 4
POLL_S = 0.01
DEADLINE_S = 240.0  # only a hang is an error: a busy machine starts the agent slowly
SANDBOX_S = 0.05
"""Between Allocate and PreStartContainer the runtime makes the pod's sandbox (`SyncPod` of kubelet's
kuberuntime_manager.go). containerd took longer for each of 20, 100 ms in the mean, by kubelet 1.36's
`kubelet_run_podsandbox_duration_seconds` in sandbox/cluster."""
SHARES = ((5, 4), (8, 8), (3, 4), (10, 8))  # a hundred of them fit on eight GPUs


@dataclass(frozen=True, slots=True)
class Result:
    """See the module's docstring; `_min` and `_max` are of turns; the fields after `ready_s` explain the others."""

    allocate_whole_ratio: float
    allocate_whole_ratio_min: float
    allocate_whole_ratio_max: float
    prestart_whole_ratio: float
    prestart_whole_ratio_min: float
    prestart_whole_ratio_max: float
    pods_call_ms: float
    preferred_p99_ms: float
    bare_preferred_p99_ms: float
    idle_cpu_percent: float
    rss_mib: float
    imports_s: float
    offered_s: float
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
    with scratch_folder() as base:
        async with contextlib.AsyncExitStack() as stack:
            kubeconfig = await stack.enter_async_context(running_api_server(base))
            api = await stack.enter_async_context(ApiClient(from_kubeconfig(kubeconfig)))
            own = await stack.enter_async_context(kubelet_of("node-1", base / "a", kubeconfig))
            bare = await stack.enter_async_context(kubelet_of("node-2", base / "b", kubeconfig))
            imports_s = await import_seconds()
            began = time.monotonic()
            starting = asyncio.create_task(stack.enter_async_context(running_agent(base, own, kubeconfig)))
            offered_s = await socket_seconds(own, began)
            agent, ready_s = await starting
            await own.wait_registered(NAMES.core, NAMES.memory, deadline_s=DEADLINE_S)
            counts = (own.capacity(NAMES.core), own.capacity(NAMES.memory))
            await stack.enter_async_context(running_bare(bare, counts))
            await admit(api, own, bare, pods=pods, measured=measured)
            pods_call_ms = await pods_call(own, kubeconfig)
            await all_events_sent(api)
            idle = await idle_percent(agent.pid, idle_s)
            started = Start(imports_s, offered_s, ready_s)
            return summary(own, bare, counts, pods, pods_call_ms, idle, rss_mib(agent.pid), started)


@dataclass(frozen=True, slots=True)
class Start:
    """Seconds from the start of the process, of one that only imports, and of the agent."""

    imports_s: float
    offered_s: float
    ready_s: float


async def import_seconds() -> float:
    """Once before, so that no file comes from the disk."""
    took = []
    for _ in range(IMPORTS):
        began = time.monotonic()
        process = await asyncio.create_subprocess_exec(sys.executable, "-c", "import deviceplugin.agent.run")
        if await process.wait():
            raise BenchmarkError("the agent's modules cannot be imported; the process says why above")
        took.append(time.monotonic() - began)
    return statistics.median(took[1:])


async def socket_seconds(kubelet: Kubelet, began: float) -> float:
    """Until the sockets of both resources are where kubelet looks for them."""
    while len(list(kubelet.options.registry_dir.glob("*.sock"))) < len(SOCKETS):
        if time.monotonic() - began > DEADLINE_S:
            raise BenchmarkError("the agent has made no sockets; its log says why")
        await asyncio.sleep(POLL_S)
    return time.monotonic() - began


def kubelet_of(node: str, root: Path, kubeconfig: Path) -> Kubelet:
    options = KubeletOptions(
        root=root,
        node_name=node,
        first_sync_s=0.05,
        image_pull_s=SANDBOX_S,
        token=TOKEN,
        resource_health_status=False,
    )
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


async def all_events_sent(api: ApiClient) -> None:
    """The agent sends one event a second, so a hundred of them would go on in the idle phase."""
    sent, before = await events(api), -1
    while sent != before:
        await asyncio.sleep(3.0)
        sent, before = await events(api), sent


async def events(api: ApiClient) -> int:
    return len((await api.call("GET", "/api/v1/events"))["items"])


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
    started: Start,
) -> Result:
    allocate, bare_allocate = median_ms(own.calls.of("Allocate")), median_ms(bare.calls.of("Allocate"))
    start, bare_start = median_ms(own.calls.of("PreStartContainer")), median_ms(bare.calls.of("PreStartContainer"))
    ratios = whole_ratios(own.calls.of("Allocate"), bare.calls.of("Allocate"))
    start_ratios = whole_ratios(own.calls.of("PreStartContainer"), bare.calls.of("PreStartContainer"))
    return Result(
        allocate_whole_ratio=statistics.median(ratios),
        allocate_whole_ratio_min=min(ratios),
        allocate_whole_ratio_max=max(ratios),
        prestart_whole_ratio=statistics.median(start_ratios),
        prestart_whole_ratio_min=min(start_ratios),
        prestart_whole_ratio_max=max(start_ratios),
        pods_call_ms=pods_call_ms,
        preferred_p99_ms=p99_ms(own.calls.of("GetPreferredAllocation")),
        bare_preferred_p99_ms=p99_ms(bare.calls.of("GetPreferredAllocation")),
        idle_cpu_percent=idle,
        rss_mib=rss,
        imports_s=started.imports_s,
        offered_s=started.offered_s,
        ready_s=started.ready_s,
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
