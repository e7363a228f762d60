"""Waiting for a condition with a deadline, the only way the e2e tests wait.

In: a condition. Out: its first true value, or `DeadlineError` that says what was awaited and shows the evidence.
A condition may read what is not filled in yet: the API server shows a new object before a controller has written its
status, as `null` or not at all.
Not here: what the conditions are. Invariant: nothing waits without an end, and no end comes because a machine is slow.
"""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
PATIENCE_S = 240.0
"""Several times what the slowest condition takes while other programs use every core."""
_SHORTEST_S, _LONGEST_S = 0.02, 0.4


class HarnessError(RuntimeError):
    """The cluster itself, not what is tested on it, went wrong."""


class DeadlineError(HarnessError):
    """A condition did not come true in time."""


def wait_until(
    condition: Callable[[], T | None],
    what: str,
    *,
    seconds: float = PATIENCE_S,
    evidence: Callable[[], str] | None = None,
) -> T:
    """Looks less often the longer it has waited: the end is seen at most a tenth of the wait too late."""
    began = time.monotonic()
    while True:
        missing: Exception | None = None
        try:
            if value := condition():
                return value
        except (LookupError, TypeError) as error:
            missing = error
        waited = time.monotonic() - began
        if waited > seconds:
            shown = f"{what}: not within {seconds:.0f} s.\n{evidence() if evidence else ''}".rstrip()
            raise DeadlineError(shown) from missing
        time.sleep(min(max(waited / 10, _SHORTEST_S), _LONGEST_S))
