"""The cluster's part: `vcuda scheduler` chooses node and GPUs, agents obey, and pods that wait learn why.

In: a cluster in which all but scheduler and agents runs. Out: what happens, printed step by step, and checks.
`DemoError` only if the next step makes no sense any more.
"""

import asyncio
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
from rich.text import Text

from sandbox.admission import DeniedError, ca_bundle, create_pod
from sandbox.emulated_gpus import REPOSITORY
from sandbox.inventories import made_up_inventory
from sandbox.program import clean_environment
from sandbox.scheduler import PROGRAM, explain
from scripts.demonstration import cluster_checks, cluster_inspect, cluster_tables
from scripts.demonstration.cluster_inspect import Gang, Placed, PolicyRun, Simulated, Survivor, Waited, WebhookReview
from scripts.demonstration.output import Output, Part, Step
from scripts.demonstration.pods import (
    ARRIVALS,
    BAD,
    CORE,
    HAMI,
    LARGE,
    NAMESPACE,
    PLAIN,
    RACKS,
    SERVICES,
    SURVIVORS,
    WAITING,
    Json,
    arrival,
    member,
    name_of,
)
from scripts.demonstration.setup import CLUSTER_GPUS, CLUSTER_NODES, DemoError, SmallCluster, racks, small_cluster

WAIT_S = 60.0
WHOLE_NODE = 800
POLICIES = tuple(cluster_tables.PREFERS)
FITTING = CLUSTER_GPUS * len(CLUSTER_NODES)
EXAMPLE = "benchmarks/traces/example"
SIMULATE = ("simulate", "--nodes", f"{EXAMPLE}-nodes.csv", "--pods", f"{EXAMPLE}-pods.csv")


@dataclass(slots=True)
class _ClusterRun:
    """The steps and what they have in common; `moments` are all looks at pods, for the checks about GPUs."""

    cluster: SmallCluster
    output: Output
    moments: list[tuple[Placed, ...]] = field(default_factory=list)

    # Steps

    async def start(self) -> None:
        cluster, began = self.cluster, time.monotonic()
        await cluster.scheduler.start()
        agents = (node.start_agent(deadline_s=WAIT_S) for node in cluster.nodes.values())
        await asyncio.gather(cluster.scheduler.wait_ready(deadline_s=WAIT_S), *agents)
        await cluster.scheduler.wait_figure("gpus", FITTING, what="the agents' GPUs are known", deadline_s=WAIT_S)
        await self._until(self._is_offered, lambda: "kubelet does not offer the GPUs of both nodes")
        await self._until(lambda: bool(ca_bundle(cluster.server)), lambda: "the webhook has no caBundle")
        self.output.say(
            f"Ready after {time.monotonic() - began:.1f} s: {len(CLUSTER_NODES)} nodes with {CLUSTER_GPUS} GPUs each. "
            "vcuda scheduler serves TLS: it made its own CA and wrote it into the webhook's caBundle."
        )
        self.output.check(cluster_checks.ca_is_trusted(cluster.ca(), ca_bundle(cluster.server)))

    async def review(self) -> None:
        plain = WebhookReview("share", PLAIN, await self._submit(PLAIN))
        hami = WebhookReview("hami", HAMI, await self._submit(HAMI))
        typo = WebhookReview("typo", BAD, refusal=await self._refusal(BAD))
        self.output.print(cluster_tables.reviews((plain, hami)))
        self.output.print(Text.assemble(("typo asks for 150 cores and was refused: ", "red"), typo.refusal))
        self.output.check(
            cluster_checks.sent_to_vcuda_scheduler((plain, hami)),
            cluster_checks.hami_is_translated(hami),
            cluster_checks.refused_in_words(typo, words="100 or 200"),
        )

    async def place(self) -> None:
        names = ["share", "hami"]
        async with self.cluster.kube_scheduler.at_work():
            await self._running(*names)
            for pod in SERVICES:
                names.append(name_of(await self._submit(pod)))
                await self._running(names[-1])
        self.output.print(cluster_tables.placed(await self._look(names)))
        self.output.say(
            "embed and rerank ask for the emptiest node (policy spread, by annotation). The other pods go to the "
            "fullest node that has room."
        )

    async def wait(self) -> None:
        cluster, name, ends = self.cluster, name_of(WAITING), name_of(HAMI)
        async with cluster.kube_scheduler.at_work():
            await self._submit(WAITING)
            await self._until(
                lambda: cluster_inspect.condition(cluster, name) != cluster_inspect.UNSCHEDULED,
                lambda: f"kube-scheduler has not looked at pod {name}",
            )
            condition = cluster_inspect.condition(cluster, name)
            self.output.print(
                Text.assemble(f"{name} asks for 75 cores. `kubectl describe pod` would show: ", (condition, "yellow"))
            )
            explanation = await explain(cluster.scheduler, f"{NAMESPACE}/{name}", cluster.ca_file())
            self.output.say(f"\n$ vcuda explain {NAMESPACE}/{name}", style="dim")
            self.output.say(explanation)
            began = time.monotonic()
            if not cluster_inspect.node_of(cluster, name):
                cluster.server.store.delete("pods", ends, namespace=NAMESPACE)
                await self._running(name)
        seconds = time.monotonic() - began
        placed = await self._look(cluster_inspect.names(cluster))
        where = next((f"{each.node}, GPU {', '.join(map(str, each.gpus))}" for each in placed if each.pod == name), "")
        self.output.say(f"\n{ends} was deleted. {seconds:.1f} s later {name} ran on {where}, without help.")
        waited = Waited(name, condition, explanation, ends, cluster_inspect.phase(cluster, name))
        gpus = (f"GPU {minor}" for minor in range(CLUSTER_GPUS))
        self.output.check(
            cluster_checks.is_explained(waited, gpus=gpus, nodes=CLUSTER_NODES),
            cluster_checks.runs_when_there_is_room(waited),
        )

    async def compare_policies(self) -> None:
        wanted = ", ".join({50: "½"}.get(cores, f"{cores // 100}") for cores in ARRIVALS)
        self.output.say(
            f"Four nodes join that are only Node objects. Pods come that ask for {wanted} GPUs, and then one that asks "
            "for 8. This order was chosen to show how the policies differ.\n"
        )
        scheduler, before = self.cluster.scheduler, len(cluster_inspect.names(self.cluster))
        runs = []
        with racks(self.cluster.server):
            gpus = sum(RACKS.values()) + FITTING
            await scheduler.wait_figure("gpus", gpus, what="the scheduler knows the four nodes", deadline_s=WAIT_S)
            for policy in POLICIES:
                runs.append(await self._run_policy(policy))
                await scheduler.wait_figure(
                    "pods", before, what="the scheduler has removed the deleted pods", deadline_s=WAIT_S
                )
        self.output.print(cluster_tables.policies(runs))
        self.output.check(
            cluster_checks.every_arrival_runs(runs), cluster_checks.fragmentation_keeps_a_node_whole(runs)
        )

    async def kill_scheduler(self) -> None:
        cluster = self.cluster
        await self._clear()
        pods = [await self._submit(pod) for pod in SURVIVORS]
        filtered = [await self._filtered(pod) for pod in pods]
        reserved = round((await cluster.scheduler.figures())["reservations"])
        await cluster.scheduler.kill()
        refused = await cluster.kube_scheduler.bind(pods[0], filtered[0])
        self.output.say(
            f"It had reserved GPUs for {reserved} pods, only in its memory. A bind call now fails: {refused}."
        )
        began = time.monotonic()
        await cluster.scheduler.start()
        await cluster.scheduler.wait_ready(deadline_s=WAIT_S)
        self.output.say(
            f"vcuda scheduler was started again and was ready after {time.monotonic() - began:.1f} s. Now "
            "kube-scheduler sends every bind call twice, as it does after a lost answer.\n"
        )
        for _ in range(2):
            calls = (cluster.kube_scheduler.bind(pod, node) for pod, node in zip(pods, filtered, strict=True))
            if errors := [error for error in await asyncio.gather(*calls) if error]:
                raise DemoError(f"bind failed after the restart: {errors[0]}")
        names = [name_of(pod) for pod in pods]
        await self._running(*names)
        survivors = [self._survivor(name, node) for name, node in zip(names, filtered, strict=True)]
        self.output.print(cluster_tables.survivors(survivors, await self._look(names)))
        self.output.check(cluster_checks.nothing_is_lost(survivors))

    async def run_gangs(self) -> None:
        await self._clear()
        large = await self._gang("five", FITTING + 1)
        await self._clear()
        fitting = await self._gang("four", FITTING)
        await self._running(*fitting.bound)
        await self._look(fitting.bound)
        self.output.print(cluster_tables.gangs((large, fitting)))
        self.output.print(
            Text.assemble(
                "Each member asks for 60 cores, so that no two share a GPU. "
                f"kube-scheduler says of the gang of {large.size}: ",
                (large.why, "yellow"),
            )
        )
        self.output.check(cluster_checks.leaves_nothing_behind(large), cluster_checks.is_bound_whole(fitting))

    async def simulate(self) -> None:
        self.output.say(f"$ vcuda {' '.join(SIMULATE)}", style="dim")
        document = await _simulated()
        policies = document["policies"].items()
        runs = [msgspec.convert({"policy": name, **each["mean"]}, Simulated) for name, each in policies]
        self.output.print(cluster_tables.simulations(runs))
        self.output.say(
            f"{document['gpus']} GPUs on {document['nodes']} nodes; {document['pods']} pods come in random order, "
            "again and again, until they have asked for 100 % and for 130 % of all GPUs.",
            style="dim",
        )
        self.output.check(cluster_checks.fragmentation_allocates_most(runs))

    async def stop(self) -> None:
        self.output.check(
            cluster_checks.agents_obey(self.moments), cluster_checks.nothing_is_chosen_twice(self.moments)
        )
        await self.cluster.scheduler.stop()
        for node in self.cluster.nodes.values():
            await node.agent.stop()

    # Their parts

    async def _submit(self, pod: Json) -> Json:
        """What `kubectl create` does: through the webhook into the store."""
        try:
            return (await create_pod(self.cluster.server, self.cluster.scheduler, pod)).stored
        except DeniedError as error:
            raise DemoError(f"the webhook refused pod {name_of(pod)}: {error}") from error

    async def _refusal(self, pod: Json) -> str:
        try:
            await create_pod(self.cluster.server, self.cluster.scheduler, pod)
        except DeniedError as error:
            return str(error)
        return ""

    async def _running(self, *names: str) -> None:
        """Until their containers have started."""
        await self._until(
            lambda: all(cluster_inspect.phase(self.cluster, name) == "Running" for name in names),
            lambda: "; ".join(self._trouble(names)),
        )

    async def _until(self, holds: Callable[[], bool], otherwise: Callable[[], str]) -> None:
        try:
            await self.cluster.server.until(holds, seconds=WAIT_S)
        except TimeoutError as error:
            raise DemoError(f"after {WAIT_S:g} s {otherwise()}") from error

    def _trouble(self, names: Iterable[str]) -> Iterable[str]:
        for name in names:
            pod = cluster_inspect.stored(self.cluster, name)
            if pod["status"].get("phase") != "Running":
                why = pod["status"].get("message") or cluster_inspect.condition(self.cluster, name)
                yield f"pod {name} on node {pod['spec'].get('nodeName') or 'none'} does not run: {why}"

    async def _look(self, names: Iterable[str]) -> tuple[Placed, ...]:
        self.moments.append(await cluster_inspect.placed(self.cluster, names))
        return self.moments[-1]

    async def _clear(self) -> None:
        """All pods go, in the end also from the scheduler's cache."""
        for name in cluster_inspect.names(self.cluster):
            self.cluster.server.store.delete("pods", name, namespace=NAMESPACE)
        await self._until(lambda: not cluster_inspect.names(self.cluster), lambda: "some pods are not gone")
        await self.cluster.scheduler.wait_figure(
            "pods", 0, what="the scheduler has removed the deleted pods", deadline_s=WAIT_S
        )

    def _is_offered(self) -> bool:
        nodes = self.cluster.server.store.objects("nodes")
        offered = [int((node["status"].get("allocatable") or {}).get(CORE, 0)) for node in nodes]
        return offered == [100 * CLUSTER_GPUS] * len(CLUSTER_NODES)

    async def _run_policy(self, policy: str) -> PolicyRun:
        pods = [arrival(policy, number, cores) for number, cores in enumerate(ARRIVALS, 1)]
        waiting = [name_of(pod) for pod in pods if not await self._scheduled(pod)]
        taken = self._taken()
        large = await self._scheduled(arrival(policy, 0, WHOLE_NODE))
        for name in (*map(name_of, pods), LARGE):
            self.cluster.server.store.delete("pods", name, namespace=NAMESPACE, grace=0)
        return PolicyRun(policy, taken, tuple(waiting), large)

    async def _scheduled(self, pod: Json) -> str:
        """Its node; empty if it has none."""
        return (await self.cluster.kube_scheduler.schedule(await self._submit(pod))).node

    def _taken(self) -> dict[str, tuple[int, ...]]:
        """Cores of each GPU on the racks by minor, from the pods' annotations."""
        cores: Counter[str] = Counter()
        for pod in self.cluster.server.store.objects("pods", namespace=NAMESPACE):
            if pod["spec"].get("nodeName") in RACKS:
                for share in (each for shares in cluster_inspect.chosen(pod).values() for each in shares):
                    cores[share.uuid] += share.cores
        return {
            name: tuple(cores[str(gpu.uuid)] for gpu in made_up_inventory(name, gpus=count).gpus)
            for name, count in RACKS.items()
        }

    async def _filtered(self, pod: Json) -> str:
        found = await self.cluster.kube_scheduler.filter(pod)
        if not found.node:
            raise DemoError(f"pod {name_of(pod)} found no node: {found.why}")
        return found.node

    def _survivor(self, name: str, filtered: str) -> Survivor:
        bound = cluster_inspect.node_of(self.cluster, name)
        writes = cluster_inspect.bindings(self.cluster, name)
        return Survivor(name, filtered, bound, writes, cluster_inspect.phase(self.cluster, name))

    async def _gang(self, name: str, size: int) -> Gang:
        scheduler, kube_scheduler = self.cluster.scheduler, self.cluster.kube_scheduler
        pods = [await self._submit(member(name, number)) for number in range(1, size + 1)]
        found = await kube_scheduler.find_all(pods)
        reserved = round((await scheduler.figures())["reservations"])
        await kube_scheduler.end_cycle(pods, found)
        left = await scheduler.settled_figure("reservations", 0)
        bound = tuple(each for each in map(name_of, pods) if cluster_inspect.node_of(self.cluster, each))
        return Gang(size, sum(bool(each.node) for each in found), reserved, left, bound, found[-1].why)


async def _simulated() -> dict[str, Any]:
    """The document that `vcuda simulate` prints."""
    policies = [word for policy in POLICIES for word in ("--node-policy", policy)]
    process = await asyncio.create_subprocess_exec(
        *(str(PROGRAM), *SIMULATE, *policies, "--output", "json"),
        cwd=REPOSITORY,
        env=clean_environment({}),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(WAIT_S):
            out, errors = await process.communicate()
    except TimeoutError:
        raise DemoError(f"vcuda simulate did not end within {WAIT_S:g} s") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        raise DemoError(f"vcuda simulate failed: {errors.decode().strip() or 'it printed nothing'}")
    found: dict[str, Any] = json.loads(out)
    return found


@asynccontextmanager
async def _set_up(home: Path, output: Output) -> AsyncIterator[tuple[Step, ...]]:
    async with small_cluster(home) as cluster:
        run = _ClusterRun(cluster, output)
        yield (
            *(run.start, run.review, run.place, run.wait),
            *(run.compare_policies, run.kill_scheduler, run.run_gangs, run.simulate),
        )
        await run.stop()


PART = Part(
    title="Part 2: a cluster. vcuda scheduler chooses node and GPUs, and says why a pod waits.",
    legend=(
        ("real", "vcuda scheduler (extender and webhook), vcuda agent on two nodes, vcuda explain, vcuda simulate"),
        ("stand-ins", "API server, kubelet, kube-scheduler; they speak the real protocols"),
        ("emulated", f"the driver, with {CLUSTER_GPUS} A100 GPUs on each node"),
    ),
    steps=(
        "vcuda scheduler starts, and two agents report their GPUs",
        "users submit pods; the webhook completes or refuses them",
        "the extender chooses GPUs; the agent grants exactly these",
        "a pod finds no GPU; vcuda explain says what is missing",
        "three node policies place the same pods in the same order",
        "vcuda scheduler is killed (SIGKILL) between filter and bind",
        f"a gang of {FITTING + 1} pods does not fit; a gang of {FITTING} pods runs",
        "vcuda simulate compares the policies on a workload",
    ),
    set_up=_set_up,
)
