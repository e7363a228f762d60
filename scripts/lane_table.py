"""What the lanes of the tests came to, as text.

In: a row for each lane, as tests/lanes.py counted it. Out: one table of all lanes with the slowest tests; which tests
were not run, why, and which command runs them; the sums.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import click

from scripts.programs import minutes

Row = dict[str, Any]
_SLOWEST = 10


def table(rows: Sequence[Row]) -> str:
    """Lane, cases, wall, processor time, and the ten slowest of all."""
    lines = [f"{'lane':18} {'passed':>7} {'failed':>7} {'skipped':>7} {'wall':>7} {'processor':>10}"]
    for row in rows:
        counts = " ".join(f"{row.get(each, 0):7,}" for each in ("passed", "failed", "skipped"))
        ending = f"  ended with status {row['status']}" if row["status"] else ""
        lines.append(f"{row['lane']:18} {counts} {minutes(row['wall']):>7} {row['processor']:8.0f} s{ending}")
    slowest = sorted((each for row in rows for each in row.get("slowest", [])), reverse=True)[:_SLOWEST]
    if slowest:
        lines += ["", "The slowest tests, wall and processor time:"]
        lines += [f"{wall:8.1f} s {processor:6.1f} s  {name}" for wall, processor, name in slowest]
    return "\n".join(lines)


NOT_TESTED = (
    ("e2e", "a real Kubernetes with kubelet, containerd, Helm and Volcano", "scripts/test --cluster"),
    ("programs", "the chart in Helm, metrics in Prometheus, the page in a browser", "scripts/test --cluster"),
    ("root", "what needs root: mounts, namespaces, other users", "scripts/test --cluster"),
    ("realtime", "shares of a GPU in real time", "scripts/test --cluster"),
    ("thorough", "sanitizers, fuzzers, releases, other Pythons, test equipment", "scripts/test --thorough"),
)


def left_out(rows: Sequence[Row]) -> str:
    """What these lanes did not test, why, and which command does; nothing if they tested all."""
    collected: dict[str, int] = {}
    for kind, count in (pair for row in rows for pair in row.get("kinds", {}).items()):
        collected[kind] = max(count, collected.get(kind, 0))
    ran = {kind for row in rows for kind in row.get("chosen", {})}
    lines = [
        f"{collected[kind]:7,} cases  {what}: {command}"
        for kind, what, command in NOT_TESTED
        if kind in collected.keys() - ran
    ]
    reasons: Counter[str] = sum((Counter(row.get("reasons", {})) for row in rows), Counter())
    lines += [f"{count:7,} cases  skipped: {reason}" for reason, count in reasons.most_common()]
    return "\n".join(["Not tested here:", *lines]) if lines else ""


def plain(rows: Sequence[Row]) -> str:
    passed, failed, skipped = (sum(row.get(each, 0) for row in rows) for each in ("passed", "failed", "skipped"))
    return f"{passed} passed, {failed} failed, {skipped} skipped"


def show(rows: Sequence[Row]) -> None:
    click.echo("\n" + "\n\n".join(filter(None, (table(rows), left_out(rows), plain(rows)))))
