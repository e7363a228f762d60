"""Time and waiting: kubelet's clock, conditions with a deadline, and a kubelet that hangs.

In: the speed of the clock; "something changed" from every part; `hang` and `resume` from the user. Out: sleeps; waits
that end when a predicate holds or fail with what they waited for; a gate that every server and the sync loop pass; the
waits of a container that ends again and again. Invariant: nobody polls; a waiter wakes only when something changed.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

_MOST, _FORGOTTEN = 30, 60


class Clock:
    """A monotonic clock that runs `speed` times as fast as the wall's."""

    def __init__(self, speed: float) -> None:
        self._speed = speed

    def now(self) -> float:
        return time.monotonic() * self._speed

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(max(0.0, seconds) / self._speed)


class Changes:
    """A bell that every state change rings; a waiter is woken when what it waits for holds."""

    def __init__(self) -> None:
        self._waiters: dict[asyncio.Future[None], Callable[[], bool]] = {}

    def ring(self) -> None:
        """Asks each waiter's condition here: waking hundreds of tasks to ask for themselves takes milliseconds."""
        for waiter, holds in list(self._waiters.items()):
            if not waiter.done() and _asks_to_wake(holds):
                waiter.set_result(None)

    async def until(self, holds: Callable[[], bool], *, what: str, deadline_s: float) -> None:
        """Returns as soon as `holds` does; after `deadline_s` raises a TimeoutError that says what did not come."""
        end = time.monotonic() + deadline_s
        while not holds():
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters[waiter] = holds
            try:
                async with asyncio.timeout(end - time.monotonic()):  # wait_for of 3.11 can swallow a cancellation
                    await waiter
            except TimeoutError:
                raise TimeoutError(f"after {deadline_s:g} s still waiting until {what}") from None
            finally:
                del self._waiters[waiter]


def _asks_to_wake(holds: Callable[[], bool]) -> bool:
    """If a condition raises, the waiter gets the error."""
    try:
        return holds()
    except Exception:
        return True


@dataclass(slots=True)
class CrashLoop:
    """The waits of one container that ends again and again, counted from its end: client-go's `flowcontrol.Backoff`.

    `first_s` (10 s in kubelet), doubled at each try, at most 30 times as long (300 s). A container that ran for 60
    times as long after its last start (600 s) begins again. The first restart waits for nothing.
    """

    first_s: float
    wait_s: float = 0.0
    tried_at: float = 0.0

    def may_start_at(self, ended: float) -> float:
        return ended if self._is_forgotten(ended) else ended + self.wait_s

    def try_again(self, ended: float, now: float) -> None:
        again = self.wait_s and not self._is_forgotten(ended)
        self.wait_s = min(self.wait_s * 2, self.first_s * _MOST) if again else self.first_s
        self.tried_at = now

    def _is_forgotten(self, ended: float) -> bool:
        return ended - self.tried_at > self.first_s * _FORGOTTEN


class Pause:
    """Open unless kubelet hangs."""

    def __init__(self) -> None:
        self._open = asyncio.Event()
        self._open.set()

    def hang(self) -> None:
        self._open.clear()

    def resume(self) -> None:
        self._open.set()

    async def passed(self) -> None:
        await self._open.wait()
