"""A bucket allows a burst and then the rate, for all callers together."""

import asyncio
import itertools
import time

from hypothesis import given
from hypothesis import strategies as st

from deviceplugin.kube.transport import TokenBucket


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_burst_is_free_and_the_next_waits_its_turn() -> None:
    clock = Clock()
    bucket = TokenBucket(rate=10, burst=3, clock=clock)
    assert [round(bucket.reserve(), 3) for _ in range(5)] == [0.0, 0.0, 0.0, 0.1, 0.2]
    clock.now += 0.2
    assert round(bucket.reserve(), 3) == 0.1
    clock.now += 3600
    assert [round(bucket.reserve(), 3) for _ in range(4)] == [0.0, 0.0, 0.0, 0.1]


@given(st.lists(st.floats(0, 2), min_size=1, max_size=60), st.integers(1, 200), st.integers(1, 20))
def test_no_stretch_of_time_sees_more_than_burst_and_rate(gaps: list[float], rate: int, burst: int) -> None:
    clock = Clock()
    bucket = TokenBucket(rate=rate, burst=burst, clock=clock)
    sent = []
    for gap in gaps:
        clock.now += gap
        sent.append(clock.now + bucket.reserve())
    assert sent == sorted(sent)
    for first in range(len(sent)):
        for last in range(first, len(sent)):
            assert last - first + 1 <= burst + rate * (sent[last] - sent[first]) + 1e-6


async def test_takers_are_served_in_turn() -> None:
    """Also if one of them loses the CPU for a while after it has read the clock."""
    reads = itertools.count()

    def clock() -> float:
        now = time.monotonic()
        time.sleep(0.02 if next(reads) == 3 else 0)
        return now

    bucket = TokenBucket(rate=1000, burst=1, clock=clock)
    done: list[int] = []

    async def work(number: int) -> None:
        await bucket.take()
        done.append(number)

    await asyncio.gather(*(work(number) for number in range(5)))
    assert done == [0, 1, 2, 3, 4]
