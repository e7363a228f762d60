"""Any sequence of allocations and frees, of every family, against a model in Python of what the GPU has left."""

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
from tests.library.machine import Machine
from tests.library.memory_client import (
    CAPACITY,
    KIB,
    MIB,
    OUT_OF_MEMORY,
    RELEASE_THRESHOLD,
    RESERVED,
    UNIT,
    USED,
    Cuda,
    CudaError,
    start,
)

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
