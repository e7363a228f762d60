"""When to try kubelet again: the clock of the registration loops, without any I/O.

In: what happened. Out: whether it is time. Retries double from 20 ms to a second, so that a kubelet that comes back is
met at once; silence (no open stream) is borne for two seconds, then twice as long each time, up to 32 s, so that two
sides that cannot agree do not tear each other down in a loop.
"""

import time
from collections.abc import Callable

_FIRST_RETRY_S, _LAST_RETRY_S = 0.02, 1.0
_SILENCE_S, _LONGEST_SILENCE_S = 2.0, 32.0
_COMPLAIN_EVERY_S = 30.0


class Pace:
    """One loop's memory of its own timing; `clock` is monotonic seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._made = self._heard = clock()
        self._retry_s = _FIRST_RETRY_S
        self._next_try = clock()
        self._next_complaint = clock()
        self._silence_s = _SILENCE_S
        self._streams = False

    def age(self) -> float:
        return self._clock() - self._made

    def may_try(self) -> bool:
        return self._clock() >= self._next_try

    def failed(self) -> bool:
        """Backs off; True when this failure is worth a log line."""
        now = self._clock()
        self._next_try = now + self._retry_s
        self._retry_s = min(self._retry_s * 2, _LAST_RETRY_S)
        if now < self._next_complaint:
            return False
        self._next_complaint = now + _COMPLAIN_EVERY_S
        return True

    def succeeded(self) -> None:
        """Registered or bound: the streams should come now."""
        self._heard = self._next_complaint = self._clock()
        self._retry_s = _FIRST_RETRY_S

    def streaming(self) -> bool:
        """Streams are open; True when they were not before."""
        fresh, self._streams = not self._streams, True
        self._heard, self._silence_s = self._clock(), _SILENCE_S
        return fresh

    def is_silent(self) -> bool:
        """No stream for too long."""
        self._streams = False
        if self._clock() - self._heard <= self._silence_s:
            return False
        self._silence_s = min(self._silence_s * 2, _LONGEST_SILENCE_S)
        return True
