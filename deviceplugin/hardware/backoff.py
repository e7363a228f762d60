"""Waiting longer after each failure: what is broken must cost ever less."""


class Backoff:
    """Delays that double from `first` to `most` seconds, and start again once something worked."""

    def __init__(self, *, first: float, most: float) -> None:
        self._first = first
        self._most = most
        self._next = first

    def delay(self) -> float:
        delay = self._next
        self._next = min(self._next * 2, self._most)
        return delay

    def reset(self) -> None:
        self._next = self._first
