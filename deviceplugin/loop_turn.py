"""Long work on the event loop, in slices: between two of them others are served.

In: whether the caller of this context has gone. Out: when everything that others had to do is done, or a
CallerGoneError. One iteration of the loop is not enough: to answer a request takes one to read it, one to begin its
task and one to write, and a slice in each of them would make it wait three times as long as a slice.
"""

import asyncio
from collections.abc import Callable
from contextvars import ContextVar

from deviceplugin.errors import CallerGoneError

ITERATIONS = 4  # of which one with nothing to do takes some 20 us


def _nobody_leaves() -> bool:
    return False


CALLER_HAS_GONE: ContextVar[Callable[[], bool]] = ContextVar("caller_has_gone", default=_nobody_leaves)
"""Set by who answers a request. Tasks that work for all callers need a context without it."""


async def others_turn() -> None:
    """Between two slices of long work."""
    for _ in range(ITERATIONS):
        await asyncio.sleep(0)
    require_caller()


def require_caller() -> None:
    """Raises CallerGoneError where nobody waits for the answer any more."""
    if CALLER_HAS_GONE.get()():
        raise CallerGoneError("the client left before it had its answer")
