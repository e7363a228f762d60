"""One share watched: living, dead and unmanaged processes, corrupted files; only what is certain counts as dead."""

import fcntl
import os
import resource
import signal
import struct
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from deviceplugin.container import activity, region
from deviceplugin.container.containers import ContainerFinder, FoundContainer, Place
from deviceplugin.container.limit_monitor import GpuReading, LimitMonitor, Tolerance
from deviceplugin.container.processes import CgroupTree, ProcessTable
from deviceplugin.container.shared_state import SharedState
from deviceplugin.container.tracker import MOST_BEYOND_PROCESSES, MOST_CLEARED, HeldGpu, ShareReport, Tracker
from deviceplugin.ledger.grant import GrantId
from deviceplugin.model.allocation import PodUid
from deviceplugin.model.gpu import Breach, Gpu, GpuProcess, GpuUse, GpuUuid, Overrun
from deviceplugin.structs import replace
from tests.container.makers import GIB, put, put_counters, put_slot
from tests.container.node_tree import NodeTree

GRANT, UID, ID = GrantId("g-0001"), PodUid("3b0c3f0e-6b8a-4a53-9e0c-2f1d6f7a9b10"), "e3b0c44298fc1c14" * 4
GROUP = f"/kubepods/pod{UID}/{ID}"
GPU = Gpu(GpuUuid("GPU-a"), 0, 3, "Test GPU", 16 * GIB)
HELD = [HeldGpu(GPU, 2 * GIB, 20)]


class Scene:
    """A share with a container of three processes: 1 with a slot, 2 with a slot, 3 without."""

    def __init__(self, base: Path) -> None:
        self.node = NodeTree(base / "node")
        self.shared = SharedState(base / "vm")
        self.shared.prepare(GRANT, {GPU.uuid})
        table, tree = ProcessTable(self.node.proc), CgroupTree(self.node.cgroup)
        finder = ContainerFinder(table, tree, runtime=None, id_in_status=lambda owner: ID)
        self.tracker = Tracker(
            GRANT, "ml/nb/main", self.shared, table, finder, monitor=LimitMonitor(tolerance=Tolerance(patience_s=0))
        )
        self.place = Place((FoundContainer(UID, ID, self.node.cgroup / GROUP.lstrip("/")),))
        for inner in (1, 2, 3):
            self.node.start(100 + inner, GROUP, inner=inner, namespace="c", born=inner)
        for inner in (1, 2):
            put_slot(
                self.region,
                inner,
                pid=inner,
                used=GIB,
                start_time=inner,
                pid_namespace=self.node.namespace("c"),
            )

    @property
    def region(self) -> Path:
        return self.shared.region(GRANT)

    def read(self, *pids: int, placed: bool = True, memory: int = 0) -> ShareReport:
        self.tracker.restore([GPU.uuid])
        on_gpu: dict[GpuUuid, Sequence[GpuProcess]] = {GPU.uuid: [GpuProcess(pid, memory) for pid in pids]}
        return self.tracker.read(HELD, on_gpu if pids else {}, place=self.place if placed else None)

    def slots(self) -> list[int]:
        return [slot.pid for slot in region.read(self.region, grant=GRANT, devices=1).slots]


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def held(report: ShareReport) -> int | None:
    (use,) = report.use.gpus
    return use.memory_bytes


def test_living_processes_are_counted(scene: Scene) -> None:
    put_counters(scene.region, charged_ns=5_000_000_000)
    report = scene.read(101, 102)
    assert (held(report), report.use.processes, report.use.overruns) == (2 * GIB, 2, ())
    assert report.use.gpus[0].gpu_seconds == 5.0
    assert report.use.gpus[0].pids == (101, 102)
    assert report.members is not None
    assert report.members.pids == (101, 102, 103)
    assert not report.wants_place


def test_a_dead_process_counts_no_more_and_its_slot_is_left_to_its_neighbours(scene: Scene) -> None:
    scene.read()
    scene.node.end(102)
    report = scene.read()
    assert (held(report), report.use.processes) == (GIB, 1)
    assert scene.slots() == [1, 2], "a process of that namespace may be clearing it this very moment"


def test_a_reused_pid_is_another_process(scene: Scene) -> None:
    scene.read()
    scene.node.end(102)
    scene.node.start(102, GROUP, inner=2, namespace="c", born=900)
    assert held(scene.read()) == GIB


def test_slots_of_a_namespace_without_processes_are_freed(scene: Scene) -> None:
    put_slot(scene.region, 5, pid=8, used=GIB, start_time=3, pid_namespace=scene.node.namespace("gone"))
    assert held(scene.read()) == 2 * GIB
    assert scene.slots() == [1, 2]
    data = scene.region.read_bytes()
    at = region.SLOTS_AT + region.SLOT_SIZE * 5
    assert data[at : at + region.SLOT_SIZE] == bytes(region.SLOT_SIZE)


def test_a_slot_that_is_being_claimed_or_cleared_is_left_alone(scene: Scene) -> None:
    put_slot(scene.region, 5, pid=8, used=GIB, start_time=3, pid_namespace=scene.node.namespace("gone"))
    at = region.SLOTS_AT + region.SLOT_SIZE * 5
    with scene.region.open("r+b") as holder:
        lock = struct.pack("@hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, at, 1, 0)
        fcntl.fcntl(holder, fcntl.F_OFD_SETLK, lock)
        scene.read()
        assert scene.slots() == [1, 2, 8]
    scene.read()
    assert scene.slots() == [1, 2]


@pytest.mark.parametrize("start_time", [0, 2**64 - 1])
def test_a_process_that_is_claiming_or_cannot_tell_its_age_lives(scene: Scene, start_time: int) -> None:
    put_slot(scene.region, 3, pid=3, used=GIB, start_time=start_time, pid_namespace=scene.node.namespace("c"))
    assert held(scene.read()) == 3 * GIB


def test_a_slot_that_is_being_cleared_holds_nothing(scene: Scene) -> None:
    namespace = scene.node.namespace("c")
    put_slot(scene.region, 2, pid=1 | region.CLEARING, used=GIB, start_time=2, pid_namespace=namespace)
    assert held(scene.read()) == GIB


def test_nothing_is_dead_while_it_is_not_known_where_the_container_is(scene: Scene) -> None:
    for pid in (101, 102, 103):
        scene.node.end(pid)
    report = scene.read(placed=False)
    assert held(report) == 2 * GIB
    assert report.wants_place


def test_nothing_is_dead_while_processes_are_hidden(scene: Scene) -> None:
    scene.node.end(102)
    procs = scene.node.cgroup / GROUP.lstrip("/") / "cgroup.procs"
    procs.write_text("101\n0\n")
    assert held(scene.read()) == 2 * GIB


def test_nothing_is_dead_while_the_kernel_does_not_say_who_a_process_is(scene: Scene) -> None:
    (scene.node.proc / "102" / "ns" / "pid").unlink()  # as without the right to trace it
    assert held(scene.read()) == 2 * GIB
    assert scene.slots() == [1, 2]


def test_with_the_container_all_of_it_is_gone(scene: Scene) -> None:
    assert held(scene.read()) == 2 * GIB
    scene.node.remove(GROUP)
    report = scene.read()
    assert (held(report), report.use.processes, report.members, report.wants_place) == (0, 0, None, True)
    assert held(scene.read()) == 0, "and stays so"


def test_while_the_container_was_never_found_its_memory_is_not_known(scene: Scene) -> None:
    """It was shown as 0 while the program held 2 GiB; its counters are in the region and stay known."""
    scene.node.remove(GROUP)
    for _ in range(2):
        report = scene.read()
        (use,) = report.use.gpus
        assert (use.memory_bytes, use.overhead_bytes, report.use.processes) == (None, None, None)
        assert (use.peak_bytes, use.refusals, report.wants_place) == (0, 0, True)


def test_the_use_of_a_container_that_spoilt_its_region_is_not_known(scene: Scene) -> None:
    """Zeros would look like a container that has started again."""
    put(scene.region, 0, b"NONSENSE")
    report = scene.read(101)
    (use,) = report.use.gpus
    assert (use.memory_bytes, use.peak_bytes, use.gpu_seconds, report.use.processes) == (None, None, None, None)
    assert use.pids == (101,), "this is from the driver"


def test_the_use_of_a_running_container_that_lost_its_files_is_not_known(scene: Scene) -> None:
    scene.region.unlink()
    report = scene.read()
    assert report.lost_files
    assert (held(report), report.use.processes) == (None, None)


def test_a_process_without_a_slot_is_unmanaged(scene: Scene) -> None:
    report = scene.read(101, 103)
    (breach,) = report.use.overruns
    assert breach.breach is Breach.BYPASS
    assert "103" in breach.sentence
    assert "101" not in breach.sentence
    assert report.use.processes == 3
    scene.node.end(103)
    assert scene.read(101, 103).use.overruns == (), "it has ended"


def test_a_process_without_the_library_uses_what_the_driver_shows(scene: Scene) -> None:
    """It was shown as 0, though the driver says how much it is. Managed processes count by the library alone."""
    scene.read()

    def use(*processes: GpuProcess) -> GpuUse:
        (found,) = scene.tracker.read(HELD, {GPU.uuid: processes}, place=scene.place).use.gpus
        return found

    managed, alien = GpuProcess(101, 5 * GIB, 30), GpuProcess(103, 3 * GIB, 40)
    assert (use(managed).memory_bytes, use(managed).cores) == (2 * GIB, 0)
    assert (use(managed, alien).memory_bytes, use(managed, alien).cores) == (5 * GIB, 40)
    assert use(replace(alien, memory_bytes=GPU.memory_bytes)).memory_bytes == GPU.memory_bytes
    assert use(replace(alien, memory_bytes=0)).memory_bytes is None, "the driver does not say"
    scene.node.end(103)
    assert use(alien).memory_bytes == 2 * GIB


def test_more_memory_than_the_limit_is_seen_through_the_driver(scene: Scene) -> None:
    (breach,) = scene.read(101, 102, memory=2 * GIB).use.overruns
    assert breach.breach is Breach.MEMORY
    assert "uses 4096 MiB and its limit is 2048 MiB, but vcuda's library accounts for 2048 MiB only" in breach.sentence


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        pytest.param(lambda path: os.truncate(path, 50), "the container changed it", id="cut"),
        pytest.param(lambda path: put(path, 0, b"NONSENSE"), "the container changed it", id="overwritten"),
        pytest.param(lambda path: os.truncate(path, 1 << 40), "larger than allowed", id="grown"),
        pytest.param(lambda path: put_slot(path, 4, pid=9, used=2**63), "numbers are impossible", id="absurd"),
        pytest.param(lambda path: leases.append(lease(path)), "cannot be read", id="leased"),
    ],
)
def test_a_modified_region_is_reported_and_does_no_harm(scene: Scene, harm: object, words: str) -> None:
    assert callable(harm)
    harm(scene.region)
    found = {each.breach: each.sentence for each in scene.read(101).use.overruns}
    assert words in found[Breach.STATE]
    assert scene.region.stat().st_size <= region.SIZE
    while leases:
        os.close(leases.pop())


leases: list[int] = []
_F_SETSIG = 10


def lease(path: Path) -> int:
    """A write lease, as the file's owner may take it; the kernel breaks it after some seconds."""
    fd = os.open(path, os.O_RDWR)
    fcntl.fcntl(fd, _F_SETSIG, signal.SIGURG)  # the default, SIGIO, ends the process
    fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
    return fd


def test_what_the_agent_cannot_read_accuses_nobody(scene: Scene) -> None:
    """Faults D8: with no descriptor left, and with a full disk, the agent blamed containers."""
    scene.read(101)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        found = scene.read(101)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert found.use.overruns == ()
    assert (held(found), found.use.processes) == (None, None), "nor does it tell the use of before"
    assert held(scene.read(101)) == 2 * GIB
    scene.region.unlink()
    assert scene.read(101).use.overruns == ()


def test_a_row_that_was_made_longer_is_cut_back(scene: Scene) -> None:
    row = scene.shared.own_row(GRANT, GPU.uuid)
    size = row.stat().st_size
    os.truncate(row, 1 << 40)
    assert [each.breach for each in scene.read().use.overruns] == [Breach.STATE]
    assert row.stat().st_size == size


def test_what_is_undone_at_once_is_told_nevertheless(scene: Scene) -> None:
    """Longer than the monitor waits before it believes in a breach."""
    os.truncate(scene.region, 1 << 40)
    assert [each.breach for each in scene.read().use.overruns] == [Breach.STATE]
    assert scene.region.stat().st_size == region.SIZE
    assert scene.tracker.is_tampered
    (breach,) = scene.read().use.overruns
    assert "region is larger than allowed" in breach.sentence


def test_a_region_with_many_more_processes_than_its_container_is_reported(scene: Scene) -> None:
    """Adversary A-5: what reading it costs is the container's choice, and none has so many dead ones for long."""
    namespace = scene.node.namespace("c")
    for inner in range(4, 3 + MOST_BEYOND_PROCESSES + 2):
        put_slot(scene.region, inner, pid=inner, used=1, start_time=inner, pid_namespace=namespace)
    assert scene.read(101).use.overruns == (), "the container has three processes"
    put_slot(scene.region, 0, pid=1000, used=1, start_time=1000, pid_namespace=namespace)
    put_slot(scene.region, 3, pid=1001, used=1, start_time=1001, pid_namespace=namespace)
    (breach,) = scene.read(101).use.overruns
    assert "processes are in its region and 3 in the container" in breach.sentence


def test_few_slots_are_freed_in_one_reading(scene: Scene) -> None:
    """Adversary A-5: a container claims a thousand of them in a moment."""
    gone = scene.node.namespace("gone")
    for inner in range(3, 3 + MOST_CLEARED + 10):
        put_slot(scene.region, inner, pid=inner, start_time=3, pid_namespace=gone)
    assert len(scene.slots()) == 2 + MOST_CLEARED + 10
    scene.read()
    assert len(scene.slots()) == 2 + 10
    scene.read()
    assert scene.slots() == [1, 2]


def test_without_its_files_a_container_is_judged_by_what_the_driver_shows(scene: Scene) -> None:
    def judged(memory: int, percent: int) -> ShareReport | None:
        return scene.tracker.judge(HELD, {GPU.uuid: [GpuProcess(103, memory, percent)]})

    assert judged(GIB, 0) is None, "nothing was read yet"
    put_counters(scene.region, charged_ns=5_000_000_000)
    scene.read(103)
    assert scene.tracker.cost == 2, "slots of the region"
    put(scene.region, 0, b"NONSENSE")
    report = judged(5 * GIB, 90)
    assert report is not None
    assert {each.breach for each in report.use.overruns} == {Breach.MEMORY, Breach.BYPASS}
    assert (report.use.gpus[0].gpu_seconds, report.use.gpus[0].pids) == (5.0, (103,))
    os.truncate(scene.region, 1 << 40)
    scene.tracker.restore([GPU.uuid])
    report = judged(GIB, 0)
    assert report is not None
    assert Breach.STATE in {each.breach for each in report.use.overruns}


def test_a_running_container_without_its_region_has_lost_its_files(scene: Scene) -> None:
    """Faults D6."""
    assert not scene.read().lost_files
    scene.region.unlink()
    assert scene.read().lost_files
    scene.shared.prepare(GRANT, {GPU.uuid})
    assert not scene.read().lost_files


def test_a_container_that_does_not_run_has_lost_nothing(scene: Scene) -> None:
    """After a reboot, say: its next start makes them again."""
    scene.region.unlink()
    assert scene.read(placed=False).wants_place
    scene.node.remove(GROUP)
    assert not scene.read().lost_files


def test_an_idle_share_does_not_look_for_processes(scene: Scene) -> None:
    scene.shared.region(GRANT).unlink()
    scene.shared.prepare(GRANT, {GPU.uuid})
    report = scene.read(placed=False)
    assert (report.members, report.wants_place, report.use.processes) == (None, False, 0)


# ---- what neighbours shall assume ----


def watched(scene: Scene, percent: int) -> ShareReport:
    on_gpu = {GPU.uuid: [GpuProcess(101, GIB, percent)]}
    return scene.tracker.read(HELD, on_gpu, place=scene.place)


@pytest.mark.parametrize("row", ["silent", "spoilt"])
def test_a_container_that_hides_its_turns_is_found(scene: Scene, row: str) -> None:
    """Security 8: the driver sees its process at work, and its activity file shows nothing."""
    scene.tracker.monitor = LimitMonitor(tolerance=Tolerance(patience_s=0, window_s=1e-9))
    if row == "spoilt":
        put(scene.shared.own_row(GRANT, GPU.uuid), 0, bytes(8))
    watched(scene, 18)
    report = watched(scene, 18)
    assert [each.breach for each in report.use.overruns] == [Breach.STATE]
    assert report.assumed_cores == {GPU.uuid: 18}
    report = watched(scene, 0)
    assert report.use.overruns == ()
    assert report.assumed_cores == {GPU.uuid: 0}


def test_neighbours_believe_a_container_that_shows_its_turns(scene: Scene) -> None:
    scene.tracker.monitor = LimitMonitor(tolerance=Tolerance(patience_s=0, window_s=1e-9))
    now = time.monotonic_ns()
    open_work = activity.SLOT.pack(now, now - 10**9, 0, 0)
    watched(scene, 18)
    put(scene.shared.own_row(GRANT, GPU.uuid), activity.HEADER_SIZE, open_work)
    put(scene.shared.own_row(GRANT, GPU.uuid), activity.HEAD.size, b"\1")
    report = watched(scene, 18)
    assert report.use.overruns == ()
    assert report.assumed_cores == {GPU.uuid: 0}


class RecordingMonitor(LimitMonitor):
    """Keeps the last reading."""

    last: tuple[GpuReading, ...] = ()

    def check(self, observed: tuple[GpuReading, ...], *, now: float) -> tuple[Overrun, ...]:
        self.last = observed
        return LimitMonitor.check(self, observed, now=now)


def test_what_a_container_shows_counts_also_while_the_driver_sees_no_load(scene: Scene) -> None:
    """The two look at other moments: a kernel of seconds is in one reading of the driver and in the next of the row."""
    scene.tracker.monitor = monitor = RecordingMonitor()

    def shown() -> float | None:
        return monitor.last[0].shown_percent

    watched(scene, 0)
    assert shown() is None, "nothing to compare with yet"
    watched(scene, 0)
    assert shown() == 0.0
    scene.read()
    assert shown() is None, "it has no process on the GPU"


def test_a_process_that_has_ended_since_the_driver_was_read_counts_and_hides_nothing(scene: Scene) -> None:
    """Adversary A-8: whose processes all ended between sample and look, used nothing."""
    scene.tracker.monitor = monitor = RecordingMonitor()
    watched(scene, 90)
    assert (monitor.last[0].seen_percent, monitor.last[0].ended_percent) == (90, 0)
    scene.node.end(101)
    watched(scene, 90)
    assert (monitor.last[0].seen_percent, monitor.last[0].ended_percent) == (90, 90)
