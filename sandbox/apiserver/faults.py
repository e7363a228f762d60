"""What goes wrong on purpose: a script of faults, each for so many matching requests.

In: calls such as `faults.fail(500, times=2)`. Out: for each request, at most one fault to suffer. Not here: refusing
connections (`ApiServer.refuse`).
"""

import enum
from collections.abc import Callable
from dataclasses import dataclass

from aiohttp import web

Match = Callable[[web.Request], bool]


class Harm(enum.Enum):
    """What a faulty answer looks like to the client."""

    STATUS = "status"  # an error answer
    HANG = "hang"  # no answer at all
    RESET = "reset"  # the connection is closed, and nothing is carried out
    SLOW = "slow"  # a good answer, late
    LOST = "lost"  # the request is carried out, and its answer never arrives
    BODY = "body"  # a 200 with other bytes than the object's
    SILENT_WATCH = "silent watch"  # half-open: the watch is accepted and never says anything
    CUT_WATCH = "cut watch"  # the stream ends in the middle of a line
    GARBLED_WATCH = "garbled watch"  # a line that is no JSON, then the stream goes on
    ERROR_WATCH = "error watch"  # an ERROR event with a Status, then the end of the stream


WATCH_HARMS = frozenset({Harm.SILENT_WATCH, Harm.CUT_WATCH, Harm.GARBLED_WATCH, Harm.ERROR_WATCH})


@dataclass(slots=True)
class Fault:
    """One entry of the script; `code` also is the code inside an ERROR event, `after` counts events before a harm."""

    harm: Harm
    match: Match
    times: int
    code: int = 500
    seconds: float = 0.0
    body: bytes = b""
    after: int = 0
    retry_after: int | None = None


class Faults:
    """The script. Faults apply in the order they were added; `times` is counted down by each request that matches."""

    def __init__(self) -> None:
        self._script: list[Fault] = []

    def add(
        self,
        harm: Harm,
        *,
        times: int = 1,
        method: str = "",
        path: str = "",
        code: int = 500,
        seconds: float = 0.0,
        body: bytes = b"",
        after: int = 0,
        retry_after: int | None = None,
    ) -> Fault:
        """For requests with this method whose path contains `path`; a watch harm meets watches only."""

        def match(request: web.Request) -> bool:
            right_kind = harm not in WATCH_HARMS or is_watch(request)
            return right_kind and method in ("", request.method) and path in request.path

        fault = Fault(harm, match, times, code, seconds, body, after, retry_after)
        self._script.append(fault)
        return fault

    def fail(
        self, code: int = 500, *, times: int = 1, method: str = "", path: str = "", retry_after: int | None = None
    ) -> Fault:
        return self.add(Harm.STATUS, times=times, method=method, path=path, code=code, retry_after=retry_after)

    def hang(self, *, times: int = 1, method: str = "", path: str = "") -> Fault:
        return self.add(Harm.HANG, times=times, method=method, path=path)

    def slow(self, *, seconds: float, times: int = 1, method: str = "", path: str = "") -> Fault:
        return self.add(Harm.SLOW, times=times, method=method, path=path, seconds=seconds)

    def clear(self) -> None:
        self._script.clear()

    def next_for(self, request: web.Request) -> Fault | None:
        """The fault that this request suffers, counted down."""
        for fault in self._script:
            if fault.times > 0 and fault.match(request):
                fault.times -= 1
                return fault
        return None


def is_watch(request: web.Request) -> bool:
    return request.query.get("watch", "").lower() in ("1", "true")
