"""What a container can do to its neighbours by what it writes into its activity row.

It claims no more than its share, and what it leaves out is not charged to others.
"""

import ctypes
import os
import struct
import subprocess
import time
from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deviceplugin.container import activity, shared_file
from deviceplugin.container.limit_monitor import GpuReading, GpuTotals, LimitMonitor
from deviceplugin.container.shared_state import SharedState
from deviceplugin.ledger.grant import GrantId
from deviceplugin.model.gpu import Gpu, GpuUuid
from tests.examples import every, examples
from tests.library.compute import MS, SECOND, Simulation, allocated, build_rows

NOW = 100 * SECOND
RING = 256
LIES = ("one", "many", "flapping", "rings", "forever", "overflowing", "random")
GPU, OWN, OTHER = GpuUuid("GPU-a"), GrantId("g-0001"), GrantId("g-0002")


def number(value: int) -> ctypes.c_uint64:
    return ctypes.c_uint64(value)


# ---- one look ----


def full_ring(order: str) -> list[tuple[int, int]]:
    starts = [NOW - 200 * MS + 300_000 * i for i in range(RING)]
    if order == "falling":
        starts.reverse()
    if order == "mixed":
        starts = [starts[i * 97 % RING] for i in range(RING)]
    return [(start, start + 250_000) for start in starts]


def test_a_full_row_does_not_hold_up_who_reads_it(parts: ctypes.CDLL) -> None:
    """128 slots with full rings, in whatever order: less than half a millisecond, and a few for a slow machine."""
    took = {}
    for order in ("rising", "falling", "mixed"):
        made = allocated(parts, "presence")
        ring = [time_ns for entry in full_ring(order) for time_ns in entry]
        parts.access_write(made, 2, 128, (ctypes.c_uint64 * len(ring))(*ring))
        for i in range(200):
            at = NOW - 200 * MS + 420_000 * i
            parts.access_publish(made, 1, 0, number(at), number(at + 300_000))
        looks = []
        for _ in range(20):
            begin = time.thread_time_ns()
            parts.access_share(made, number(NOW - 200 * MS), number(NOW - 100 * MS), number(NOW))
            looks.append(time.thread_time_ns() - begin)
        took[order] = min(looks)
    assert {order: look for order, look in took.items() if look >= 1 * MS} == {}


def test_full_rows_take_no_room_from_an_ordinary_one(parts: ctypes.CDLL) -> None:
    """Neither does the order matter in which they are read: the ordinary one is between them."""
    made = allocated(parts, "presence")
    ring = [time_ns for i in range(RING) for time_ns in (NOW - 200 * MS + i, NOW - 150 * MS - i)]
    for row in (1, 3):
        parts.access_write(made, row, 128, (ctypes.c_uint64 * len(ring))(*ring))
    for i in range(100):
        at = NOW - 150 * MS + 420_000 * i
        parts.access_publish(made, 2, 0, number(at), number(at + 300_000))
    parts.access_share(made, number(NOW - 200 * MS), number(NOW - 100 * MS), number(NOW))
    assert parts.access_taken(made, 2) == pytest.approx(100 * 300_000 / 2, abs=1)


def test_a_stretch_counts_if_it_can_have_been_measured(parts: ctypes.CDLL) -> None:
    kept = {
        (0, 2**64 - 1): 100,  # all times, the end of time included
        (0, 2**63): 100,
        (NOW - 100 * MS, NOW + SECOND): 100,
        (NOW - 100 * MS, NOW): 50,
        (0, NOW): 50,  # a long kernel, measured now
        (NOW, NOW - 100 * MS): 100,  # runs backwards
        (2**64 - 1, 0): 100,
    }
    told = {}
    for stretch in kept:
        made = allocated(parts, "presence")
        parts.access_write(made, 1, 1, (ctypes.c_uint64 * (2 * RING))(*(stretch * RING)))
        told[stretch] = parts.access_share(made, number(NOW - 100 * MS), number(NOW), number(NOW)) / MS
    assert told == kept


# ---- what a row may claim ----


@examples(150)
@given(
    rate=st.integers(0, 100_000),
    stretches=st.lists(st.tuples(st.integers(1, 3 * SECOND), st.integers(1, 10), st.floats(0, 1)), max_size=150),
)
def test_claims_no_more_than_its_rate_and_a_long_kernel(
    parts: ctypes.CDLL, rate: int, stretches: list[tuple[int, int, float]]
) -> None:
    """Whatever it says, in stretches with pauses between them that earn it nothing it could save up."""
    claim = allocated(parts, "claim", rate)
    now, present, taken, longest = NOW, 0, 0.0, 0
    parts.claim_fill(claim, number(now))
    for length, pause, part in stretches:
        now += length
        parts.claim_fill(claim, number(now))
        if not parts.access_spent(claim):
            parts.claim_draw(claim, number(length), ctypes.c_double(length * part))
            taken += length * part
        longest = max(longest, length)
        now += length * (pause - 1)
        present += length * pause
    eased = rate + rate // 16 + 500 if rate else 0
    assert taken <= present * eased / 100_000 + (2 * SECOND + longest if rate else 0) + 1


@pytest.mark.parametrize(("percent", "kernel_s", "shared"), [(25, 2, 1), (50, 3, 1), (10, 2, 0), (75, 10, 1)])
def test_a_long_kernel_that_is_paid_for_counts(parts: ctypes.CDLL, percent: int, kernel_s: int, shared: int) -> None:
    """Again and again, with the pauses of the limit; `shared`: with this process, so it takes twice as long."""
    claim = allocated(parts, "claim", percent * 1000)
    wall, paid = kernel_s * (1 + shared) * SECOND, int(kernel_s * 100 / percent * SECOND)
    step, spent = 10 * MS, []
    for start in range(NOW, NOW + 20 * paid, paid):
        for now in range(start + step, start + wall + step, step):
            parts.claim_fill(claim, number(now))
            parts.claim_draw(claim, number(step), ctypes.c_double(step / (1 + shared)))
            spent.append(parts.access_spent(claim))
    assert not any(spent)


# ---- what is read ----


class Table:
    """A GPU's rows as the agent makes them, and a container that reads them: 30 percent, up to 80."""

    def __init__(self, parts: ctypes.CDLL, base: Path) -> None:
        self.state = SharedState(base)
        for grant in (OWN, OTHER):
            self.state.prepare(grant, [GPU])
        self._parts = parts
        directory = str(base / "gpus" / GPU).encode()
        self._reader = allocated(parts, "neighbours", directory, OWN.encode())

    def write(self, *, cores: int, soft: int, wanted: int) -> None:
        with self.state.own_row(OTHER, GPU).open("r+b") as file:
            file.seek(activity.LIMITS_AT - 4)
            file.write(struct.pack("<IIIIQ", 1, cores, soft, 0, wanted))

    @property
    def row(self) -> Path:
        return self.state.own_row(OTHER, GPU)

    def told(self, now: int) -> list[int]:
        found = (ctypes.c_uint64 * 4)()
        self.look(now)
        assert self._parts.access_neighbour(self._reader, OTHER.encode(), found) == 1
        return list(found)

    def look(self, now: int) -> None:
        self._parts.access_look(self._reader, number(now), 30, 80)

    def is_assumed(self, now: int) -> bool:
        """Whether the other container is taken to use its share, whatever its row says."""
        self.look(now)
        return bool(self._parts.access_assumed(self._reader, OTHER.encode()) == 1)


@pytest.fixture
def table(parts: ctypes.CDLL, tmp_path: Path) -> Table:
    return Table(parts, tmp_path)


@pytest.mark.parametrize("says", [(100, 100), (2**32 - 1, 2**32 - 1), (0, 0), (1, 0)])
def test_what_the_agent_tells_counts_and_not_what_the_row_says(table: Table, says: tuple[int, int]) -> None:
    table.state.show_limits(OTHER, GPU, cores=20, soft_cores=60)
    table.write(cores=says[0], soft=says[1], wanted=NOW - 10 * MS)
    assert table.told(NOW) == [20, 60, NOW - 10 * MS, 45_000]
    table.state.show_limits(OTHER, GPU, cores=40, soft_cores=0)
    assert table.told(NOW + 200 * MS)[:2] == [40, 0]


def test_without_published_limits_an_activity_file_is_trusted_up_to_the_free_share(table: Table) -> None:
    told = {}
    for at, says in enumerate([(20, 60), (2**32 - 1, 2**32 - 1), (0, 0)]):
        table.write(cores=says[0], soft=says[1], wanted=NOW)
        told[says] = table.told(NOW + at * 200 * MS)[:2]
    assert told == {(20, 60): [20, 60], (2**32 - 1, 2**32 - 1): [70, 100], (0, 0): [0, 0]}


@pytest.mark.parametrize(("wanted", "counts"), [(NOW + 1, 0), (2**64 - 1, 0), (NOW, NOW), (0, 0)])
def test_wants_in_the_future_do_not_count(table: Table, wanted: int, counts: int) -> None:
    table.state.show_limits(OTHER, GPU, cores=20, soft_cores=0)
    table.write(cores=20, soft=0, wanted=wanted)
    assert table.told(NOW)[2] == counts


def overwrite(row: Path) -> None:
    with row.open("r+b") as file:
        file.write(bytes(8))


SPOILT: dict[str, Callable[[Path], None]] = {
    "overwritten": overwrite,
    "cut": lambda row: os.truncate(row, 100),
    "empty": lambda row: os.truncate(row, 0),
    "slots-cut": lambda row: os.truncate(row, activity.HEADER_SIZE + 100),
}


@pytest.mark.parametrize("spoil", SPOILT.values(), ids=SPOILT)
@pytest.mark.parametrize("first", ["before", "after"])
def test_a_container_whose_activity_file_cannot_be_read_is_assumed_to_use_its_share(
    table: Table, spoil: Callable[[Path], None], first: str
) -> None:
    """Security 8. Whether it was readable once or never; also for what others may borrow. Believed when mended."""
    table.state.show_limits(OTHER, GPU, cores=20, soft_cores=60)
    table.write(cores=20, soft=60, wanted=0)
    if first == "after":
        assert not table.is_assumed(NOW)
    spoil(table.row)
    assert table.is_assumed(NOW + 200 * MS)
    assert table.told(NOW + 400 * MS) == [20, 60, NOW + 400 * MS, 45_000]
    shared_file.make(table.row, activity.form(OTHER))
    table.state.prepare(OTHER, [GPU])
    assert not table.is_assumed(NOW + 600 * MS)


def test_without_published_limits_nothing_is_assumed(table: Table) -> None:
    overwrite(table.row)
    assert not table.is_assumed(NOW)


@pytest.mark.parametrize(("assumed", "rate"), [(0, 20_000), (10, 10_000), (35, 35_000), (2**32 - 1, 100_000)])
def test_the_agent_says_what_to_assume_of_a_readable_activity_file(table: Table, assumed: int, rate: int) -> None:
    table.state.show_limits(OTHER, GPU, cores=20, soft_cores=0)
    table.write(cores=20, soft=0, wanted=5)
    table.state.assume(OTHER, GPU, assumed)
    wanted = NOW if assumed else 5
    assert table.told(NOW) == [20, 0, wanted, rate]
    assert table.is_assumed(NOW) == (assumed != 0)
    table.state.show_limits(OTHER, GPU, cores=90, soft_cores=0)
    assert table.told(NOW + 200 * MS)[3] == (rate if assumed else 90_000), "new limits leave it as it was"


def test_limits_of_an_agent_of_an_older_version_are_read(table: Table) -> None:
    table.state.show_limits(OTHER, GPU, cores=20, soft_cores=60)
    told = table.state.shown_limits(OTHER, GPU)
    told.write_bytes(told.read_bytes()[:8])
    table.write(cores=100, soft=100, wanted=5)
    assert table.told(NOW)[:2] == [20, 60]
    assert not table.is_assumed(NOW)


def test_a_container_that_the_agent_does_not_believe_assumes_nothing_of_others(table: Table) -> None:
    """Who hides its turns pays for those of others that hide theirs."""
    table.state.show_limits(OTHER, GPU, cores=20, soft_cores=0)
    table.state.show_limits(OWN, GPU, cores=30, soft_cores=80)
    overwrite(table.row)
    assert table.is_assumed(NOW)
    table.state.assume(OWN, GPU, 30)
    assert not table.is_assumed(NOW + 200 * MS)


@pytest.mark.parametrize("seed", range(1, 5, every(2)))
def test_rows_that_say_anything(tmp_path_factory: pytest.TempPathFactory, tmp_path: Path, seed: int) -> None:
    """From files, with addresses and arithmetic checked."""
    program = build_rows(tmp_path_factory.mktemp("rows"))
    command = [str(program), str(tmp_path), str(seed), "1500"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=50, check=False)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout


# ---- all of it, on a simulated GPU ----


def test_two_containers_get_their_shares_beside_a_false_activity_file(simulation: Simulation) -> None:
    """The GPU is theirs, whatever a third row says."""
    told = {}
    for workloads, lie in product([("medium", "gemm"), ("gemm", "medium"), ("step", "graph")], LIES):
        words = ["c:30", f"p:{workloads[0]}", "c:70", f"p:{workloads[1]}", f"h:{lie}"]
        told[workloads, lie] = [one.share for one in simulation.run("seconds=4", *words)[:2]]
    assert told == {each: [pytest.approx(30, abs=3), pytest.approx(70, abs=3)] for each in told}


def test_a_false_activity_file_claims_at_most_its_share(simulation: Simulation) -> None:
    """Once what one long kernel may take is claimed."""
    told = {}
    for lie in LIES:
        words = ["c:30", "p:medium", "c:69", "p:gemm", f"h:{lie}:1"]
        told[lie] = [one.share for one in simulation.run("seconds=16", "warmup=10", *words)[:2]]
    assert told == {lie: [pytest.approx(30, abs=3), pytest.approx(69, abs=3)] for lie in LIES}


@pytest.mark.parametrize("agent", [(), ("untold",)], ids=["told", "untold"])
def test_a_false_activity_file_reduces_no_other_share(checked_simulation: Simulation, agent: tuple[str, ...]) -> None:
    words = ("seconds=6", "warmup=1", "c:40", "p:medium")
    told = {lie: checked_simulation.run(*words, f"h:{lie}:40", *agent)[0].share for lie in LIES}
    assert {lie: share for lie, share in told.items() if share < 39} == {}


HIDDEN = ("unreadable", "silent:50")


def reading(limit: int, *, seen: float, shown: float) -> GpuReading:
    return GpuReading("ml/nb/main", Gpu(GPU, 0, 3, "Test GPU", 80 << 30), 2 << 30, limit, 0, None, seen, shown)


@pytest.mark.parametrize("how", HIDDEN)
def test_a_container_that_hides_its_turns_takes_nothing_from_another(simulation: Simulation, how: str) -> None:
    """Security 8: what it does is charged to it alone. What it may use and does not is its neighbour's."""
    told = {}
    for workload, limit in product(["medium", "gemm", "step", "model"], [50, 30, 20]):
        words = ["c:50", how, f"p:{workload}", f"c:{limit}", "p:medium"]
        hiding, victim = simulation.run("seconds=6", "warmup=2", *words)
        told[workload, limit] = hiding.share, victim.share - limit
    assert {each: got for each, got in told.items() if not (got[0] <= 52 and -1 <= got[1] <= 50)} == {}


@pytest.mark.parametrize(("count", "limit", "own"), [(2, 10, 50), (4, 10, 60), (7, 10, 30), (10, 5, 50), (10, 2, 30)])
def test_many_that_hide_little_take_nothing_from_others_once_the_agent_has_summed_it(
    simulation: Simulation, count: int, limit: int, own: int
) -> None:
    """The agent reads what they use and that they show none of it, for half a minute at a time."""
    totals, told = GpuTotals(), [0] * count
    monitors = [LimitMonitor(totals=totals) for _ in range(count)]
    for turn in range(3):
        hiding = [word for cores in told for word in (f"c:{limit}", f"silent:{cores}", "p:medium")]
        *used, victim, second = simulation.run(
            "seconds=6", "warmup=3", *hiding, f"c:{own // 2}", "p:medium", f"c:{own - own // 2}", "p:medium"
        )
        for second_s in range(30 * turn, 30 * turn + 30):
            found = [
                monitor.check((reading(limit, seen=one.share, shown=0.0),), now=float(second_s))
                for monitor, one in zip(monitors, used, strict=True)
            ]
        told = [monitor.assumed_cores().get(GPU, 0) for monitor in monitors]
        assert all(found), f"not reported after {30 * turn + 30} s: {told}"
    assert min(victim.share, second.share) >= own // 2 - 2, (told, victim.share, second.share)


def test_an_activity_file_that_leaves_turns_out_and_is_believed_costs_others_their_share(
    simulation: Simulation,
) -> None:
    """What the two above and below are for."""
    _, victim = simulation.run("seconds=6", "warmup=2", "c:50", "silent", "p:medium", "c:50", "p:medium")
    assert victim.share < 40


@pytest.mark.parametrize(("count", "limit", "own"), [(7, 10, 30), (3, 20, 40)])
def test_many_that_hide_their_turns_pay_for_each_other(
    simulation: Simulation, count: int, limit: int, own: int
) -> None:
    *hiding, victim = simulation.run(
        "seconds=6", "warmup=2", *([f"c:{limit}", "unreadable", "p:medium"] * count), f"c:{own}", "p:medium"
    )
    assert victim.share >= own - 1
    assert all(one.share <= limit + 1 for one in hiding)


def test_beside_a_container_that_hides_its_turns_others_keep_theirs(simulation: Simulation) -> None:
    """Nearly: what each assumes is an estimate, so one that has all of the rest gets a few percent less."""
    told = {}
    for limits in [(20, 20, 60), (30, 30, 40), (10, 40, 50)]:
        words = [word for cores in limits[1:] for word in (f"c:{cores}", "p:medium")]
        _, *others = simulation.run("seconds=6", "warmup=2", f"c:{limits[0]}", "unreadable", "p:medium", *words)
        told[limits] = [one.share - limit for one, limit in zip(others, limits[1:], strict=True)]
    assert {limits: got for limits, got in told.items() if min(got) < -5} == {}


def test_a_program_past_the_library_is_charged_with_what_the_agent_saw(simulation: Simulation) -> None:
    """It uses half of the GPU, and its row is silent, as that of a static program is."""
    past, victim = simulation.run("seconds=6", "warmup=2", "c:99", "silent:50", "p:medium", "c:50", "p:medium")
    assert past.share == pytest.approx(50, abs=2)
    assert victim.share == pytest.approx(50, abs=2)


def test_a_balance_of_any_size_overflows_nothing(checked_simulation: Simulation) -> None:
    """Security 18: the simulation is built with a sanitizer that ends it. It gets more: the budget is its own."""
    (own,) = checked_simulation.run("seconds=2", "c:30", "overwrites", "p:medium")
    assert own.share > 30


@pytest.mark.parametrize("lie", ["forever", "overflowing"])
def test_wants_far_in_the_future_hold_back_nothing(checked_simulation: Simulation, lie: str) -> None:
    borrower, _ = checked_simulation.run("seconds=3", "c:30:90", "p:medium", f"h:{lie}:50")
    assert borrower.share == pytest.approx(90, abs=2)
