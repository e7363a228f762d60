"""The memory accounting's parts by themselves: the ledger against a model, tables in threads under the sanitizers."""

import ctypes
import subprocess
from collections.abc import Callable
from ctypes import byref, c_bool, c_uint, c_uint64, c_void_p
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from deviceplugin.container import region
from tests.examples import examples
from tests.library.compiler import MEMORY_ERRORS_FATAL, SHARED, compiled
from tests.library.interposed import GRANT
from tests.library.machine import LIBRARY

_PARTS = LIBRARY / "interposer/cuda/memory"
_CHECKED = {"every memory error fatal": MEMORY_ERRORS_FATAL, "every data race fatal": ("-fsanitize=thread",)}
BUILDS = [
    pytest.param(("-O2",), id="plain"),
    *(pytest.param(flags, id=name, marks=pytest.mark.thorough) for name, flags in _CHECKED.items()),
]
MOST = (1 << 64) - 1


@pytest.fixture(scope="module", params=BUILDS)
def parts(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    main = Path(__file__).parent / "native/memory_parts.c"
    names = ("ledger", "charges", "backing", "backing_shared", "exports")
    sources = [main, *(_PARTS / f"{name}.c" for name in names)]
    return compiled(tmp_path_factory.mktemp("parts") / "parts", *request.param, *sources)


@pytest.mark.parametrize("words", ["ledger 8 4000 8", "ledger 8 4000 2", "charges 8 20000", "backing 100000", "shared"])
def test_many_threads_at_once(parts: Path, words: str) -> None:
    done = subprocess.run([parts, *words.split()], capture_output=True, text=True, timeout=50, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "right\n", "")


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    flags = (*SHARED, "-fsanitize=undefined", "-fno-sanitize-recover=undefined")
    sources = [_PARTS / "ledger.c", _PARTS / "sizes.c"]
    loaded = ctypes.CDLL(str(compiled(tmp_path_factory.mktemp("parts") / "parts.so", *flags, *sources)))
    loaded.ledger_take.argtypes = [c_void_p, c_void_p, c_void_p, c_uint, c_uint64, c_uint64, c_void_p]
    loaded.ledger_take.restype = c_bool
    loaded.ledger_give.argtypes = [c_void_p, c_void_p, c_uint, c_uint64]
    loaded.ledger_record.argtypes = [c_void_p, c_void_p, c_void_p, c_uint, c_uint64]
    for name in ("sizes_charge", "sizes_pooled", "sizes_rows", "sizes_pitched", "sizes_array"):
        getattr(loaded, name).restype = c_uint64
        getattr(loaded, name).argtypes = [c_uint64] * 2
    loaded.sizes_array.argtypes = [c_void_p]
    return loaded


# ---- the ledger ----

SLOTS, DEVICES, OWN_SIZE = 5, 2, 64
SIZES = st.one_of(st.integers(0, 40), st.sampled_from([99, 100, 101, 1 << 40, MOST - 1, MOST]))


class Ledger(RuleBasedStateMachine):
    """Processes that take, give, are killed and come again; what the region says is what they have."""

    library: ctypes.CDLL

    def __init__(self) -> None:
        super().__init__()
        self.limit = 100
        self.data = ctypes.create_string_buffer(region.SLOTS_AT + 1024 * region.SLOT_SIZE)
        form = region.form(GRANT)
        ctypes.memmove(self.data, form.head, len(form.head))
        ctypes.c_uint32.from_buffer(self.data, len(form.head)).value = SLOTS
        for slot in range(SLOTS):
            ctypes.c_uint32.from_buffer(self.data, self.at(slot)).value = slot + 1
        self.owns = ctypes.create_string_buffer(OWN_SIZE * (SLOTS * DEVICES + 1))
        self.used = [[0] * DEVICES for _ in range(SLOTS)]
        self.overhead = [[0] * DEVICES for _ in range(SLOTS)]
        self.peak = [0] * DEVICES

    def at(self, slot: int) -> int:
        return region.SLOTS_AT + slot * region.SLOT_SIZE

    def word(self, slot: int, device: int, field: int) -> Any:
        offset = self.at(slot) + region.SLOT.size + device * region.USE.size + 8 * field
        return c_uint64.from_buffer(self.data, offset)

    def pointer(self, offset: int = 0) -> c_void_p:
        return c_void_p(ctypes.addressof(self.data) + offset)

    def mine(self, slot: int, device: int) -> c_void_p:
        """What the slot's process has to itself: `struct ledger_own`, aligned to its size."""
        first = -(-ctypes.addressof(self.owns) // OWN_SIZE) * OWN_SIZE
        return c_void_p(first + OWN_SIZE * (slot * DEVICES + device))

    def sum(self, device: int) -> int:
        return sum(self.used[slot][device] + self.overhead[slot][device] for slot in range(SLOTS))

    @rule(slot=st.integers(0, SLOTS - 1), device=st.integers(0, DEVICES - 1), size=SIZES)
    def take(self, slot: int, device: int, size: int) -> None:
        fits = self.sum(device) + size <= self.limit
        mine, own = self.mine(slot, device), self.pointer(self.at(slot))
        assert self.library.ledger_take(mine, self.pointer(), own, device, size, self.limit, None) is fits
        if fits:
            self.used[slot][device] += size
            self.peak[device] = max(self.peak[device], self.sum(device))

    @rule(slot=st.integers(0, SLOTS - 1), device=st.integers(0, DEVICES - 1), size=SIZES)
    def give(self, slot: int, device: int, size: int) -> None:
        """More than there is happens only to whose slot was cleared under him."""
        self.library.ledger_give(self.mine(slot, device), self.pointer(self.at(slot)), device, size)
        self.used[slot][device] = max(0, self.used[slot][device] - size)

    @rule(slot=st.integers(0, SLOTS - 1), device=st.integers(0, DEVICES - 1), size=st.integers(0, 200))
    def record(self, slot: int, device: int, size: int) -> None:
        mine, own = self.mine(slot, device), self.pointer(self.at(slot))
        self.library.ledger_record(mine, self.pointer(), own, device, size)
        self.used[slot][device] += size
        self.peak[device] = max(self.peak[device], self.sum(device))

    @rule(slot=st.integers(0, SLOTS - 1), device=st.integers(0, DEVICES - 1), size=st.integers(0, 60))
    def reconcile(self, slot: int, device: int, size: int) -> None:
        self.word(slot, device, 2).value = self.overhead[slot][device] = size

    @rule(slot=st.integers(0, SLOTS - 1))
    def kill(self, slot: int) -> None:
        for device in range(DEVICES):
            for field in range(4):
                self.word(slot, device, field).value = 0
            ctypes.memset(self.mine(slot, device), 0, OWN_SIZE)
            self.used[slot][device] = self.overhead[slot][device] = 0

    @rule(size=st.integers(1, 5))
    def change_limit(self, size: int) -> None:
        self.limit = 95 + size

    @invariant()
    def the_region_says_what_they_have(self) -> None:
        seen = region.parse(self.data.raw, grant=GRANT, devices=16)
        for slot in range(SLOTS):
            uses = seen.slots[slot].uses[:DEVICES]
            assert [use.used for use in uses] == self.used[slot]
            assert [use.overhead for use in uses] == self.overhead[slot]
            assert [use.pending for use in uses] == [0] * DEVICES
        assert [counter.peak for counter in seen.counters[:DEVICES]] == self.peak


def test_the_ledger_against_a_model(library: ctypes.CDLL) -> None:
    Ledger.library = library
    run_state_machine_as_test(Ledger, settings=examples(60, steps=40))


def test_a_reservation_that_stays_is_waited_for_a_while_and_the_dead_are_looked_for(library: ctypes.CDLL) -> None:
    """A process between reservation and charge gets half a second; one that died there is cleared meanwhile."""
    ledger = Ledger()
    mine, own = ledger.mine(0, 0), ledger.pointer(ledger.at(0))
    ledger.word(1, 0, 1).value = 100
    assert not library.ledger_take(mine, ledger.pointer(), own, 0, 1, 100, None)
    asked = []

    def reap() -> int:
        asked.append(True)
        ledger.kill(1)
        return 1

    assert library.ledger_take(mine, ledger.pointer(), own, 0, 1, 100, ctypes.CFUNCTYPE(c_uint)(reap))
    assert asked == [True]


def test_a_slot_outside_the_region_counts_for_its_own_process(library: ctypes.CDLL) -> None:
    ledger, outside = Ledger(), ctypes.create_string_buffer(region.SLOT_SIZE)
    mine, common = ledger.mine(0, 0), ledger.pointer()
    assert library.ledger_take(mine, common, outside, 0, 60, 100, None)
    assert not library.ledger_take(mine, common, outside, 0, 41, 100, None)
    assert library.ledger_take(mine, common, outside, 0, 40, 100, None)


def test_zeros_in_the_region_give_nobody_more_than_the_limit(library: ctypes.CDLL) -> None:
    """Who writes into the region does not reach what a process has to itself."""
    ledger = Ledger()
    mine, own = ledger.mine(0, 0), ledger.pointer(ledger.at(0))
    assert library.ledger_take(mine, ledger.pointer(), own, 0, 60, 100, None)
    ledger.word(0, 0, 0).value = 0
    assert not library.ledger_take(mine, ledger.pointer(), own, 0, 41, 100, None)
    assert library.ledger_take(mine, ledger.pointer(), own, 0, 40, 100, None)


# ---- sizes ----


class Shape(ctypes.Structure):
    """struct array_shape."""

    _fields_ = (
        *((name, c_uint64) for name in ("width", "height", "depth")),
        *((name, c_uint) for name in ("format", "channels", "flags", "levels")),
    )


@given(bytes_=st.integers(0, MOST))
def test_a_charge_is_never_less_than_what_is_asked(library: ctypes.CDLL, bytes_: int) -> None:
    for name, page in (("sizes_charge", 512 if bytes_ < 1 << 20 else 2 << 20), ("sizes_pooled", 512)):
        charged = getattr(library, name)(bytes_, 0)
        rounded = -(-bytes_ // page) * page
        assert charged == (rounded if rounded <= MOST else MOST)


@given(width=st.integers(0, MOST), height=st.integers(0, MOST))
def test_rows_do_not_overflow(library: ctypes.CDLL, width: int, height: int) -> None:
    assert library.sizes_rows(width, height) == min(MOST, width * max(height, 1))
    assert library.sizes_pitched(width, height) == min(MOST, min(MOST, -(-width // 512) * 512) * max(height, 1))


FORMATS: dict[int, Callable[[int], int]] = {0x01: lambda n: n, 0x02: lambda n: 2 * n, 0x20: lambda n: 4 * n}
EXTENT = st.one_of(st.integers(0, 5000), st.integers(0, MOST))


@given(
    extents=st.tuples(st.integers(1, MOST), EXTENT, EXTENT),
    form=st.sampled_from(sorted(FORMATS)),
    channels=st.sampled_from([1, 2, 4]),
    levels=st.integers(1, 14),
)
def test_an_array_takes_what_its_elements_take(
    library: ctypes.CDLL, extents: tuple[int, int, int], form: int, channels: int, levels: int
) -> None:
    width, height, depth = extents
    least = 0
    for level in range(levels):
        columns, rows, planes = (max(1, extent >> level) for extent in extents)
        least += columns * FORMATS[form](channels) * rows * planes
    shape = Shape(width, height, depth, form, channels, 0, levels)
    got = library.sizes_array(byref(shape))
    assert got == MOST or least <= got <= max(least * 8 * 64, least)
    if least > MOST:
        assert got == MOST


@given(shape=st.tuples(*[st.integers(0, MOST)] * 3), rest=st.tuples(*[st.integers(0, (1 << 32) - 1)] * 4))
def test_no_descriptor_is_too_strange(
    library: ctypes.CDLL, shape: tuple[int, int, int], rest: tuple[int, int, int, int]
) -> None:
    assert 0 <= library.sizes_array(byref(Shape(*shape, *rest))) <= MOST
