"""The judgement of a check, and its outcome.

In: expectations and figures that a check collects in a Judgement. Out: an Outcome, as in the results file. A check
that cannot run raises NotRun with the reason; it is never left out.
"""

import enum
import os
from dataclasses import asdict, dataclass, field
from typing import Any

Figures = dict[str, Any]  # JSON


class Status(enum.StrEnum):
    """Every check ends with one of these."""

    PASSED = "passed"
    FAILED = "failed"
    NOT_RUN = "not run"


class NotRun(Exception):  # noqa: N818 - no error: a fact about the machine
    """The check does not apply here; the message is the reason."""


@dataclass(frozen=True, slots=True)
class Check:
    """One entry of the plan. `function` is module:name, called with the Bench in a separate process.

    `seconds`: an estimate for a GPU. `part`: the command of the plan that it belongs to.
    """

    id: str
    title: str
    criterion: str
    function: str
    arguments: tuple[str, ...] = ()
    limit_s: float = 120
    seconds: int = 10
    part: str = ""

    @property
    def topic(self) -> str:
        return self.id.partition(".")[0]


@dataclass
class Judgement:
    """Figures, and the sentences that should be true. `not_shown`: why this driver cannot tell; then it is no pass."""

    figures: Figures = field(default_factory=dict)
    missed: list[str] = field(default_factory=list)
    not_shown: str = ""

    @property
    def status(self) -> Status:
        if self.missed:
            return Status.FAILED
        return Status.NOT_RUN if self.not_shown else Status.PASSED

    @property
    def reason(self) -> str:
        return "; ".join(self.missed) or self.not_shown

    def expect(self, holds: bool, sentence: str) -> None:
        if not holds:
            self.missed.append(sentence)


@dataclass(frozen=True, slots=True)
class Outcome:
    """`reason`: why it did not pass, or empty. `earlier`: the ends of the runs that this one replaced.

    `load`: load of the machine per core. `date`, `commit`: when and of what; of a merged file each has its own.
    """

    id: str
    title: str
    criterion: str
    status: Status
    reason: str
    figures: Figures
    seconds: float
    load: float = 0.0
    earlier: tuple[str, ...] = ()
    date: str = ""
    commit: str = ""

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def outcome(check: Check, status: Status, reason: str = "", figures: Figures | None = None, *, s: float) -> Outcome:
    return Outcome(check.id, check.title, check.criterion, status, reason, figures or {}, round(s, 2), host_load())


def host_load() -> float:
    """Load of the last minute."""
    return round(os.getloadavg()[0] / (os.cpu_count() or 1), 2)
