"""The node's part: pods share eight GPUs, the agent is killed, greedy programs get their share and no more.

In: a GPU node on which everything but the agent runs. Out: what happens, printed step by step, and checks.
`DemoError` only if the next step makes no sense any more.
"""

import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from rich.table import Table
from rich.text import Text

from deviceplugin.observe.usage import ContainerUsage, Usage
from sandbox.apiserver import ApiError
from sandbox.emulated_gpus import BLOCK_MIB
from sandbox.gpunode import GpuNode
from scripts.demonstration import greedy, node_checks, node_inspect
from scripts.demonstration.greedy import MIB, Slice
from scripts.demonstration.node_inspect import SeenPod
from scripts.demonstration.output import Output, Part, Step, bars, good, table
from scripts.demonstration.pods import (
    BLOCKS_PER_GIB,
    CORE,
    GREEDY,
    IMPOSSIBLE,
    MEMORY,
    NAMESPACE,
    TEAM,
    Example,
    Json,
    name_of,
    replica,
)
from scripts.demonstration.setup import GPUS, NODE, DemoError, one_node

WAIT_S = 60.0
REPLICAS = 6
BEFORE_KILL = 2  # so many replicas are admitted before the agent is killed
SLOW_PODS_S = 0.4  # kubelet takes so long to list its pods, so that the kill hits the middle of an Allocate
BUSY_S = 0.2


@dataclass(slots=True)
class _NodeRun:
    """The steps and what they have in common: the node, and the pods that were submitted."""

    node: GpuNode
    output: Output
    pods: dict[str, SeenPod] = field(default_factory=dict)

    # Steps

    async def start_agent(self) -> None:
        seconds = await self._start()
        cores, blocks = (self.node.kubelet.allocatable(name) for name in (CORE, MEMORY))
        self.output.say(
            f"The agent was ready after {seconds:.1f} s. Kubelet now offers {GPUS} GPUs as {cores} cores (100 cores "
            f"are one GPU) and {blocks} memory blocks of {BLOCK_MIB} MiB."
        )

    async def share(self) -> None:
        rows: list[tuple[Example, SeenPod, Usage]] = []
        for example in (*TEAM, IMPOSSIBLE):
            pod = await self._run(example.pod)
            rows.append((example, pod, await self.node.agent.usage()))
        self.output.print(_shares(rows, wide=self.output.console.width >= 100))
        refused = self.pods.pop(IMPOSSIBLE.name)
        said = refused.message.rpartition(" desc = ")[2].removesuffix(", which is unexpected") or "no message"
        self.output.print(Text.assemble((f"{IMPOSSIBLE.name} was refused: ", "red"), said))
        self.output.say("\nThe agent's picture of the node (GET /graph):\n")
        self.output.print(Text((await self.node.agent.graph()).rstrip(), no_wrap=True, overflow="ellipsis"))
        self.output.check(node_checks.refused_in_words(refused, words="150"))

    async def kill_agent(self) -> None:
        replicas = [replica(number) for number in range(1, REPLICAS + 1)]
        running = {(pod.uid, item.name) for pod in self.pods.values() for item in pod.containers if not item.init}
        during, before = await self._kill_during_allocate(replicas)
        refused = [pod for pod in map(self._look, map(name_of, replicas)) if pod.phase == "Failed"]
        self.output.say(
            f"The agent was killed during Allocate for {during}. Without the agent kubelet refused {len(refused)} of "
            f"the {REPLICAS} pods."
        )
        seconds = await self._start()
        uids = [self.pods.pop(pod.name).uid for pod in refused]
        after = await self._usage_without(uids)
        self.output.say(f"The agent was started again and was ready after {seconds:.1f} s. Its ledger:\n")
        self.output.print(_comparison(before, after))
        alive = {key for key in running if self.node.kubelet.runs(*key)}
        self.output.check(
            node_checks.same_ledger(before, after, refused=uids), node_checks.still_running(running, alive)
        )
        await self._replace(len(refused))

    async def delete_pods(self) -> None:
        for name in self._names():
            self._delete(name)
        await self.node.server.until(lambda: not self._names(), seconds=WAIT_S)
        self.pods.clear()

        async def empty() -> bool:
            return not (await self.node.agent.usage()).containers

        began = time.monotonic()
        await self.node.agent.until(empty, what="the ledger is empty", deadline_s=WAIT_S)
        seconds = time.monotonic() - began
        self.output.say(f"All pods were deleted. {seconds:.1f} s after the last one the ledger was empty.")
        self.output.check(node_checks.ledger_is_empty(await self.node.agent.usage()))

    async def greedy_pods(self) -> None:
        pods = [await self._run(pod) for pod in GREEDY]
        self.output.check(node_checks.share_one_gpu(pods))
        self.output.say(
            f"Both pods run on {_gpus(pods[0].gpus)}. Their program knows nothing of vcuda: it allocates memory until "
            f"CUDA refuses, and then keeps the GPU busy for {greedy.SECONDS:g} s.\n"
        )
        slices = await greedy.run(self.node, pods)
        self.output.print(_slices(slices))
        self.output.check(node_checks.memory_ends_at_the_limit(slices), node_checks.time_is_shared_as_asked(slices))

    # Their parts

    async def _start(self) -> float:
        """Seconds until kubelet offers its devices."""
        began = time.monotonic()
        await self.node.start_agent(deadline_s=WAIT_S)
        return time.monotonic() - began

    async def _run(self, pod: Json) -> SeenPod:
        """Until it runs or is refused."""
        self._submit(pod)
        await self._settled(name_of(pod))
        return self._look(name_of(pod))

    def _submit(self, pod: Json) -> None:
        """What a user and a scheduler do."""
        self.node.server.store.create("pods", pod, namespace=NAMESPACE)
        self.node.server.store.bind(name_of(pod), NODE, namespace=NAMESPACE)

    async def _settled(self, name: str) -> None:
        def done() -> bool:
            phase = self.node.server.store.get("pods", name, namespace=NAMESPACE)["status"]["phase"]
            return phase in ("Running", "Failed")

        try:
            await self.node.server.until(done, seconds=WAIT_S)
        except TimeoutError as error:
            why = node_inspect.waiting(self.node, name)
            raise DemoError(f"after {WAIT_S:g} s pod {name} neither runs nor is refused: {why}") from error

    def _look(self, name: str) -> SeenPod:
        self.pods[name] = node_inspect.pod(self.node, name)
        return self.pods[name]

    def _names(self) -> list[str]:
        return [name_of(item) for item in self.node.server.store.objects("pods", namespace=NAMESPACE)]

    def _delete(self, name: str) -> None:
        try:
            self.node.server.store.delete("pods", name, namespace=NAMESPACE)
        except ApiError:
            return  # the agent has deleted it, as it does with failed pods that have a controller

    async def _kill_during_allocate(self, replicas: list[Json]) -> tuple[str, Usage]:
        """The pod whose Allocate was open, and the ledger before the kill."""
        for pod in replicas:
            self._submit(pod)
        for pod in replicas[:BEFORE_KILL]:
            await self._settled(name_of(pod))
        self.node.kubelet.pods_faults.delay_s = SLOW_PODS_S
        during = await self._open_allocate()
        before = await self.node.agent.usage()
        await self.node.agent.kill()
        self.node.kubelet.pods_faults.delay_s = 0.0
        for pod in replicas:
            await self._settled(name_of(pod))
        return during, before

    async def _open_allocate(self) -> str:
        """The pod for which the agent works on an Allocate right now."""
        calls = self.node.kubelet.calls
        try:
            await self.node.kubelet.changes.until(
                lambda: bool(calls.open("Allocate")), what="an Allocate is open", deadline_s=WAIT_S
            )
        except TimeoutError as error:
            raise DemoError(f"{error}, in which the agent could be killed") from error
        (uid, *_) = calls.open("Allocate")
        pods = self.node.server.store.objects("pods", namespace=NAMESPACE)
        return next(name_of(item) for item in pods if item["metadata"]["uid"] == uid)

    async def _usage_without(self, refused: list[str]) -> Usage:
        """The ledger as soon as it has released what refused pods may have been granted."""
        found: list[Usage] = []

        async def clean() -> bool:
            found.append(await self.node.agent.usage())
            return not any(entry.uid in refused for entry in found[-1].containers)

        await self.node.agent.until(clean, what="refused pods hold nothing", deadline_s=WAIT_S)
        return found[-1]

    async def _replace(self, refused: int) -> None:
        """What a ReplicaSet does with replicas that failed; then everything is looked at."""
        for number in range(REPLICAS + 1, REPLICAS + refused + 1):
            await self._run(replica(number))
        for name in list(self.pods):
            self._look(name)
        usage = await self.node.agent.usage()
        text = f"\nA ReplicaSet makes {refused} new pods for the refused ones. All GPUs after that:  "
        self.output.print(Text(text) + bars(_taken(usage)))
        self.output.check(
            node_checks.all_run(self.pods.values()),
            node_checks.answers_are_their_own(self.pods.values(), usage),
            node_checks.nothing_is_allocated_twice(usage),
        )


@asynccontextmanager
async def _set_up(home: Path, output: Output) -> AsyncIterator[tuple[Step, ...]]:
    async with one_node(home) as node:
        run = _NodeRun(node, output)
        yield run.start_agent, run.share, run.kill_agent, run.delete_pods, run.greedy_pods
        await node.agent.stop()


PART = Part(
    title=f"Part 1: one node. Pods share {GPUS} GPUs.",
    legend=(
        ("real", "vcuda agent, and the library that it mounts into containers"),
        ("stand-ins", "kubelet and API server; they speak the real protocols"),
        ("emulated", f"the driver, with {GPUS} A100 GPUs"),
    ),
    steps=(
        "vcuda agent starts and registers with kubelet",
        "pods come, and each gets its part of a GPU",
        f"the agent is killed (SIGKILL) while kubelet admits {REPLICAS} more pods",
        "all pods are deleted",
        "two pods on one GPU run a program that takes all it can get",
    ),
    set_up=_set_up,
)


def _shares(rows: Iterable[tuple[Example, SeenPod, Usage]], *, wide: bool) -> Table:
    """One line for each pod, in the order in which they came; the last column is the node after it."""
    shown = table("pod", "asks for", "gets", *([""] if wide else []), "all GPUs now")
    for example, pod, usage in rows:
        note = [Text(example.shows, style="dim")] if wide else []
        shown.add_row(example.name, example.asks, good(_gets(pod), pod.phase == "Running"), *note, bars(_taken(usage)))
    return shown


def _comparison(before: Usage, after: Usage) -> Table:
    """Both ledgers side by side, one line for each container."""
    shown = table("container", "before the kill", "", "after the restart")
    old, new = _by_container(before), _by_container(after)
    for name in old | new:
        same = old.get(name) == new.get(name)
        mark = Text("=", style="green") if same else Text("≠", style="yellow")
        shown.add_row(name, old.get(name, "nothing"), mark, new.get(name, "released (pod refused)"))
    return shown


def _slices(slices: Iterable[Slice]) -> Table:
    """Asked, limit and got, two lines for each container."""
    shown = table("container", "asks for", "limit", "gets", "", wrapped=(4,))
    for column in shown.columns[1:4]:
        column.justify = "right"
    for each in slices:
        asked, limit, got = each.blocks * BLOCK_MIB, each.limit_bytes // MIB, each.held_bytes // MIB
        context = (each.held_bytes - each.report.got_bytes) // MIB
        ended = Text(f"then {each.report.refusal}; CUDA context: {context} MiB", style="dim")
        shown.add_row(each.pod, f"{asked} MiB", f"{limit} MiB", good(f"{got} MiB", got <= limit), ended)
        what = "of the GPU's time"
        if each.cpu_wait_s >= BUSY_S:
            what += f"; it waited {each.cpu_wait_s:.1f} s for a CPU"
        share = good(f"{each.report.share_percent:.1f} %", node_checks.is_near(each))
        shown.add_row("", f"{each.cores} cores", f"{each.limit_cores} %", share, Text(what, style="dim"))
    return shown


def _taken(usage: Usage) -> list[int]:
    """Cores, by minor."""
    return [gpu.cores_allocated for gpu in sorted(usage.gpus, key=lambda gpu: gpu.minor)]


def _by_container(usage: Usage) -> dict[str, str]:
    return {f"{entry.pod}/{entry.container}": _holds(entry) for entry in usage.containers}


def _holds(entry: ContainerUsage) -> str:
    gpus = _gpus(share.minor for share in entry.gpus)
    whole = len(entry.gpus) > 1 or entry.cores == 100
    return gpus if whole else f"{gpus}: {entry.cores} cores, {entry.blocks // BLOCKS_PER_GIB} GiB"


def _gets(pod: SeenPod) -> str:
    if pod.phase == "Failed":
        return "refused"
    return _gpus(pod.gpus) if pod.gpus else pod.phase


def _gpus(minors: Iterable[object]) -> str:
    names = [str(minor) for minor in minors]
    return f"GPU{'s' * (len(names) > 1)} {', '.join(names)}"
