"""Waiting for a condition with a deadline, the only way the e2e tests wait.

In: a condition. Out: its first true value, or `DeadlineError` that says what was awaited and shows the evidence.
Not here: what the conditions are. Invariant: nothing waits without an end.
"""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


class HarnessError(RuntimeError):
    """The cluster itself, not what is tested on it, went wrong."""


class DeadlineError(HarnessError):
    """A condition did not come true in time."""


def wait_until(
    condition: Callable[[], T | None],
    what: str,
    *,
    seconds: float,
    every: float = 0.1,
    evidence: Callable[[], str] | None = None,
) -> T:
    deadline = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise DeadlineError(f"{what}: not within {seconds:.0f} s.\n{evidence() if evidence else ''}".rstrip())
        time.sleep(every)
