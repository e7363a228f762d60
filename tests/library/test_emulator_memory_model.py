"""No sequence of calls, and no number of threads and processes, loses memory, gives it twice or invents it."""

import subprocess
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import HealthCheck
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    invariant,
    multiple,
    rule,
    run_state_machine_as_test,
)

from tests.examples import examples
from tests.library.compiler import MEMORY_ERRORS_FATAL, compiled
from tests.library.machine import EMULATOR, Machine
from tests.library.memory_client import (
    CAPACITY,
    CONTEXT_MIB,
    KIB,
    MIB,
    OUT_OF_MEMORY,
    RELEASE_THRESHOLD,
    RESERVED,
    UNIT,
    USED,
    Cuda,
    CudaError,
    describe,
    room,
    start,
)
from tests.library.starting_line import let_go, line_of

pytestmark = pytest.mark.thorough

_SMALL = st.sampled_from([1, 255, 512, 513, 4 * KIB, 100_000, 700 * KIB, MIB])
_LARGE = st.sampled_from([MIB + 1, UNIT, UNIT + 1, 7 * MIB, 100 * MIB, 1000 * MIB])
_PIECES = st.integers(1, 300)


def _units(size: int) -> int:
    return (size + UNIT - 1) // UNIT * UNIT


def _unless_full(call: Callable[[], int]) -> int | None:
    try:
        return call()
    except CudaError as refused:
        if refused.code != OUT_OF_MEMORY:
            raise
        return None


@dataclass
class Block:
    """Something with bytes: the mark lies in its last ones."""

    pointer: int
    size: int
    mark: bytes


@dataclass(eq=False)
class Mapped:
    """An object and where it is mapped; what is not there any more is None."""

    size: int
    handle: int | None
    address: int | None = None


@dataclass
class Model:
    small: list[Block] = field(default_factory=list)
    pooled: list[Block] = field(default_factory=list)
    large: int = 0
    objects: int = 0
    threshold: int = 0

    @property
    def exact(self) -> int:
        return self.large + self.objects


class Allocations(RuleBasedStateMachine):
    """One process, driven. Small allocations share slabs, so that only bounds are known of what they cost."""

    build: Path
    small = Bundle("small")
    large = Bundle("large")
    pooled = Bundle("pooled")
    mapped = Bundle("mapped")

    def __init__(self) -> None:
        super().__init__()
        self.stack = ExitStack()
        directory = Path(self.stack.enter_context(TemporaryDirectory(dir="/tmp")))
        self.cuda: Cuda = start(Machine(self.build, directory, self.stack))
        self.pool = self.cuda.pool()
        self.model = Model()
        self.marks = 0

    def teardown(self) -> None:
        self.stack.close()

    def _sign(self, pointer: int, size: int) -> Block:
        self.marks += 1
        mark = self.marks.to_bytes(4, "little")[-min(size, 4) :] if size < 4 else self.marks.to_bytes(4, "little")
        self.cuda.write(pointer + size - len(mark), mark)
        return Block(pointer, size, mark)

    def _verify(self, block: Block) -> None:
        assert self.cuda.read(block.pointer + block.size - len(block.mark), len(block.mark)) == block.mark

    @rule(target=small, size=_SMALL)
    def allocate_small(self, size: int) -> Block:
        block = self._sign(self.cuda.alloc(size), size)
        self.model.small.append(block)
        return block

    @rule(block=consumes(small))
    def free_small(self, block: Block) -> None:
        self._verify(block)
        self.cuda.free(block.pointer)
        self.model.small.remove(block)

    @rule(target=large, size=_LARGE)
    def allocate_large(self, size: int) -> object:
        left = self.cuda.left()
        pointer = _unless_full(lambda: self.cuda.alloc(size))
        assert (pointer is not None) == (left >= _units(size))
        if pointer is None:
            return multiple()
        self.model.large += _units(size)
        return self._sign(pointer, size)

    @rule(block=consumes(large))
    def free_large(self, block: Block) -> None:
        self._verify(block)
        self.cuda.free(block.pointer)
        self.model.large -= _units(block.size)

    @rule(target=pooled, size=st.one_of(_SMALL, _LARGE))
    def allocate_pooled(self, size: int) -> object:
        left, reserved = self.cuda.left(), self.cuda.attribute(self.pool, RESERVED)
        pointer = _unless_full(lambda: self.cuda.alloc_async(size))
        if pointer is None:
            assert left < _units(size)
            assert self.cuda.attribute(self.pool, RESERVED) <= reserved
            return multiple()
        block = self._sign(pointer, size)
        self.model.pooled.append(block)
        return block

    @rule(block=consumes(pooled), in_stream=st.booleans())
    def free_pooled(self, block: Block, in_stream: bool) -> None:
        self._verify(block)
        if in_stream:
            self.cuda.free_async(block.pointer)
        else:
            self.cuda.free(block.pointer)
        self.model.pooled.remove(block)

    @rule(threshold=st.sampled_from([0, 32 * MIB, 64 * MIB, 1 << 62]))
    def choose_threshold(self, threshold: int) -> None:
        self.cuda.set_attribute(self.pool, RELEASE_THRESHOLD, threshold)
        self.model.threshold = threshold

    @rule()
    def synchronize(self) -> None:
        self.cuda.synchronize()
        if not self.model.pooled:
            assert self.cuda.attribute(self.pool, RESERVED) <= self.model.threshold

    @rule(keep=st.sampled_from([0, 33 * MIB, 100 * MIB]))
    def trim(self, keep: int) -> None:
        before = self.cuda.attribute(self.pool, RESERVED)
        self.cuda("cuMemPoolTrimTo", self.pool, keep)
        after = self.cuda.attribute(self.pool, RESERVED)
        assert min(before, keep) <= after <= before

    @rule(target=mapped, pieces=_PIECES)
    def create_object(self, pieces: int) -> object:
        left = self.cuda.left()
        handle = _unless_full(lambda: self.cuda.create(pieces * UNIT))
        assert (handle is not None) == (left >= pieces * UNIT)
        if handle is None:
            return multiple()
        self.model.objects += pieces * UNIT
        return Mapped(pieces * UNIT, handle)

    @rule(one=mapped)
    def map_object(self, one: Mapped) -> None:
        if one.handle is None or one.address is not None:
            return
        one.address = self.cuda.reserve(one.size)
        self.cuda.map(one.address, one.size, one.handle)
        self.cuda.allow(one.address, one.size)
        self.cuda.write(one.address + one.size - 4, b"mark")

    @rule(one=mapped)
    def unmap_object(self, one: Mapped) -> None:
        if one.address is None:
            return
        assert self.cuda.read(one.address + one.size - 4, 4) == b"mark"
        self.cuda("cuMemUnmap", one.address, one.size)
        self.cuda("cuMemAddressFree", one.address, one.size)
        one.address = None
        self._count(one)

    @rule(one=mapped)
    def release_object(self, one: Mapped) -> None:
        if one.handle is None:
            return
        self.cuda("cuMemRelease", one.handle)
        one.handle = None
        self._count(one)

    def _count(self, one: Mapped) -> None:
        if one.handle is None and one.address is None:
            self.model.objects -= one.size

    @invariant()
    def what_is_left_is_what_nobody_has(self) -> None:
        reserved = self.cuda.attribute(self.pool, RESERVED)
        for_small = CAPACITY - self.cuda.left() - reserved - self.model.exact
        asked = sum((block.size + 511) // 512 * 512 for block in self.model.small)
        assert for_small % UNIT == 0
        assert _units(asked) <= for_small <= len(self.model.small) * UNIT

    @invariant()
    def the_pool_knows_what_is_used(self) -> None:
        used = self.cuda.attribute(self.pool, USED)
        assert used == sum((block.size + 511) // 512 * 512 for block in self.model.pooled)
        assert used <= self.cuda.attribute(self.pool, RESERVED)


@pytest.mark.parametrize("steps", [30])
def test_no_sequence_of_calls_loses_or_invents_memory(build: Path, steps: int) -> None:
    Allocations.build = build
    profile = examples(25, steps=steps, suppress=list(HealthCheck))
    run_state_machine_as_test(Allocations, settings=profile)


# ---- free ranges of addresses, against a plain array of what is taken ----


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("native") / "ranges_model"
    memory = EMULATOR / "cuda/memory"
    sources = [Path(__file__).parent / "native/ranges_model.c", memory / "ranges.c", memory / "spans.c"]
    return compiled(output, *MEMORY_ERRORS_FATAL, f"-I{EMULATOR}", *sources)


@pytest.mark.parametrize("seed", range(5))
def test_a_take_is_the_lowest_place_that_fits_and_what_is_given_is_joined(model: Path, seed: int) -> None:
    command = [str(model), "100000", str(seed)]
    environment = {"ASAN_OPTIONS": "detect_leaks=0"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=55, check=False, env=environment)
    assert (done.returncode, done.stdout) == (0, "agreed\n"), done.stderr


# ---- many threads and processes at once ----


_SOURCE = Path(__file__).parent / "native/memory_threads.c"


@pytest.fixture(scope="module")
def program(build: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled(tmp_path_factory.mktemp("native") / "memory_threads", _SOURCE, build / "libcuda.so.1")


def _environment(machine: Machine) -> dict[str, str]:
    describe(machine)
    mine = {"VCUDA_EMULATOR_CONTEXT_MIB": str(CONTEXT_MIB), "LD_LIBRARY_PATH": str(machine.build)}
    return machine.environment | mine


def _start(program: Path, environment: dict[str, str], *words: object) -> subprocess.Popen[str]:
    command = [str(program), *map(str, words)]
    return subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def _let_race(racers: list[subprocess.Popen[str]]) -> None:
    for racer in racers:
        assert line_of(racer) == "ready\n"
    let_go(racers)


def _said(process: subprocess.Popen[str], timeout: float = 50) -> str:
    out, _ = process.communicate(timeout=timeout)
    assert process.returncode == 0, out
    return out


@pytest.mark.parametrize("kind", ["machine", "plain_machine"])
def test_threads_of_one_process_give_everything_back(request: pytest.FixtureRequest, program: Path, kind: str) -> None:
    process = _start(program, _environment(request.getfixturevalue(kind)), "hammer", 16, 3000)
    assert _said(process) == "all given back\n"


def test_processes_together_never_hold_more_than_there_is(
    machine: Machine, program: Path, running: list[subprocess.Popen[str]]
) -> None:
    environment = _environment(machine)
    count, held = 4, machine.directory / "held"
    held.write_bytes(bytes(8))
    words = ("race", 3, 1500, held, CAPACITY + CONTEXT_MIB * MIB, CONTEXT_MIB * MIB)
    racers = [_start(program, environment, *words) for _ in range(count)]
    running.extend(racers)
    _let_race(racers)
    assert [_said(racer) for racer in racers] == ["never more than there is\n"] * count
    assert start(machine).left() == CAPACITY


def test_a_process_that_is_killed_leaves_nothing_behind(
    machine: Machine, program: Path, running: list[subprocess.Popen[str]]
) -> None:
    environment = _environment(machine)
    watcher = start(machine)
    holders = [_start(program, environment, "hold", CAPACITY // 4) for _ in range(3)]
    running.extend(holders)
    for holder in holders:
        assert line_of(holder) == "holding\n"
    assert watcher.code("cuMemAlloc_v2", room(8), CAPACITY // 2) == 2
    for holder in holders:
        holder.kill()
        holder.wait(timeout=10)
    assert watcher.left() == CAPACITY
    watcher.alloc(CAPACITY)


def test_killed_in_the_middle_of_anything_they_leave_nothing_behind(
    machine: Machine, program: Path, running: list[subprocess.Popen[str]]
) -> None:
    environment = _environment(machine)
    watcher = start(machine)
    for round_ in range(8):
        victims = [_start(program, environment, "hammer", 4, 10_000_000) for _ in range(2)]
        running.extend(victims)
        _until_somebody_allocates(watcher.left)
        time.sleep(0.003 * round_)  # not a wait: a different instant to be killed at
        for victim in victims:
            victim.kill()
            victim.wait(timeout=10)
        assert watcher.left() == CAPACITY
        watcher.free(watcher.alloc(CAPACITY))


def _until_somebody_allocates(left: Callable[[], int]) -> None:
    deadline = time.monotonic() + 20
    while left() > CAPACITY - (2 * CONTEXT_MIB + 8) * MIB:
        assert time.monotonic() < deadline, "nobody allocated"
        time.sleep(0.002)


def test_allocating_and_freeing_is_cheap(plain_machine: Machine, program: Path) -> None:
    """A generous bound, for a busy machine: on an idle one it is a few hundred nanoseconds."""
    environment = _environment(plain_machine)
    best = min(int(_said(_start(program, environment, "pace", 20_000))) for _ in range(3))
    assert best < 5000


def test_free_memory_is_never_seen_negative(
    machine: Machine, program: Path, running: list[subprocess.Popen[str]]
) -> None:
    environment = _environment(machine)
    held = machine.directory / "held"
    held.write_bytes(bytes(8))
    racer = _start(program, environment, "race", 2, 800, held, CAPACITY, 0)
    running.append(racer)
    watcher = start(machine)
    _let_race([racer])
    looks = 0
    while racer.poll() is None:
        assert 0 <= watcher.left() <= watcher.total()
        looks += 1
    assert looks > 0
    assert racer.returncode == 0
