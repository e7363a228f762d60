"""The search itself, on numbers: exact against every set there is, and bounded where a limit is given."""

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from deviceplugin.placement.link import Search, greedy

NO_LIMIT = 1 << 40


def cost(pairs: list[list[int]], alone: list[int], members: tuple[int, ...]) -> int:
    return sum(pairs[a][b] for a, b in combinations(members, 2)) + sum(alone[member] for member in members)


@st.composite
def problems(draw: st.DrawFn) -> tuple[list[list[int]], list[int], int]:
    """Pair costs from a few values, so that members are often interchangeable and sets often tie."""
    count = draw(st.integers(2, 9))
    size = draw(st.integers(1, count))
    values = draw(st.lists(st.integers(0, 60), min_size=1, max_size=4))
    pairs = [[0] * count for _ in range(count)]
    for a, b in combinations(range(count), 2):
        pairs[a][b] = pairs[b][a] = draw(st.sampled_from(values))
    return pairs, draw(st.lists(st.integers(0, 9), min_size=count, max_size=count)), size


@given(problem=problems())
def test_no_set_costs_less_than_the_one_found_and_greedy_makes_one_too(
    problem: tuple[list[list[int]], list[int], int],
) -> None:
    pairs, alone, size = problem
    least = min(cost(pairs, alone, members) for members in combinations(range(len(pairs)), size))
    search = Search(pairs, alone, size, below=NO_LIMIT, effort=NO_LIMIT)
    found = search.run()
    assert found is not None
    assert not search.exhausted
    assert cost(pairs, alone, found) == least
    assert Search(pairs, alone, size, below=least, effort=NO_LIMIT).run() is None
    just_found = Search(pairs, alone, size, below=least + 1, effort=NO_LIMIT).run()
    assert just_found is not None
    assert cost(pairs, alone, just_found) == least
    for members in (found, greedy(pairs, size)):
        assert list(members) == sorted(set(members))
        assert len(members) == size


@given(problem=problems(), effort=st.integers(0, 200))
def test_the_effort_bounds_the_work_and_what_is_found_is_still_below_the_limit(
    problem: tuple[list[list[int]], list[int], int], effort: int
) -> None:
    pairs, alone, size = problem
    limit = cost(pairs, alone, tuple(range(size))) + 1
    search = Search(pairs, alone, size, below=limit, effort=effort)
    found = search.run()
    levels = min(size, len(pairs) - size) or size
    assert search.spent <= effort + (levels + 1) * len(pairs)
    assert found is None or (len(found) == size and cost(pairs, alone, found) < limit)


def test_greedy_can_be_led_astray_and_the_search_is_not() -> None:
    """The triangle 3, 4, 5 is the closest, but each of its members has a nearer neighbour outside it."""
    far, near, bait = 50, 10, 5
    pairs = [[0 if a == b else far for b in range(6)] for a in range(6)]
    for a, b, value in [(3, 4, near), (3, 5, near), (4, 5, near), (0, 3, bait), (1, 4, bait), (2, 5, bait)]:
        pairs[a][b] = pairs[b][a] = value
    alone = [0] * 6
    assert cost(pairs, alone, greedy(pairs, 3)) == bait + near + far
    assert Search(pairs, alone, 3, below=NO_LIMIT, effort=NO_LIMIT).run() == (3, 4, 5)


def test_of_interchangeable_members_the_cheaper_are_taken() -> None:
    pairs = [[0 if a == b else 5 for b in range(16)] for a in range(16)]
    alone = [16 - member for member in range(16)]
    search = Search(pairs, alone, 8, below=NO_LIMIT, effort=NO_LIMIT)
    assert search.run() == tuple(range(8, 16))
    assert search.spent < 16 * 30, "members that are alike must not be tried one for the other"
