"""The cluster's show: `vcuda scheduler` chooses node and GPUs, agents obey, and pods that wait learn why.

In: a folder. Out: what happens, printed step by step, and checks. `DemoError` only if the next step makes no sense any
more.
"""

import asyncio
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from sandbox.admission import DeniedError, ca_bundle, create_pod
from sandbox.consistency import look
from sandbox.scheduler import explain, page_server, vcuda
from scripts.demonstration import cluster_checks, cluster_inspect, greedy, volcano_steps
from scripts.demonstration.cluster_inspect import Gang, Placed, PolicyRun
from scripts.demonstration.output import Output
from scripts.demonstration.pods import (
    ARRIVALS,
    BUSY,
    CORE,
    HAMI,
    IMPOSSIBLE,
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
    task,
)
from scripts.demonstration.setup import (
    CLUSTER_GPUS,
    CLUSTER_NODES,
    DemoError,
    SmallCluster,
    publish_agents,
    racks,
    small_cluster,
)

WAIT_S = 60.0
WHOLE_NODE = 800
PREFERS = {"binpack": "the fullest node", "spread": "the emptiest node", "fragmentation": "least lost space"}
FITTING = CLUSTER_GPUS * len(CLUSTER_NODES)
SUMS_ONLY, MIXED, WHOLE_GPUS = (60,) * (FITTING + 1), (60, 40) * FITTING, (100,) * FITTING
"""The cores of the members of Volcano's gangs."""
EXAMPLE = "benchmarks/traces/example"
SIMULATE = ("simulate", "--nodes", f"{EXAMPLE}-nodes.csv", "--pods", f"{EXAMPLE}-pods.csv")


async def show(home: Path, output: Output) -> None:
    output.title(
        "Show 2: a cluster. vcuda scheduler chooses node and GPUs, and says why a pod is Pending.",
        "real: vcuda scheduler (extender and webhook), vcuda agent on two nodes, vcuda explain, vcuda simulate",
        "stand-ins: API server, kubelet, kube-scheduler, Volcano's scheduler, and a driver that emulates "
        f"{CLUSTER_GPUS} GPUs on each node",
    )
    async with small_cluster(home) as cluster:
        run = _ClusterRun(cluster, output)
        for step in (run.start, run.review, run.place, run.wait, run.compare_policies):
            await step()
        for step in (run.kill_scheduler, run.run_gangs, run.run_volcano, run.simulate, run.stop):
            await step()


async def show_page(home: Path, output: Output) -> None:
    """Until it is cancelled."""
    output.title(
        "The page: a small cluster in your browser.",
        "real: vcuda scheduler, vcuda agent on two nodes, vcuda ui",
        f"stand-ins: API server, kubelet, kube-scheduler, and a driver that emulates {CLUSTER_GPUS} GPUs on each node",
    )
    async with small_cluster(home) as cluster:
        run = _ClusterRun(cluster, output)
        for step in (run.start, run.review, run.place, run.browse):
            await step()


@dataclass(slots=True)
class _ClusterRun:
    """The steps and what they have in common; `moments` are all looks at pods, for the checks about GPUs."""

    cluster: SmallCluster
    output: Output
    moments: list[tuple[Placed, ...]] = field(default_factory=list)

    # Steps

    async def start(self) -> None:
        self.output.step("vcuda scheduler starts, and two agents report their GPUs")
        cluster, began = self.cluster, time.monotonic()
        await cluster.scheduler.start()
        agents = (node.start_agent(deadline_s=WAIT_S) for node in cluster.nodes.values())
        await asyncio.gather(cluster.scheduler.wait_ready(deadline_s=WAIT_S), *agents)
        await self._until_figure("gpus", FITTING)
        await self._until(self._is_offered, lambda: "kubelet does not offer the GPUs of both nodes")
        await self._until(lambda: bool(ca_bundle(cluster.server)), lambda: "the webhook has no caBundle")
        self.output.say(
            f"Ready after {time.monotonic() - began:.1f} s: {len(CLUSTER_NODES)} nodes with {CLUSTER_GPUS} GPUs each. "
            "vcuda scheduler serves TLS: it made its own CA and wrote it into the webhook's caBundle."
        )
        self.output.check(cluster_checks.ca_is_trusted(cluster.ca(), ca_bundle(cluster.server)))

    async def review(self) -> None:
        self.output.step("users submit pods; the webhook completes or refuses them")
        stored = [await self._submit(pod) for pod in (PLAIN, HAMI)]
        for before, after in zip((PLAIN, HAMI), stored, strict=True):
            self.output.say(f"{name_of(before)} asks for {_essence(before)}")
            self.output.say(f"  and is stored with {_essence(after)}")
        refusal = await self._refusal(IMPOSSIBLE)
        self.output.say(f"{name_of(IMPOSSIBLE)} asks for 150 cores and was refused: {refusal}")
        self.output.check(
            cluster_checks.sent_to_vcuda_scheduler(stored),
            cluster_checks.hami_is_translated(stored[1]),
            cluster_checks.refused_in_words(name_of(IMPOSSIBLE), refusal, words="100 or 200"),
        )

    async def place(self) -> None:
        self.output.step("the extender chooses GPUs; the agent allocates exactly these")
        names = [name_of(PLAIN), name_of(HAMI)]
        async with self.cluster.kube_scheduler.at_work():
            await self._running(*names)
            for pod in SERVICES:
                names.append(name_of(await self._submit(pod)))
                await self._running(names[-1])
        rows = [(each.pod, each.node, *_gpus(each)) for each in await self._look(names)]
        self.output.table(("pod", "node", "the extender chose", "the container sees"), *rows)
        self.output.say(
            "embed and rerank ask for the emptiest node (policy spread, by annotation). The other pods go "
            "where they leave the fewest useless cores (fragmentation, the default)."
        )

    async def wait(self) -> None:
        self.output.step("a pod finds no GPU; vcuda explain says what is missing")
        cluster, name, ends = self.cluster, name_of(WAITING), name_of(HAMI)
        async with cluster.kube_scheduler.at_work():
            await self._submit(WAITING)
            await self._until(
                lambda: cluster_inspect.condition(cluster, name) != cluster_inspect.UNSCHEDULED,
                lambda: f"kube-scheduler has not looked at pod {name}",
            )
            condition = cluster_inspect.condition(cluster, name)
            self.output.say(f"{name} asks for 75 cores. `kubectl describe pod` would show: {condition}")
            explanation = await explain(cluster.scheduler, f"{NAMESPACE}/{name}", cluster.ca_file())
            self.output.say(f"\n$ vcuda explain {NAMESPACE}/{name}\n{explanation}\n\n")
            if not cluster_inspect.node_of(cluster, name):
                cluster.server.store.delete("pods", ends, namespace=NAMESPACE)
                await self._running(name)
        await self._look(cluster_inspect.names(cluster))
        self.output.say(f"{ends} was deleted. Then {name} ran on {cluster_inspect.node_of(cluster, name)}.")
        gpus = (f"GPU {minor}" for minor in range(CLUSTER_GPUS))
        self.output.check(
            cluster_checks.is_explained(name, explanation, gpus=gpus, nodes=CLUSTER_NODES),
            cluster_checks.runs_when_there_is_room(name, condition, cluster_inspect.phase(cluster, name)),
        )

    async def browse(self) -> None:
        self.output.step("the cluster stays, with a Pending pod; the page shows it")
        cluster, name = self.cluster, name_of(WAITING)
        publish_agents(cluster)
        async with cluster.kube_scheduler.at_work():
            await self._submit(WAITING)
            await self._until(
                lambda: cluster_inspect.condition(cluster, name) != cluster_inspect.UNSCHEDULED,
                lambda: f"kube-scheduler has not looked at pod {name}",
            )
            async with self._busy(), page_server(cluster.scheduler, cluster.ca_file()) as address:
                self.output.say(
                    f"{' and '.join(BUSY)} run a program that takes all that it can get; the other pods leave their "
                    f"GPUs idle.\n\nOpen {address}\nThe address works once. Press Ctrl-C to end."
                )
                await asyncio.Event().wait()

    async def compare_policies(self) -> None:
        self.output.step("three node policies place the same pods in the same order")
        wanted = ", ".join(map(_size, ARRIVALS))
        self.output.say(
            f"Four nodes join that are only Node objects. Pods come that ask for {wanted} GPUs, and then one that asks "
            "for 8. This order was chosen to show how the policies differ.\n\n"
        )
        before = len(cluster_inspect.names(self.cluster))
        runs = []
        with racks(self.cluster.server):
            await self._until_figure("gpus", sum(RACKS.values()) + FITTING)
            for policy in PREFERS:
                runs.append(await self._run_policy(policy))
                await self._until_figure("pods", before)
        self.output.table(
            ("", *PREFERS),
            ("prefers", *PREFERS.values()),
            *((f"{name}, {gpus} GPUs", *(_sizes(run.nodes, name) for run in runs)) for name, gpus in RACKS.items()),
            ("then 8 GPUs", *(f"runs on {run.large}" if run.large else "Pending" for run in runs)),
        )
        self.output.check(
            cluster_checks.every_arrival_runs(runs), cluster_checks.fragmentation_keeps_a_node_whole(runs)
        )

    async def kill_scheduler(self) -> None:
        self.output.step("vcuda scheduler is killed (SIGKILL) between filter and bind")
        cluster = self.cluster
        await self._clear()
        pods = [await self._submit(pod) for pod in SURVIVORS]
        filtered = [await self._filtered(pod) for pod in pods]
        reserved = await cluster.scheduler.settled_figure("reservations", len(filtered))
        await cluster.scheduler.kill()
        refused = await cluster.kube_scheduler.bind(pods[0], filtered[0])
        await cluster.scheduler.start()
        await cluster.scheduler.wait_ready(deadline_s=WAIT_S)
        self.output.say(
            f"It had reserved GPUs for {reserved} pods, only in its memory. A bind call then failed: {refused}. "
            "vcuda scheduler was started again. Now kube-scheduler sends every bind call twice, as it does after a "
            "lost answer.\n\n"
        )
        for _ in range(2):
            calls = (cluster.kube_scheduler.bind(pod, node) for pod, node in zip(pods, filtered, strict=True))
            if errors := [error for error in await asyncio.gather(*calls) if error]:
                raise DemoError(f"bind failed after the restart: {errors[0]}")
        names = [name_of(pod) for pod in pods]
        await self._running(*names)
        await self._look(names)
        survivors = [cluster_inspect.survivor(cluster, *each) for each in zip(names, filtered, strict=True)]
        rows = [(each.pod, each.filtered, each.bound, str(each.writes)) for each in survivors]
        self.output.table(("pod", "filter named", "bound to", "times bound"), *rows)
        self.output.check(cluster_checks.nothing_is_lost(survivors))

    async def run_gangs(self) -> None:
        self.output.step(f"a gang of {FITTING + 1} pods does not fit; a gang of {FITTING} pods runs")
        await self._clear()
        large = await self._gang("five", FITTING + 1)
        await self._clear()
        fitting = await self._gang("four", FITTING)
        await self._running(*fitting.bound)
        await self._look(fitting.bound)
        counts = [(each.size, each.found, each.reserved, len(each.bound), each.left) for each in (large, fitting)]
        rows = [tuple(map(str, each)) for each in counts]
        self.output.table(("gang of", "found a node", "reserved during it", "bound", "reserved afterwards"), *rows)
        self.output.say(
            f"Each member asks for 60 cores, so that no two share a GPU. kube-scheduler says of the gang of "
            f"{large.size}: {large.why}"
        )
        self.output.check(cluster_checks.leaves_nothing_behind(large), cluster_checks.is_bound_whole(fitting))

    async def run_volcano(self) -> None:
        self.output.step("Volcano's scheduler places gangs; vcuda scheduler counts by GPUs")
        await self._clear()
        url = await volcano_steps.start_beside_volcano(self.cluster, deadline_s=WAIT_S)
        large = await volcano_steps.tried(self.cluster, url, await self._gang_for_volcano("large", SUMS_ONLY))
        await self._clear()
        mixed = await volcano_steps.tried(self.cluster, url, await self._gang_for_volcano("mixed", MIXED))
        await self._running(*mixed.bound)
        await self._until(lambda: self._are_announced(mixed.bound), lambda: "GPUs are not in the pods' annotations")
        seen = await self._look(mixed.bound)
        await self._clear()
        gang = await self._gang_for_volcano("lost", WHOLE_GPUS)
        lost = await volcano_steps.abandoned(self.cluster, url, gang)
        again = await volcano_steps.tried(self.cluster, url, gang)
        self.output.table(
            ("gang", "bound", "reserved afterwards"),
            (_members(SUMS_ONLY), str(len(large.bound)), str(large.left)),
            (_members(MIXED), str(len(mixed.bound)), str(mixed.left)),
            (
                f"{_members(WHOLE_GPUS)}; its scheduler dies",
                str(lost.bound),
                f"{lost.left}, {lost.seconds:.1f} s later",
            ),
            (f"{_members(WHOLE_GPUS)}; a scheduler starts", str(len(again.bound)), str(again.left)),
        )
        self.output.say(
            f"vcuda scheduler runs with --volcano, as beside Volcano's scheduler. By sums, {len(SUMS_ONLY)} pods of 60 "
            f"cores fit on {FITTING} GPUs, and two of 40 may share one, so that a pod of 60 finds none."
        )
        self.output.check(
            cluster_checks.sums_are_not_enough(large),
            cluster_checks.mixed_gang_fills_gpus(mixed, seen, gpus=FITTING),
            cluster_checks.promises_of_the_dead_end(lost, again),
        )

    async def simulate(self) -> None:
        self.output.step("vcuda simulate compares the policies on a workload")
        self.output.say(f"$ vcuda {' '.join(SIMULATE)}")
        policies = [f"--node-policy={policy}" for policy in PREFERS]
        status, text = await vcuda(*SIMULATE, *policies, "--output=json")
        if status:
            raise DemoError(f"vcuda simulate failed: {text}")
        document = json.loads(text)
        means = {name: each["mean"] for name, each in document["policies"].items()}
        found = {name: [mean[f"allocated_percent_at_{load}"] for load in (100, 130)] for name, mean in means.items()}
        rows = [(name, *(f"{percent:.1f} %" for percent in each)) for name, each in found.items()]
        self.output.table(("policy", "allocated when pods ask for 100 %", "when they ask for 130 %"), *rows)
        self.output.say(
            f"{document['gpus']} GPUs on {document['nodes']} nodes; {document['pods']} pods come in random order, "
            "again and again, until they have asked for 100 % and for 130 % of all GPUs."
        )
        self.output.check(cluster_checks.fragmentation_allocates_most({name: each[-1] for name, each in found.items()}))

    async def stop(self) -> None:
        self.output.step("at every moment of this show")
        self.output.check(
            cluster_checks.agents_obey(self.moments), cluster_checks.nothing_is_chosen_twice(self.moments)
        )
        await self.cluster.scheduler.stop()
        for node in self.cluster.nodes.values():
            await node.agent.stop()

    # Their parts

    @asynccontextmanager
    async def _busy(self) -> AsyncIterator[None]:
        """The greedy program in some of the pods, on the nodes where they are."""
        async with AsyncExitStack() as stack:
            for name in BUSY:
                node = self.cluster.nodes[cluster_inspect.node_of(self.cluster, name)]
                await stack.enter_async_context(greedy.started(node, [look(node, name, namespace=NAMESPACE)]))
            yield

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

    async def _until_figure(self, name: str, count: int) -> None:
        what = f"vcuda scheduler counts {count} {name}"
        await self.cluster.scheduler.wait_figure(name, count, what=what, deadline_s=WAIT_S)

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
        await self._until_figure("pods", 0)

    def _is_offered(self) -> bool:
        nodes = self.cluster.server.store.objects("nodes")
        offered = [int((node["status"].get("allocatable") or {}).get(CORE, 0)) for node in nodes]
        return offered == [100 * CLUSTER_GPUS] * len(CLUSTER_NODES)

    async def _run_policy(self, policy: str) -> PolicyRun:
        pods = [arrival(policy, number, cores) for number, cores in enumerate(ARRIVALS, 1)]
        nodes = tuple([await self._scheduled(pod) for pod in pods])
        large = await self._scheduled(arrival(policy, 0, WHOLE_NODE))
        for name in (*map(name_of, pods), LARGE):
            self.cluster.server.store.delete("pods", name, namespace=NAMESPACE, grace=0)
        return PolicyRun(policy, nodes, large)

    async def _scheduled(self, pod: Json) -> str:
        """Its node; empty if it has none."""
        return (await self.cluster.kube_scheduler.schedule(await self._submit(pod))).node

    async def _filtered(self, pod: Json) -> str:
        found = await self.cluster.kube_scheduler.filter(pod)
        if not found.node:
            raise DemoError(f"pod {name_of(pod)} found no node: {found.why}")
        return found.node

    async def _gang(self, name: str, size: int) -> Gang:
        scheduler, kube_scheduler = self.cluster.scheduler, self.cluster.kube_scheduler
        pods = [await self._submit(member(name, number)) for number in range(1, size + 1)]
        found = await kube_scheduler.find_all(pods)
        members = sum(bool(each.node) for each in found)
        reserved = await scheduler.settled_figure("reservations", members)
        await kube_scheduler.end_cycle(pods, found)
        left = await scheduler.settled_figure("reservations", 0)
        bound = tuple(each for each in map(name_of, pods) if cluster_inspect.node_of(self.cluster, each))
        return Gang(size, members, reserved, left, bound, found[-1].why)

    async def _gang_for_volcano(self, name: str, sizes: Iterable[int]) -> list[Json]:
        return [await self._submit(task(name, number, cores)) for number, cores in enumerate(sizes, 1)]

    def _are_announced(self, names: Iterable[str]) -> bool:
        return all(cluster_inspect.chosen(cluster_inspect.stored(self.cluster, name)) for name in names)


def _members(sizes: Iterable[int]) -> str:
    return " and ".join(f"{count} of {cores} cores" for cores, count in Counter(sizes).items())


def _size(cores: int) -> str:
    return "½" if cores == 50 else f"{cores // 100}"


def _sizes(nodes: Iterable[str], node: str) -> str:
    """The pods on a node, by the GPUs that they ask for."""
    return " ".join(_size(cores) for cores, each in zip(ARRIVALS, nodes, strict=True) if each == node)


def _essence(pod: Json) -> str:
    """What a user looks at; requests are equal to limits, and what every API server adds is left out."""
    (container,) = pod["spec"]["containers"]
    facts = {**(pod["metadata"].get("annotations") or {}), **container["resources"]["limits"]}
    facts |= {key: pod["spec"][key] for key in ("schedulerName",) if key in pod["spec"]}
    return ", ".join(f"{key}: {value}" for key, value in facts.items())


def _gpus(placed: Placed) -> tuple[str, str]:
    """What was chosen for a container and what it sees, with the beginnings of the UUIDs."""
    chosen = ", ".join(f"{share.cores} cores of {share.uuid[:12]}" for share in placed.chosen)
    return chosen, ", ".join(uuid[:12] for uuid in placed.visible)
