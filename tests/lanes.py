"""Which lane of scripts/test a test belongs to, and what a lane reports at its end.

In: the tests that were collected, their marks and fixtures. Out: the mark `programs`; with `--lane-report=FILE` a JSON
file that scripts/lanes.py reads: how many passed, failed and were skipped (and why), how many of each kind were
collected and chosen, and the slowest with their wall and processor time.
Invariant: a test that takes a program's fixture is marked, so scripts/test never begins to build or install one.
"""

import json
import os
import resource
import time
from collections import Counter
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from _pytest.subtests import SubtestReport

KINDS = ("thorough", "e2e", "programs", "root", "realtime")
"""Of two marks of a test the first counts."""
_PROGRAMS = frozenset(
    {
        "helm",
        "helm4",
        "chart",
        "charts",
        "foreign_definitions",
        "prometheus_programs",
        "chromium",
        "actionlint",
        "krew",
        "shells",
    }
)
"""Fixtures that give a program which Python, gcc and make do not (tests/programs.py)."""
_SLOWEST = 10
_SPENT = pytest.StashKey[tuple[float, float]]()


def kind_of(item: pytest.Item) -> str:
    """By its marks: its keywords have the names of its folders, too."""
    return next((kind for kind in KINDS if item.get_closest_marker(kind)), "ordinary")


def mark(items: list[pytest.Item]) -> None:
    for item in items:
        if _PROGRAMS & set(getattr(item, "fixturenames", ())):
            item.add_marker("programs")
        if item.get_closest_marker("root") and os.geteuid() != 0:
            item.add_marker(pytest.mark.skip(reason="needs root"))


class LaneReport:
    """Of this process, and with pytest-xdist of all its workers, which send theirs when they end."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.outcomes: Counter[str] = Counter()
        self.reasons: Counter[str] = Counter()
        self.kinds: Counter[str] = Counter()
        self.chosen: Counter[str] = Counter()
        self.slowest: list[tuple[float, float, str]] = []

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """After the marks are set (tryfirst) and before any are deselected: the last registered is called first."""
        self.kinds = Counter(map(kind_of, items))

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self.chosen = Counter(map(kind_of, session.items))

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        item.stash[_SPENT] = time.monotonic(), _processor_s()
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if report.when == "teardown":  # what is set here reaches the process that writes the file, too
            wall, processor = item.stash[_SPENT]
            report.spent = (time.monotonic() - wall, _processor_s() - processor)  # type: ignore[attr-defined]
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if isinstance(report, SubtestReport) and report.passed:
            return  # the test that has it is counted
        if report.when == "call" or report.outcome != "passed":
            self.outcomes[report.outcome] += 1
        if report.skipped and isinstance(report.longrepr, tuple):
            self.reasons[report.longrepr[2].removeprefix("Skipped: ")] += 1
        if spent := getattr(report, "spent", None):
            self.slowest = sorted([*self.slowest, (*spent, report.nodeid)], reverse=True)[:_SLOWEST]

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self.outcomes["failed"] += report.failed

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: object) -> None:
        counted = getattr(node, "workeroutput", {})
        self.kinds |= Counter(counted.get("kinds", {}))
        self.chosen |= Counter(counted.get("chosen", {}))

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        output = getattr(session.config, "workeroutput", None)
        if output is not None:
            output.update(kinds=dict(self.kinds), chosen=dict(self.chosen))

    def pytest_unconfigure(self, config: pytest.Config) -> None:
        if not hasattr(config, "workerinput"):
            counted = {"reasons": self.reasons, "kinds": self.kinds, "chosen": self.chosen, "slowest": self.slowest}
            self.file.write_text(json.dumps({**self.outcomes, **counted}))


def _processor_s() -> float:
    both = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(each.ru_utime + each.ru_stime for each in both)
