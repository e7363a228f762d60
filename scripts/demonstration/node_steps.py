"""The node's show: pods share eight GPUs, the agent is killed, greedy programs get their share and no more.

In: a folder. Out: what happens, printed step by step, and checks. `DemoError` only if the next step makes no sense any
more.
"""

import time
from dataclasses import dataclass, field
from pathlib import Path

from deviceplugin.observe.usage import Usage
from sandbox.apiserver import ApiError
from sandbox.consistency import SeenPod, look
from sandbox.emulated_gpus import BLOCK_MIB
from sandbox.gpunode import GpuNode
from scripts.demonstration import greedy, node_checks
from scripts.demonstration.greedy import MIB, Slice
from scripts.demonstration.output import Output
from scripts.demonstration.pods import CORE, GREEDY, IMPOSSIBLE, MEMORY, NAMESPACE, TEAM, Json, name_of, replica
from scripts.demonstration.setup import GPUS, NODE, DemoError, one_node

WAIT_S = 60.0
REPLICAS = 6
BEFORE_KILL = 2  # so many replicas are admitted before the agent is killed
SLOW_PODS_S = 0.4  # kubelet takes so long to list its pods, so that the kill hits the middle of an Allocate
BUSY_S = 0.2


async def show(home: Path, output: Output) -> None:
    output.title(
        f"Show 1: one node. Pods share {GPUS} GPUs.",
        "real: vcuda agent, and the library that it mounts into containers",
        f"stand-ins: kubelet, the API server, and a driver that emulates {GPUS} A100 GPUs",
    )
    async with one_node(home) as node:
        run = _NodeRun(node, output)
        for step in (run.start_agent, run.share, run.kill_agent, run.replace, run.delete_pods, run.greedy_pods):
            await step()
        await node.agent.stop()


@dataclass(slots=True)
class _NodeRun:
    """The steps and what they have in common: the node, and the pods that were submitted."""

    node: GpuNode
    output: Output
    pods: dict[str, SeenPod] = field(default_factory=dict)

    # Steps

    async def start_agent(self) -> None:
        self.output.step("vcuda agent starts and registers with kubelet")
        seconds = await self._start()
        cores, blocks = (self.node.kubelet.allocatable(name) for name in (CORE, MEMORY))
        self.output.say(
            f"The agent was ready after {seconds:.1f} s. Kubelet now offers {GPUS} GPUs as {cores} cores (100 cores "
            f"are one GPU) and {blocks} memory blocks of {BLOCK_MIB} MiB."
        )

    async def share(self) -> None:
        self.output.step("pods come, and each gets its part of a GPU")
        pods = [(await self._run(pod), asks, shows) for pod, asks, shows in TEAM]
        rows = [(pod.name, asks, _gpus(pod) if pod.gpus else pod.phase, shows) for pod, asks, shows in pods]
        self.output.table(("pod", "asks for", "gets", ""), *rows)
        refused = await self._run(IMPOSSIBLE)
        del self.pods[refused.name]
        said = refused.message.rpartition(" desc = ")[2].removesuffix(", which is unexpected") or "no message"
        self.output.say(f"{refused.name} was refused: {said}\n\nThe agent's picture of the node (GET /graph):\n\n")
        self.output.say(await self.node.agent.graph())
        self.output.check(node_checks.refused_in_words(refused, words="150"))

    async def kill_agent(self) -> None:
        self.output.step(f"the agent is killed (SIGKILL) while kubelet admits {REPLICAS} more pods")
        replicas = [replica(number) for number in range(1, REPLICAS + 1)]
        running = {(pod.uid, item.name) for pod in self.pods.values() for item in pod.containers if not item.init}
        during, before = await self._kill_during_allocate(replicas)
        refused = [pod for pod in map(self._look, map(name_of, replicas)) if pod.phase == "Failed"]
        uids = [self.pods.pop(pod.name).uid for pod in refused]
        admitted = [self.pods[name].uid for name in map(name_of, replicas[BEFORE_KILL:]) if name in self.pods]
        seconds = await self._start()
        for name in map(name_of, replicas):
            if name in self.pods:
                await self._settled(name)
        after = await self._usage_without(uids)
        self.output.say(
            f"The agent was killed during Allocate for {during}. Without the agent kubelet refused {len(refused)} of "
            f"the {REPLICAS} pods. The agent was started again and was ready after {seconds:.1f} s."
        )
        alive = {key for key in running if self.node.kubelet.runs(*key)}
        self.output.check(
            node_checks.same_ledger(before, after, refused=uids, admitted=admitted),
            node_checks.still_running(running, alive),
        )

    async def replace(self) -> None:
        refused = [number for number in range(1, REPLICAS + 1) if f"web-{number}" not in self.pods]
        self.output.step(f"a ReplicaSet makes {len(refused)} new pods for the refused ones")
        for number in refused:
            await self._run(replica(REPLICAS + number))
        pods = [self._look(name) for name in list(self.pods)]
        usage = await self.node.agent.usage()
        self.output.check(
            node_checks.all_run(pods),
            node_checks.answers_are_their_own(pods, usage),
            node_checks.nothing_is_allocated_twice(usage),
        )

    async def delete_pods(self) -> None:
        self.output.step("all pods are deleted")
        for name in self._names():
            self._delete(name)
        await self.node.server.until(lambda: not self._names(), seconds=WAIT_S)
        self.pods.clear()

        async def empty() -> bool:
            return not (await self.node.agent.usage()).containers

        await self.node.agent.until(empty, what="the ledger is empty", deadline_s=WAIT_S)
        self.output.check(node_checks.ledger_is_empty(await self.node.agent.usage()))

    async def greedy_pods(self) -> None:
        self.output.step("two pods on one GPU run a program that takes all it can get")
        pods = [await self._run(pod) for pod in GREEDY]
        self.output.say(
            f"Both pods run on {_gpus(pods[0])}. Their program knows nothing of vcuda: it allocates memory until CUDA "
            f"refuses, and then keeps the GPU busy for {greedy.SECONDS:g} s.\n\n"
        )
        slices = await greedy.run(self.node, pods)
        rows = [row for each in slices for row in _rows(each)]
        self.output.table(("container", "asks for", "limit", "gets", ""), *rows)
        self.output.check(
            node_checks.share_one_gpu(pods),
            node_checks.memory_ends_at_the_limit(slices),
            node_checks.time_is_shared_as_asked(slices),
        )

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

    async def _settled(self, name: str, *, or_waiting: bool = False) -> None:
        """`or_waiting`: or kubelet has admitted it, and its containers wait for the agent."""

        def status() -> Json:
            found: Json = self.node.server.store.get("pods", name, namespace=NAMESPACE)["status"]
            return found

        def settled() -> bool:
            return status()["phase"] in ("Running", "Failed") or (or_waiting and bool(_held(status())))

        try:
            await self.node.server.until(settled, seconds=WAIT_S)
        except TimeoutError as error:
            raise DemoError(
                f"after {WAIT_S:g} s pod {name} neither runs nor is refused: {_waiting(status())}"
            ) from error

    def _look(self, name: str) -> SeenPod:
        self.pods[name] = look(self.node, name, namespace=NAMESPACE)
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
        for pod in replicas[:BEFORE_KILL]:
            await self._run(pod)
        self.node.kubelet.pods_faults.delay_s = SLOW_PODS_S
        for pod in replicas[BEFORE_KILL:]:
            self._submit(pod)
        during = await self._open_allocate()
        before = await self.node.agent.usage()
        await self.node.agent.kill()
        self.node.kubelet.pods_faults.delay_s = 0.0
        for pod in replicas:
            await self._settled(name_of(pod), or_waiting=True)
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


def _held(status: Json) -> list[Json]:
    """Containers of a pod that do not start, and why."""
    states = [item["state"] for kind in ("initContainerStatuses", "containerStatuses") for item in status.get(kind, [])]
    return [state["waiting"] for state in states if "waiting" in state]


def _waiting(status: Json) -> str:
    held = [f"{item['reason']}: {item['message']}" for item in _held(status)]
    return "; ".join(held) or "kubelet has not looked at it"


def _rows(each: Slice) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Memory and time: asked, limit and got."""
    asked, limit, got = each.blocks * BLOCK_MIB, each.limit_bytes // MIB, each.held_bytes // MIB
    context = (each.held_bytes - each.report.got_bytes) // MIB
    ended = f"then {each.report.refusal}; CUDA context: {context} MiB"
    waited = f"; it waited {each.cpu_wait_s:.1f} s for a CPU" if each.cpu_wait_s >= BUSY_S else ""
    percent = (f"{each.cores} cores", f"{each.limit_cores} %", f"{each.report.share_percent:.1f} %")
    return (
        (each.pod, f"{asked} MiB", f"{limit} MiB", f"{got} MiB", ended),
        ("", *percent, f"of the GPU's time{waited}"),
    )


def _gpus(pod: SeenPod) -> str:
    return f"GPU{'s' * (len(pod.gpus) > 1)} {', '.join(map(str, pod.gpus))}"
