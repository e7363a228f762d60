"""What containers use, from all sources: ledger, driver, regions, runtime, groups. Real parts, made-up
node: the processes are in its /proc and the runtime answers on a real socket."""

import asyncio
import contextlib
import os
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import structlog

from deviceplugin.agent.container_watch import ContainerWatch
from deviceplugin.agent.gpu_offers import GrantHolders
from deviceplugin.agent.grant_files import AgentFiles
from deviceplugin.agent.reporter import AgentReport, delays_said
from deviceplugin.container import activity, region
from deviceplugin.container.containers import ContainerFinder, ContainerRuntime
from deviceplugin.container.directories import GrantDirectories
from deviceplugin.container.driver_mirror.elf import Machine
from deviceplugin.container.driver_mirror.mirror import DriverMirror, MirrorOptions
from deviceplugin.container.limit_monitor import Tolerance
from deviceplugin.container.processes import CgroupTree, ProcessTable
from deviceplugin.container.shared_state import SharedState
from deviceplugin.errors import ContainerError
from deviceplugin.kube.client import KubeClient
from deviceplugin.kube.credentials import Credentials
from deviceplugin.kube.events import EventRecorder
from deviceplugin.kube.transport import Transport
from deviceplugin.ledger.grant import Grant, GrantId, Source
from deviceplugin.ledger.journal import Journal
from deviceplugin.ledger.ledger import Ledger
from deviceplugin.model.allocation import ContainerRef, PodRef, PodUid
from deviceplugin.model.claims import ContainerClaim
from deviceplugin.model.gpu import Breach, GpuProcess, GpuSample, GpuUuid, Inventory
from deviceplugin.model.pod import Pod, PodLimits
from deviceplugin.model.request import Request
from deviceplugin.observe.metrics import AgentMetrics
from deviceplugin.structs import replace
from sandbox.runtime import RuntimeBehaviour, RuntimeContainer, StandInRuntime
from tests.container.makers import GIB, put_counters, put_slot
from tests.container.node_tree import NodeTree
from tests.gpu_manager.client_reader import read_pids
from tests.kubelet.makers import grant, inventory, pod

GPU = GpuUuid("GPU-0")
IDS = {"one": "a1" * 32, "two": "b2" * 32, "one-again": "c3" * 32}


@dataclass
class Bench:
    """One node with one watch; turns are made by the test."""

    base: Path
    runtime: StandInRuntime
    node: NodeTree
    ledger: Ledger
    shared: SharedState
    watch: ContainerWatch
    files: AgentFiles
    inventory: Inventory
    samples: dict[GpuUuid, GpuSample] = field(default_factory=dict)
    pods: list[Pod] = field(default_factory=list)

    def give_claim(self, claim: str, *users: str) -> Grant:
        """A share that these pods' containers `c` use."""
        for name in users:
            made = pod(name, ("c", 0, 0))
            container = replace(made.containers[0], claims=(ContainerClaim(claim),))
            self.pods.append(replace(made, containers=(container,)))
        owner = ContainerRef(PodRef(PodUid(f"uid-{claim}"), "default", claim), "gpu")
        given = grant(pod("p", ("c", 20, 8)).containers[0], (0, 20, 8), grant_id=f"g-{claim}", proved=True)
        given = replace(given, source=Source.CLAIM, allocation=replace(given.allocation, owner=owner))
        self.shared.prepare(given.id, given.allocation.uuids)
        self.ledger.grant(given, self.inventory)
        return given

    def start_user(self, name: str, container_id: str, pid: int) -> None:
        uid = next(each.ref.uid for each in self.pods if each.ref.name == name)
        group = f"/kubepods/burstable/pod{uid}/{container_id}"
        self.node.start(pid, group, inner=1, namespace=container_id)
        self.runtime.containers.append(RuntimeContainer(container_id, uid, "c", pid=pid))

    def give(self, name: str, container: str, *, cores: int = 20, blocks: int = 8, minor: int = 0) -> Grant:
        made = pod(name, (container, cores, blocks)).containers[0]
        given = grant(made, (minor, min(cores, 100), blocks), grant_id=f"g-{name}-{container}", proved=True)
        if cores < 100:
            self.shared.prepare(given.id, given.allocation.uuids)
        self.ledger.grant(given, self.inventory)
        return given

    def give_two(self, name: str, container: str) -> Grant:
        """A share of two GPUs."""
        made = pod(name, (container, 40, 16)).containers[0]
        given = grant(made, (0, 20, 8), (1, 20, 8), grant_id=f"g-{name}-{container}", proved=True)
        given = replace(given, allocation=replace(given.allocation, request=Request(40, 16, 2)))
        self.shared.prepare(given.id, given.allocation.uuids)
        self.ledger.grant(given, self.inventory)
        return given

    def start(self, given: Grant, container_id: str, *pids: int) -> None:
        """Its container, with these processes; inside they are called 1, 2, ..."""
        owner = given.allocation.owner
        for inner, pid in enumerate(pids, start=1):
            self.node.start(pid, self.group(given, container_id), inner=inner, namespace=container_id)
        self.runtime.containers.append(RuntimeContainer(container_id, owner.pod.uid, owner.name, pid=pids[0]))

    def stop(self, given: Grant, container_id: str) -> None:
        self.node.remove(self.group(given, container_id))
        self.runtime.containers = [each for each in self.runtime.containers if each.container_id != container_id]

    def group(self, given: Grant, container_id: str) -> str:
        return f"/kubepods/burstable/pod{given.allocation.owner.pod.uid}/{container_id}"

    def slot(self, given: Grant, index: int, container_id: str, inner: int, used: int = GIB) -> None:
        namespace = self.node.namespace(container_id)
        path = self.shared.region(given.id)
        put_slot(path, index, pid=inner, used=used, start_time=100, pid_namespace=namespace)

    def show(self, *processes: GpuProcess, uuid: GpuUuid = GPU) -> None:
        self.samples[uuid] = GpuSample(50, 3 * GIB, processes)

    async def turns(self, count: int) -> None:
        for _ in range(count):
            await self.watch.look()

    async def until(self, holds: Callable[[], bool]) -> None:
        """Turns until it holds; containers are looked for beside them, and not all of the time."""
        async with asyncio.timeout(60):
            while True:
                await self.watch.look()
                if holds():
                    return
                await asyncio.sleep(0.02)

    def pids(self, given: Grant) -> tuple[int, ...]:
        use = self.watch.uses().get(given.id)
        return use.gpus[0].pids if use is not None else ()

    def forgive_nothing(self, given: Grant) -> None:
        """What is seen once is reported, and forgotten as soon."""
        self.watch._watched[given.id].tracker.monitor.tolerance = Tolerance(patience_s=0, window_s=1e-9)

    def held(self, given: Grant) -> int | None:
        (use,) = self.watch.uses()[given.id].gpus
        return use.memory_bytes


@asynccontextmanager
async def made(base: Path, manner: RuntimeBehaviour) -> AsyncIterator[Bench]:
    node, gpus = NodeTree(base / "node"), inventory(2)
    shared, ledger = SharedState(base / "vm"), Ledger(Journal.open(base / "ledger.journal"))
    table, tree = ProcessTable(node.proc), CgroupTree(node.cgroup)
    async with StandInRuntime(base / "cri.sock", manner) as fake:
        runtime = ContainerRuntime(base / "cri.sock", timeout_s=30.0)
        mirror = DriverMirror(base / "mirror", MirrorOptions(base, base, Machine.here()), loaded=lambda: "1")
        mirror.open()
        files = AgentFiles(GrantDirectories(base / "vm"), shared, mirror=mirror, cdi=None, inventory=lambda: gpus)
        client = KubeClient(Transport(Credentials(base / "no-kubeconfig")))
        samples: dict[GpuUuid, GpuSample] = {}
        pods: list[Pod] = []
        watch = ContainerWatch(
            ledger=ledger,
            holders=lambda: GrantHolders(lambda: pods).keys,
            samples=lambda: samples,
            inventory=lambda: gpus,
            shared=shared,
            files=files,
            table=table,
            finder=ContainerFinder(table, tree, runtime=runtime, id_in_status=lambda owner: ""),
            report=AgentReport(AgentMetrics(version="1"), EventRecorder(client, node="n")),
            period_s=3600,
        )
        seeker = asyncio.create_task(watch.run())
        try:
            yield Bench(base, fake, node, ledger, shared, watch, files, gpus, samples, pods)
        finally:
            seeker.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await seeker
            await runtime.close()
            ledger.close()


@pytest.fixture
async def bench(short_tmp: Path) -> AsyncIterator[Bench]:
    async with made(short_tmp, RuntimeBehaviour.CONTAINERD) as ready:
        yield ready


async def test_an_idle_share_is_looked_at_in_every_turn(bench: Bench) -> None:
    """Security 2: what one system call takes must not stay for 30 turns."""
    given = bench.give("quiet", "c")
    await bench.turns(2)
    path = bench.shared.region(given.id)
    for _ in range(3):
        os.truncate(path, 1 << 30)
        await bench.turns(1)
        assert path.stat().st_size == region.SIZE


async def test_a_container_that_cannot_be_looked_at_ends_the_round_for_no_other(bench: Bench) -> None:
    """Adversary A-3: one exception, and nobody's files were restored and nobody's limits judged."""
    bad, well = bench.give("bad", "c"), bench.give("well", "c", minor=1)
    bench.start(well, IDS["two"], 502)
    bench.show(GpuProcess(502, 5 * GIB), uuid=GpuUuid("GPU-1"))
    await bench.until(lambda: bench.pids(well) == (502,))
    bench.forgive_nothing(well)
    bench.watch._watched[bad.id].tracker.grant = GrantId("g-\0")  # no file can have this name
    path = bench.shared.region(well.id)
    with structlog.testing.capture_logs() as logs:
        for _ in range(65):
            os.truncate(path, 2 * region.SIZE)
            await bench.turns(1)
            assert path.stat().st_size == region.SIZE
    assert Breach.MEMORY in {each.breach for each in bench.watch.uses()[well.id].overruns}
    assert bad.id not in bench.watch.uses(), "what it used before is not what it uses"
    failed = [each for each in logs if each["event"] == "container_look_failed"]
    assert [each["pod"] for each in failed] == [str(bad.allocation.owner.pod)]


async def test_containers_with_full_regions_take_turns_and_all_others_are_read(bench: Bench) -> None:
    """Adversary A-5: they were read in each round, which then took ten times as long for everybody."""
    full = [bench.give(f"full{number}", "c", cores=5, blocks=1) for number in range(20)]
    well = bench.give("well", "c", minor=1)
    for number, each in enumerate(full):
        bench.start(each, f"{number:02}" * 32, 600 + number)
        _fill(bench.shared.region(each.id), bench.node.namespace(f"{number:02}" * 32))
    bench.start(well, IDS["two"], 502)
    bench.slot(well, 0, IDS["two"], 1)
    bench.show(*(GpuProcess(600 + number, GIB) for number in range(20)))
    await bench.until(lambda: all(bench.held(each) is not None for each in [*full, well]))
    trackers = [bench.watch._watched[each.id].tracker for each in full]
    read: list[int] = []
    for turn in range(1, 13):
        put_counters(bench.shared.region(well.id), peak=turn)
        os.truncate(bench.shared.region(well.id), 2 * region.SIZE)
        before = [tracker._before for tracker in trackers]
        await bench.turns(1)
        assert bench.watch.uses()[well.id].gpus[0].peak_bytes == turn
        read += [number for number, each in enumerate(trackers) if each._before is not before[number]]
        assert len(read) <= 8 * turn
    assert min(read.count(number) for number in range(20)) >= 4


def _fill(path: Path, namespace: int) -> None:
    with path.open("r+b") as file:
        file.seek(region.HEAD.size)
        file.write(region.SLOTS.to_bytes(4, "little"))
        for index in range(region.SLOTS):
            file.seek(region.SLOTS_AT + region.SLOT_SIZE * index)
            file.write(region.SLOT.pack(index + 1, 0, 100, namespace, 1))


async def test_what_processes_used_that_have_ended_at_the_look_counts(bench: Bench) -> None:
    """Adversary A-8: a container that started a new process each second used what it liked."""
    given = bench.give("p", "one")
    bench.start(given, IDS["one"], 41)
    bench.show(GpuProcess(41, GIB, 10))
    await bench.until(lambda: bench.pids(given) == (41,))
    bench.forgive_nothing(given)
    for pid in range(100, 103):
        bench.node.start(pid, bench.group(given, IDS["one"]))
        bench.show(GpuProcess(pid, GIB, 90))
        bench.watch.notice()
        bench.node.end(pid)
        await bench.turns(1)
        assert bench.pids(given) == (pid,)
        assert Breach.CORES in {each.breach for each in bench.watch.uses()[given.id].overruns}


async def test_use_that_belongs_to_nobody_again_and_again_is_said(bench: Bench) -> None:
    """Adversary A-8: nothing else shows it."""
    bench.give("p", "one")
    with structlog.testing.capture_logs() as logs:
        for pid in range(100, 109):
            bench.show(GpuProcess(pid, GIB, 90))
            await bench.turns(2)
        assert not [each for each in logs if each["event"] == "use_unattributed"]
        for pid in range(200, 220):
            bench.show(GpuProcess(pid, GIB, 90))
            await bench.turns(2)
    (said,) = [each for each in logs if each["event"] == "use_unattributed"]
    assert said["gpu"] == GPU


async def test_what_fails_at_each_look_is_said_once_a_minute(bench: Bench) -> None:
    given = [bench.give(name, "c") for name in ("one", "two")]
    with structlog.testing.capture_logs() as logs:
        for _ in range(50):
            for each in given:
                bench.watch._failed("activity_publish_failed", each, ContainerError("no room"))
    assert [each["pod"] for each in logs] == [str(each.allocation.owner.pod) for each in given]


async def test_a_running_container_whose_files_were_removed_is_named_once(bench: Bench) -> None:
    """Faults D6: it keeps the removed directory mounted until it is started again."""
    lost, well = bench.give("lost", "c"), bench.give("well", "c", minor=1)
    bench.start(lost, IDS["one"], 501)
    bench.start(well, IDS["two"], 502)
    shutil.rmtree(bench.base / "vm" / lost.id)
    with structlog.testing.capture_logs() as logs:
        await bench.until(lambda: any(each["event"] == "files_lost" for each in logs))
        await bench.turns(65)
    (said,) = [each for each in logs if each["event"] == "files_lost"]
    assert said["pod"] == str(lost.allocation.owner.pod)
    assert "were removed while it runs" in said["error"]
    assert not [each for each in logs if each["event"] == "region_unreadable"]


async def test_a_container_of_gpu_managers_time_is_judged_by_what_the_driver_shows(bench: Bench) -> None:
    """It never had a region, so that is no sign of anything; more memory than its limit is one."""
    made = pod("old", ("c", 20, 8)).containers[0]
    given = grant(made, (0, 20, 8), grant_id=str(made.ref.pod.uid), proved=True)
    bench.ledger.grant(given, bench.inventory)
    bench.start(given, IDS["one"], 501)
    with structlog.testing.capture_logs() as logs:
        for used, found in ((GIB, set[Breach]()), (3 * GIB, {Breach.MEMORY})):
            bench.show(GpuProcess(501, used))
            await bench.until(lambda: bench.pids(given) == (501,))
            bench.forgive_nothing(given)
            await bench.turns(3)
            assert {each.breach for each in bench.watch.uses()[given.id].overruns} == found
    assert [each for each in logs if each["event"] == "files_lost"] == []


async def test_a_share_and_a_whole_gpu(bench: Bench) -> None:
    share, whole = bench.give("p", "one"), bench.give("w", "all", cores=100, blocks=64, minor=1)
    bench.start(share, IDS["one"], 41, 42)
    bench.slot(share, 0, IDS["one"], 1)
    put_counters(bench.shared.region(share.id), peak=2 * GIB, refusals=1)
    bench.show(GpuProcess(41, GIB))
    bench.show(GpuProcess(77, GIB), GpuProcess(78, GIB), uuid=GpuUuid("GPU-1"))
    await bench.until(lambda: bench.pids(share) == (41,))
    uses = bench.watch.uses()
    (use,) = uses[share.id].gpus
    assert (use.memory_bytes, use.peak_bytes, use.refusals, use.pids) == (GIB, 2 * GIB, 1, (41,))
    (use,) = uses[whole.id].gpus
    assert (use.memory_bytes, use.cores, use.peak_bytes, use.pids) == (3 * GIB, 50.0, None, (77, 78))
    assert uses[whole.id].processes == 2


async def test_a_gpu_that_is_gone_leaves_the_other_its_place(bench: Bench) -> None:
    """Faults D9: the region numbers the grant's GPUs, not those that are there."""
    given = bench.give_two("p", "one")
    bench.start(given, IDS["one"], 101)
    namespace = bench.node.namespace(IDS["one"])
    put_slot(bench.shared.region(given.id), 0, pid=1, used=GIB, start_time=100, pid_namespace=namespace, device=1)
    put_counters(bench.shared.region(given.id), device=0, peak=7)
    put_counters(bench.shared.region(given.id), device=1, peak=5)
    fewer = replace(bench.inventory, gpus=bench.inventory.gpus[1:])
    bench.watch.inventory = lambda: fewer
    await bench.turns(1)
    (use,) = bench.watch.uses()[given.id].gpus
    assert (use.uuid, use.peak_bytes, use.memory_bytes) == ("GPU-1", 5, GIB)


async def test_two_containers_of_one_pod_are_distinguished_by_the_runtime(bench: Bench) -> None:
    one, two = bench.give("p", "one"), bench.give("p", "two")
    for given, name, pid in ((one, "one", 41), (two, "two", 51)):
        bench.start(given, IDS[name], pid)
    bench.show(GpuProcess(41, GIB), GpuProcess(51, GIB), GpuProcess(9999, GIB))
    await bench.until(lambda: (bench.pids(one), bench.pids(two)) == ((41,), (51,)))
    assert bench.watch.uses().keys() == {one.id, two.id}


async def test_containers_of_several_pods_on_one_claim_are_counted_together(bench: Bench) -> None:
    given = bench.give_claim("shared", "first", "second")
    bench.start_user("first", IDS["one"], 41)
    bench.start_user("second", IDS["two"], 51)
    bench.slot(given, 0, IDS["one"], 1)
    bench.slot(given, 1, IDS["two"], 1)
    bench.show(GpuProcess(41, GIB), GpuProcess(51, GIB), GpuProcess(9999, GIB))
    await bench.until(lambda: bench.pids(given) == (41, 51))
    use = bench.watch.uses()[given.id]
    assert (use.gpus[0].memory_bytes, use.processes, use.overruns) == (2 * GIB, 2, ())


async def test_a_pod_that_joins_a_claim_is_not_taken_for_dead(bench: Bench) -> None:
    given = bench.give_claim("shared", "first")
    bench.start_user("first", IDS["one"], 41)
    bench.slot(given, 0, IDS["one"], 1)
    await bench.until(lambda: bench.watch.uses()[given.id].processes == 1)
    late = bench.give_claim("late", "second")  # the next pod of `shared`, as the watch shows it later
    bench.pods[1] = replace(bench.pods[1], containers=(replace(bench.pods[1].containers[0], claims=()),))
    bench.start_user("second", IDS["two"], 51)
    container = replace(bench.pods[1].containers[0], claims=(ContainerClaim("shared"),))
    bench.pods[1] = replace(bench.pods[1], containers=(container,))
    bench.slot(given, 1, IDS["two"], 1)
    await bench.until(lambda: bench.watch.uses()[given.id].processes == 2)
    assert bench.watch.uses()[late.id].processes in (0, None)


async def test_a_pod_that_leaves_a_claim_leaves_the_other_its_memory(bench: Bench) -> None:
    given = bench.give_claim("shared", "first", "second")
    bench.start_user("first", IDS["one"], 41)
    bench.start_user("second", IDS["two"], 51)
    bench.slot(given, 0, IDS["one"], 1)
    bench.slot(given, 1, IDS["two"], 1)
    await bench.until(lambda: bench.watch.uses()[given.id].processes == 2)
    gone = bench.pods.pop(0)
    bench.node.remove(f"/kubepods/burstable/pod{gone.ref.uid}/{IDS['one']}")
    bench.runtime.containers = [each for each in bench.runtime.containers if each.container_id != IDS["one"]]
    await bench.until(lambda: bench.held(given) == GIB)


async def test_a_process_of_another_container_of_the_pod_counts(bench: Bench) -> None:
    """A container can hand its open devices to another one, whose processes counted for nobody."""
    given = bench.give("p", "one")
    bench.start(given, IDS["one"], 41)
    bench.slot(given, 0, IDS["one"], 1)
    bench.show(GpuProcess(41, GIB))
    await bench.until(lambda: bench.watch._watched[given.id].place is not None)
    bench.node.start(51, bench.group(given, IDS["two"]), inner=1, namespace=IDS["two"])
    bench.forgive_nothing(given)
    bench.show(GpuProcess(41, GIB), GpuProcess(51, 40 * GIB))
    await bench.until(lambda: bench.pids(given) == (41, 51))
    found = {each.breach for each in bench.watch.uses()[given.id].overruns}
    assert found == {Breach.BYPASS, Breach.MEMORY}


async def test_a_process_of_another_container_counts_for_one_of_two(bench: Bench) -> None:
    """Also if the pod holds the GPU twice; and not on a GPU that the pod does not hold."""
    one, two = bench.give("p", "one"), bench.give("p", "two")
    for given, name, pid in ((one, "one", 41), (two, "two", 51)):
        bench.start(given, IDS[name], pid)
    bench.node.start(61, bench.group(one, IDS["one-again"]), inner=1, namespace=IDS["one-again"])
    bench.show(GpuProcess(41, GIB), GpuProcess(51, GIB), GpuProcess(61, GIB))
    bench.show(GpuProcess(61, GIB), uuid=GpuUuid("GPU-1"))
    await bench.until(lambda: sorted(bench.pids(one) + bench.pids(two)) == [41, 51, 61])
    assert {41} <= {*bench.pids(one)}
    assert {51} <= {*bench.pids(two)}


async def test_a_restarted_container_is_found_again(bench: Bench) -> None:
    share = bench.give("p", "one")
    bench.start(share, IDS["one"], 41)
    bench.slot(share, 0, IDS["one"], 1)
    bench.show(GpuProcess(41, GIB))
    await bench.until(lambda: bench.pids(share) == (41,))
    await bench.until(lambda: bench.held(share) == GIB)

    bench.stop(share, IDS["one"])
    await bench.until(lambda: bench.held(share) == 0)
    assert region.read(bench.shared.region(share.id), grant=share.id, devices=1).slots, "its process had no time"

    bench.shared.renew(share.id, {GPU})
    bench.start(share, IDS["one-again"], 61)
    bench.slot(share, 0, IDS["one-again"], 1, used=2 * GIB)
    bench.show(GpuProcess(61, GIB))
    await bench.until(lambda: (bench.held(share), bench.pids(share)) == (2 * GIB, (61,)))


async def test_an_idle_node_sends_no_requests_and_reads_little(bench: Bench) -> None:
    share = bench.give("p", "one")
    bench.start(share, IDS["one"], 41)
    await bench.turns(1)
    put_counters(bench.shared.region(share.id), peak=GIB)
    await bench.turns(20)
    assert bench.watch.uses()[share.id].gpus[0].peak_bytes == 0, "nobody is on the GPU"
    await bench.turns(11)
    assert bench.watch.uses()[share.id].gpus[0].peak_bytes == GIB
    assert bench.runtime.calls == []


async def test_a_runtime_that_hangs_holds_up_no_turn(short_tmp: Path) -> None:
    async with made(short_tmp, RuntimeBehaviour.HANGING) as bench:
        share = bench.give("p", "one")
        bench.slot(share, 0, IDS["one"], 1)
        bench.show(GpuProcess(41, GIB))
        async with asyncio.timeout(5):  # the runtime has longer
            await bench.watch.look()
            await bench.watch.look()
        assert bench.held(share) == GIB


async def test_a_runtime_that_talks_nonsense_ends_nothing(short_tmp: Path) -> None:
    for number, container_id in enumerate(("x" * 300, "../../etc", "a\0b", "")):
        (home := short_tmp / str(number)).mkdir()
        async with made(home, RuntimeBehaviour.BABBLING) as bench:
            await check_nonsense(bench, container_id)


async def check_nonsense(bench: Bench, container_id: str) -> None:
    share = bench.give("p", "one")
    bench.start(share, IDS["one"], 41)
    bench.slot(share, 0, IDS["one"], 1)
    bench.show(GpuProcess(41, GIB))
    owner = share.allocation.owner
    await bench.until(lambda: bool(bench.runtime.calls))
    bench.runtime.manner = RuntimeBehaviour.CONTAINERD
    real = bench.runtime.containers
    bench.runtime.containers = [RuntimeContainer(container_id, owner.pod.uid, owner.name, pid=1 << 70)]
    for index in range(3):
        await bench.watch.register(share.id, f"name-{index}")
    bench.runtime.containers = real
    await bench.watch.register(share.id, IDS["one"])
    top = bench.base / "vm" / share.id / "pids.config"
    assert read_pids(top.read_bytes()) in ((), (41,)), "a runtime is left alone for a while after nonsense"
    assert bench.held(share) == GIB


async def test_gpu_managers_client_gets_its_processes_and_fresh_ones(bench: Bench) -> None:
    share = bench.give("p", "one")
    bench.start(share, IDS["one"], 42, 41)
    await bench.watch.register(share.id, IDS["one"])
    top, own = (bench.base / "vm" / share.id / below / "pids.config" for below in ("", IDS["one"]))
    assert read_pids(top.read_bytes()) == read_pids(own.read_bytes()) == (41, 42)
    assert (own.parent / "vcuda.config").read_bytes() == (top.parent / "vcuda.config").read_bytes()

    bench.node.start(43, bench.group(share, IDS["one"]))
    await bench.turns(1)
    assert read_pids(own.read_bytes()) == (41, 42, 43)
    bench.node.end(42)
    await bench.turns(1)
    assert read_pids(top.read_bytes()) == (41, 43)


async def test_a_registration_without_a_runtime_still_gets_its_limits(short_tmp: Path) -> None:
    async with made(short_tmp, RuntimeBehaviour.REFUSING) as bench:
        share = bench.give("p", "one")
        await bench.watch.register(share.id, IDS["one"])
        folder = bench.base / "vm" / share.id / IDS["one"]
        assert len((folder / "vcuda.config").read_bytes()) == 8240
        assert (folder / "pids.config").read_bytes() == b""


async def test_who_registers_without_pause_asks_the_runtime_at_the_pace_of_a_look(bench: Bench) -> None:
    """For a container that it does not know; each registration asked it."""
    share = bench.give("p", "one")
    for _ in range(10):
        await bench.watch.register(share.id, IDS["one"])
    assert len(bench.runtime.calls) == 1
    bench.start(share, IDS["one"], 41)
    async with asyncio.timeout(60):
        while read_pids((bench.base / "vm" / share.id / "pids.config").read_bytes()) != (41,):
            await bench.watch.register(share.id, IDS["one"])
            await asyncio.sleep(0.1)


async def test_nothing_is_written_for_a_grant_that_ended(bench: Bench) -> None:
    share = bench.give("p", "one")
    bench.start(share, IDS["one"], 41)
    await bench.watch.register(share.id, IDS["one"])
    await bench.turns(1)
    bench.ledger.release([share.id], why="its pod ended")
    bench.files.drop(share)
    bench.node.start(43, bench.group(share, IDS["one"]))
    await bench.turns(2)
    await bench.watch.register(share.id, IDS["one"])
    assert bench.watch.uses() == {}
    assert not list((bench.base / "vm").glob("g-*"))
    assert not list((bench.base / "vm").glob("gpus/*/g-*"))


async def test_a_grant_that_is_not_proved_is_not_watched(bench: Bench) -> None:
    made_pod = pod("q", ("c", 20, 8)).containers[0]
    guess = grant(made_pod, (0, 20, 8), grant_id="g-guess")
    bench.ledger.grant(guess, bench.inventory)
    await bench.turns(1)
    assert GrantId("g-guess") not in bench.watch.uses()


async def test_neighbours_are_told_what_a_container_uses_that_hides_it(bench: Bench) -> None:
    """Security 8: in the file beside its activity file, which only the agent writes; next to its limits."""
    given = bench.give("ml", "one")
    bench.shared.show_limits(given.id, GPU, cores=20, soft_cores=0)
    bench.start(given, IDS["one"], 901)
    told = bench.shared.shown_limits(given.id, GPU)
    bench.show(GpuProcess(901, GIB, 60))
    await bench.until(lambda: bench.pids(given) == (901,))
    bench.forgive_nothing(given)
    await bench.until(lambda: activity.read_shown_limits(told) == activity.ShownLimits(20, 0, 60))
    bench.show(GpuProcess(901, GIB, 0))
    await bench.until(lambda: activity.read_shown_limits(told) == activity.ShownLimits(20, 0, 0))


async def test_what_shares_hide_is_summed_also_where_one_may_borrow_all_of_the_gpu(bench: Bench) -> None:
    given = [bench.give(name, "c") for name in ("one", "two")]
    bench.ledger.set_limits(given[1].id, PodLimits(soft_cores=100))
    for number, each in enumerate(given):
        bench.shared.show_limits(each.id, GPU, cores=20, soft_cores=0)
        bench.start(each, IDS[("one", "two")[number]], 100 * (number + 1))
        bench.slot(each, 0, IDS[("one", "two")[number]], 1)
    bench.show(GpuProcess(100, GIB, 2), GpuProcess(200, GIB, 2))
    await bench.until(lambda: all(bench.pids(each) for each in given))

    def told(each: Grant) -> int:
        said = activity.read_shown_limits(bench.shared.shown_limits(each.id, GPU))
        assert said is not None
        return said.assumed_cores

    monitors = [bench.watch._watched[each.id].tracker.monitor for each in given]
    assert monitors[0].totals is monitors[1].totals
    for each in given:
        bench.forgive_nothing(each)
    await bench.until(lambda: all(told(each) == 2 for each in given))
    bench.show(GpuProcess(100, GIB, 2))
    await bench.until(lambda: told(given[1]) == 0)


def test_that_files_cannot_be_cut_yet_is_said_once_for_each_reason() -> None:
    delayed = delays_said()
    with structlog.testing.capture_logs() as logs:
        for path in ("g-1/region", "g-2/region"):
            delayed(Path(path), "no thread is left")
        delayed(Path("g-3/region"), "files of 16 containers are being cut")
    assert [each["event"] for each in logs] == ["cutting_delayed"] * 2
