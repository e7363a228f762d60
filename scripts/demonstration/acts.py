"""The play: pods come, the agent is killed while pods are being admitted, comes back, pods go.

In: a node and a narrator. Out: a `Document`. Each act checks what it shows; the play breaks off with a `DemoError`
only where going on makes no sense.
"""

import time
from dataclasses import dataclass, field

from deviceplugin.observe.usage import Usage
from scripts.demonstration import greedy, promises, seen
from scripts.demonstration.cast import COMPANY, GREEDY, IMPOSSIBLE, NAMESPACE, Role, replica
from scripts.demonstration.document import VERSION, Document, GreedyContainer, Ledgers, Promise, SeenPod, Verdict
from scripts.demonstration.failure import DemoError
from scripts.demonstration.show import Show
from scripts.demonstration.stage import GPUS, NODE, PROFILE
from tests.fakes.apiserver import ApiError
from tests.fakes.gpunode import GpuNode

REPLICAS = 6
BEFORE_KILL = 2  # so many of them are admitted before
SLOW_PODS_S = 0.4  # kubelet takes so long to list its pods, so that the kill hits the middle of an Allocate
READY_S = 20.0
RUN_S = 15.0
EMPTY_S = 20.0


@dataclass(slots=True)
class Play:
    """One performance; the fields are what it has found so far."""

    stage: GpuNode
    show: Show
    pods: dict[str, SeenPod] = field(default_factory=dict)
    refused: dict[str, SeenPod] = field(default_factory=dict)
    kept: list[Promise] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    ledgers: Ledgers | None = None
    slices: tuple[GreedyContainer, ...] = ()

    async def perform(self) -> None:
        began = time.monotonic()
        await self.start_agent()
        await self.pods_come()
        before, after = await self.kill()
        end = await self.pods_go()
        self.ledgers = Ledgers(before, after, end)
        await self.greedy_pods()
        await self.stage.agent.stop()
        self.seconds["total"] = round(time.monotonic() - began, 3)

    async def start_agent(self) -> None:
        self.show.act(1, "The agent starts and registers with kubelet")
        self.seconds["first_start"] = await self._start()
        cores, blocks = (self.stage.kubelet.allocatable(name) for name in (seen.CORE, seen.MEMORY))
        self.show.say(
            f"ready after {self.seconds['first_start']:.1f} s: {GPUS} GPUs are on offer as "
            f"[bold]{cores} cores[/] (100 are one GPU) and [bold]{blocks} blocks[/] of 256 MiB"
        )

    async def pods_come(self) -> None:
        self.show.act(2, "Pods come, and every one gets its part of a GPU")
        rows: list[tuple[Role, SeenPod, Usage]] = []
        for role in (*COMPANY, IMPOSSIBLE):
            self._submit(role)
            await self._settled(role.name)
            rows.append((role, self._look(role.name), await self.stage.agent.usage()))
        self.show.table(rows)
        self.show.say(f"[red]{IMPOSSIBLE.name} was refused:[/] {_sentence(self.pods[IMPOSSIBLE.name])}")
        self.show.picture(await self.stage.agent.graph())
        self._keep(promises.refused_in_words(self._refuse(IMPOSSIBLE.name), words="150"))

    async def kill(self) -> tuple[Usage, Usage]:
        """Kills it while an Allocate is open, compares the ledgers, and has refused replicas made again."""
        self.show.act(3, f"SIGKILL while {REPLICAS} replicas of web are being admitted")
        replicas = [replica(number) for number in range(1, REPLICAS + 1)]
        running = {(pod.uid, item.name) for pod in self.pods.values() for item in pod.containers if not item.init}
        for role in replicas:
            self._submit(role)
        for role in replicas[:BEFORE_KILL]:
            await self._settled(role.name)
        self.stage.kubelet.pods_faults.delay_s = SLOW_PODS_S
        hit = await self._open_allocate()
        before = await self.stage.agent.usage()
        await self.stage.agent.kill()
        self.stage.kubelet.pods_faults.delay_s = 0.0
        for role in replicas:
            await self._settled(role.name)
        refused = [role for role in replicas if self._look(role.name).phase == "Failed"]
        uids = [self._refuse(role.name).uid for role in refused]
        self.show.say(
            f"killed in the middle of an Allocate for {hit}; without the agent kubelet refused {len(refused)} replicas"
        )
        self.seconds["restart"] = await self._start()
        after = await self._without(uids)
        self.show.say(f"started again, ready after {self.seconds['restart']:.1f} s; the ledger:\n")
        self.show.comparison(before, after)
        self._keep(promises.same_ledger(before, after, refused=uids))
        alive = {key for key in running if self.stage.kubelet.runs(*key)}
        self._keep(promises.still_running(running, alive))
        await self._replace(refused, first=REPLICAS + 1)
        return before, after

    async def pods_go(self) -> Usage:
        self.show.act(4, "Pods go")
        for name in self._names():
            self._delete(name)
        await self.stage.server.until(lambda: not self._names(), seconds=RUN_S)

        async def empty() -> bool:
            return not (await self.stage.agent.usage()).containers

        began = time.monotonic()
        await self.stage.agent.until(empty, what="the ledger is empty", deadline_s=EMPTY_S)
        self.seconds["given_back"] = round(time.monotonic() - began, 3)
        usage = await self.stage.agent.usage()
        self.show.say(f"all deleted; the ledger was empty {self.seconds['given_back']:.1f} s after the last one ended")
        self._keep(promises.ledger_is_empty(usage))
        return usage

    async def greedy_pods(self) -> None:
        self.show.act(5, "Two pods on one GPU run a program that takes all it can get")
        for role in GREEDY:
            self._submit(role)
            await self._settled(role.name)
        pods = [self._look(role.name) for role in GREEDY]
        self._keep(promises.share_one_gpu(pods))
        self.show.say(
            f"both are on GPU {', '.join(map(str, pods[0].gpus))}; the program is linked against libcuda.so.1 alone, "
            f"allocates until it is refused, and then keeps the GPU busy for {greedy.SECONDS:g} s\n"
        )
        self.slices = await greedy.run(
            self.stage, [self._asked(role, pod.uid) for role, pod in zip(GREEDY, pods, strict=True)]
        )
        self.show.slices(self.slices)
        self._keep(promises.memory_ends_at_the_limit(self.slices))
        self._keep(promises.time_is_shared_as_asked(self.slices))

    def _asked(self, role: Role, uid: str) -> greedy.Asked:
        (ask,) = role.asks
        view = self.stage.kubelet.container_view(uid, ask.container)
        return greedy.Asked(role.name, view, ask.cores, ask.blocks)

    def document(self, problem: str = "") -> Document:
        ok = not problem and all(promise.held for promise in self.kept)
        return Document(
            version=VERSION,
            profile=PROFILE.stem,
            node=NODE,
            pods=tuple(self.pods.values()),
            refused=tuple(self.refused.values()),
            greedy=self.slices,
            ledger=self.ledgers,
            seconds=self.seconds,
            verdict=Verdict(ok, problem or self._broken(), tuple(self.kept)),
        )

    async def _without(self, refused: list[str]) -> Usage:
        """The ledger as soon as it has let go of what the refused pods may have half got."""
        found: list[Usage] = []

        async def clean() -> bool:
            found.append(await self.stage.agent.usage())
            return not any(entry.uid in refused for entry in found[-1].containers)

        await self.stage.agent.until(clean, what="refused pods hold nothing", deadline_s=EMPTY_S)
        return found[-1]

    async def _replace(self, refused: list[Role], *, first: int) -> None:
        """What a ReplicaSet does with replicas that failed; then everything is looked at."""
        for number, _ in enumerate(refused, first):
            self._submit(replica(number))
            await self._settled(replica(number).name)
            self._look(replica(number).name)
        for name in list(self.pods):
            self._look(name)
        usage = await self.stage.agent.usage()
        self.show.bars(f"\nthe ReplicaSet made the {len(refused)} refused replicas again; all GPUs now", usage)
        self._keep(promises.all_run(self.pods.values()))
        self._keep(promises.answers_are_their_own(self.pods.values(), usage))
        self._keep(promises.nothing_is_given_twice(usage))

    async def _start(self) -> float:
        """Starts the agent; seconds until kubelet offers its devices."""
        began = time.monotonic()
        await self.stage.start_agent(deadline_s=READY_S)
        return round(time.monotonic() - began, 3)

    def _submit(self, role: Role) -> None:
        """What a user and a scheduler do."""
        self.stage.server.store.create("pods", role.manifest(), namespace=NAMESPACE)
        self.stage.server.store.bind(role.name, NODE, namespace=NAMESPACE)

    async def _settled(self, name: str) -> None:
        """Until it runs or is refused."""

        def done() -> bool:
            return self._phase(name) in ("Running", "Failed")

        try:
            await self.stage.server.until(done, seconds=RUN_S)
        except TimeoutError as error:
            raise DemoError(
                f"pod {name} neither runs nor is refused after {RUN_S:g} s: {seen.waiting(self.stage, name)}"
            ) from error

    async def _open_allocate(self) -> str:
        """The pod whose Allocate the agent is working on right now."""
        calls = self.stage.kubelet.calls
        try:
            await self.stage.kubelet.changes.until(
                lambda: bool(calls.open("Allocate")), what="an Allocate is open", deadline_s=RUN_S
            )
        except TimeoutError as error:
            raise DemoError(f"{error}, in which the agent could be killed") from error
        waiting = calls.open("Allocate")
        pods = self.stage.server.store.objects("pods", namespace=NAMESPACE)
        return str(next(item["metadata"]["name"] for item in pods if item["metadata"]["uid"] == waiting[0]))

    def _look(self, name: str) -> SeenPod:
        self.pods[name] = seen.pod(self.stage, name)
        return self.pods[name]

    def _refuse(self, name: str) -> SeenPod:
        """Moves it to those that did not get in."""
        self.refused[name] = self.pods.pop(name)
        return self.refused[name]

    def _names(self) -> list[str]:
        return [item["metadata"]["name"] for item in self.stage.server.store.objects("pods", namespace=NAMESPACE)]

    def _phase(self, name: str) -> str:
        phase: str = self.stage.server.store.get("pods", name, namespace=NAMESPACE)["status"]["phase"]
        return phase

    def _delete(self, name: str) -> None:
        try:
            self.stage.server.store.delete("pods", name, namespace=NAMESPACE)
        except ApiError:
            return  # the agent has removed it, as it does with failed pods that a controller owns

    def _keep(self, promise: Promise) -> None:
        self.kept.append(promise)

    def _broken(self) -> str:
        broken = [f"it is not true that {item.promise}: {item.found}" for item in self.kept if not item.held]
        return broken[0] + (f" (and {len(broken) - 1} more)" if len(broken) > 1 else "") if broken else ""


def _sentence(pod: SeenPod) -> str:
    """The agent's own words, without what kubelet puts around them."""
    return pod.message.rpartition(" desc = ")[2].removesuffix(", which is unexpected") or "no reason was given"
