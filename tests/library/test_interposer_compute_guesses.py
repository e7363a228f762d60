"""What a launch may cost whose grid is new, from the other grids of its function. Library D5."""

import ctypes
from ctypes import c_bool, c_uint32, c_uint64
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.examples import examples
from tests.library.compute import allocated

MOST = 100_000_000
FUNCTION, OTHER = 64, 128


@dataclass(frozen=True, slots=True)
class Estimates:
    parts: ctypes.CDLL
    made: ctypes.c_void_p

    def of(self, grid: int, *, block: int = 256, function: int = FUNCTION, together: bool = False) -> int:
        """What a launch is taken to cost, 0 for unknown. `together`: a cooperative one."""
        key = (c_uint64(function), c_uint32(grid), c_uint32(block), c_bool(together))
        return int(self.parts.access_guess(self.made, *key))

    def measured(
        self, grid: int, ns: int, *, block: int = 256, function: int = FUNCTION, together: bool = False
    ) -> None:
        key = (c_uint64(function), c_uint32(grid), c_uint32(block), c_bool(together))
        self.parts.access_grid_measured(self.made, *key, c_uint64(ns))


@pytest.fixture
def estimates(parts: ctypes.CDLL) -> Estimates:
    return Estimates(parts, allocated(parts, "estimates"))


def test_a_new_function_is_unknown(estimates: Estimates) -> None:
    estimates.measured(1000, 50_000)
    assert estimates.of(1000, function=OTHER) == 0


def test_between_two_known_grids_the_cost_is_on_the_line(estimates: Estimates) -> None:
    estimates.measured(1 << 10, 20_000)
    estimates.measured(1 << 16, 1_000_000)
    assert estimates.of(1 << 13) == pytest.approx(20_000 + 980_000 * 7 / 63, rel=0.15)


@pytest.mark.parametrize(("grid", "cost"), [(1 << 8, 5_000), (1 << 14, 320_000)])
def test_beyond_the_known_grids_it_is_in_proportion(estimates: Estimates, grid: int, cost: int) -> None:
    estimates.measured(1 << 10, 20_000)
    assert estimates.of(grid) == pytest.approx(cost, rel=0.15)


def test_nearly_the_same_grid_is_the_same_launch(estimates: Estimates) -> None:
    estimates.measured(1 << 10, 20_000)
    assert estimates.of((1 << 10) + 100) == 20_000


@pytest.mark.parametrize("together", [False, True])
def test_a_block_of_another_size_counts_by_its_threads(estimates: Estimates, together: bool) -> None:
    estimates.measured(1 << 10, 20_000, block=256, together=together)
    assert estimates.of(1 << 10, block=512, together=together) == pytest.approx(40_000, rel=0.15)


def test_a_guess_is_reserved_and_therefore_not_endless(estimates: Estimates) -> None:
    estimates.measured(1, 5_000_000)
    assert estimates.of(1 << 30) == MOST


@examples(50)
@given(grid=st.integers(1, 2**31 - 1), known=st.integers(1, 2**31 - 1), ns=st.integers(1, MOST))
def test_the_first_measurement_takes_the_guess_s_place(parts: ctypes.CDLL, grid: int, known: int, ns: int) -> None:
    estimates = Estimates(parts, allocated(parts, "estimates"))
    estimates.measured(known, 20_000)
    before = estimates.of(grid)
    estimates.measured(grid, ns)
    found = estimates.of(grid)
    assert before > 0
    assert found == pytest.approx(ns, rel=0.01, abs=2) or before == 20_000, (
        "the same launch, or a guess that is replaced"
    )


def test_ever_new_grids_push_nothing_out(estimates: Estimates) -> None:
    for function in range(1, 1001):
        estimates.measured(264, function * 1000, function=function * 4096)
    for grid in range(1, 40_000):
        estimates.measured(grid * 53, 20_000)
    known = [estimates.of(264, function=function * 4096) for function in range(1, 1001)]
    assert known == [function * 1000 for function in range(1, 1001)]
