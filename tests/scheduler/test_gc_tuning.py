"""The collector of cycles at work: short pauses, no garbage is kept."""

import asyncio
import gc
import weakref
from collections.abc import Iterator, Mapping
from contextlib import suppress

import pytest

from deviceplugin.scheduler import run


@pytest.fixture(autouse=True)
def collector() -> Iterator[None]:
    """The collector is the process's; other tests find it as it was."""
    thresholds, callbacks = gc.get_threshold(), list(gc.callbacks)
    yield
    gc.set_threshold(*thresholds)
    gc.callbacks[:] = callbacks
    gc.unfreeze()


class _Ring:
    """Refers to itself."""

    def __init__(self) -> None:
        self.me = self


def test_what_stays_is_looked_at_in_small_parts_however_much_it_is() -> None:
    run.relax_while_listing()
    listed = [_Ring() for _ in range(50_000)]
    run.freeze_survivors()
    looks: list[int] = []

    def note(phase: str, info: Mapping[str, int]) -> None:
        if phase == "start":
            looks.append(sum(len(gc.get_objects(generation=each)) for each in range(info["generation"] + 1)))

    gc.callbacks.append(note)
    came = [_Ring() for _ in range(50_000)]
    gc.callbacks.remove(note)
    assert len(looks) > 10
    assert max(looks) < 20_000
    assert len(listed) == len(came)


def test_unused_cycles_are_collected_while_the_process_works() -> None:
    run.freeze_survivors()
    ring = _Ring()
    gone = weakref.ref(ring)
    del ring
    stays: list[list[int]] = [[] for _ in range(20_000)]
    assert gone() is None
    assert stays


async def test_what_was_set_aside_in_use_goes_at_the_next_look_at_all() -> None:
    ring = _Ring()
    run.freeze_survivors()
    gone = weakref.ref(ring)
    del ring
    gc.collect()
    assert gone() is not None
    looking = asyncio.create_task(run.collect_all(every=0.01))
    async with asyncio.timeout(60):
        while gone() is not None:
            await asyncio.sleep(0.01)
    looking.cancel()
    with suppress(asyncio.CancelledError):
        await looking


def test_starting_twice_is_starting_once() -> None:
    before = len(gc.callbacks)
    run.freeze_survivors()
    run.freeze_survivors()
    assert len(gc.callbacks) == before + 1
