"""The lanes of the tests: what scripts/test runs, what runs beside it, and the table at the end.

In: the command line of scripts/test, after scripts/setup. Out: the output of each lane, and the table of lane_table.py.
Exit status 0 if every lane passed, 1 if one failed, 130 after a signal.
Invariant: no process of a lane outlives this one: a signal interrupts all lanes and waits until each has tidied up.
Not here: which lane a test belongs to (tests/lanes.py).
"""

import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import click

from scripts import programs
from scripts.lane_table import Row, show

ROOT = Path(__file__).resolve().parents[1]
PARALLEL = ("-n", str((os.cpu_count() or 1) + 1), "--dist", "worksteal")
"""One worker more than processors: a test waits for half of its time. On two, two workers took 9:01 and three 7:01."""
_FIRST = ["chrt", "--rr", "1", "true"]


@dataclass(frozen=True)
class Lane:
    """One pytest, `chosen` is its -m expression; or another `command`. The first of several is seen while it runs."""

    name: str
    chosen: str = ""
    words: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    builds: bool = True
    """Whether tests may build or install programs."""


STYLE = Lane("style", command=("scripts/check", "--style"))
ORDINARY = Lane("ordinary", "not (e2e or programs or root or realtime or thorough)", PARALLEL, builds=False)
E2E = ("-p", "no:randomly", "tests/e2e")
CLUSTER = Lane("cluster", "e2e and not installed and not thorough", E2E)
INSTALLED = Lane("installed", "e2e and installed and not thorough", E2E)
MACHINE = Lane("machine", "(programs or root) and not (e2e or realtime or thorough)", ("-n", "1"))
REALTIME = Lane("realtime", "realtime and not thorough")
ALL = (
    Lane("all others", "not (e2e or realtime)", PARALLEL),
    Lane("cluster", "e2e and not installed", E2E),
    Lane("installed", "e2e and installed", E2E),
    Lane("realtime", "realtime"),
)

GROUPS = {
    "native": ("tests/library", "tests/container", "tests/gpu_manager"),
    "sandbox": ("tests/sandbox",),
    "release": ("tests/scripts", "tests/benchmarks", "tests/e2e/test_image_twice.py"),
}
"""The folders with the thorough tests of what .ci/covered lists under these names."""


def thorough(groups: Sequence[str]) -> tuple[Lane, ...]:
    """What only a thorough run tries: tests that are marked so, and all examples of the properties."""
    folders = tuple(each for group in GROUPS if group in groups for each in GROUPS[group])
    usual = Lane("thorough", "(thorough or hypothesis) and not realtime", (*PARALLEL, *folders))
    realtime = Lane("thorough realtime", "realtime and thorough", GROUPS["native"])
    return (usual, realtime) if "native" in groups else (usual,)


@dataclass
class Run:
    """A lane under way, and what it came to."""

    lane: Lane
    process: subprocess.Popen[bytes]
    log: Path
    report: Path
    began: float = field(default_factory=time.monotonic)
    wall_s: float = 0.0
    processor_s: float = 0.0
    status: int | None = None

    def row(self) -> Row:
        counted = json.loads(self.report.read_text()) if self.report.exists() else {}
        measured = {"lane": self.lane.name, "status": self.status, "wall": self.wall_s, "processor": self.processor_s}
        return {**measured, **counted}


def run(lanes: Sequence[Lane], profile: str, folder: Path) -> list[Row]:
    """Side by side; lanes that measure real time run alone at the end where the kernel gives them no priority."""
    together = [each for each in lanes if "realtime" not in each.name or _has_priority()]
    rows = _side_by_side(together, profile, folder)
    return rows + [row for each in lanes if each not in together for row in _side_by_side([each], profile, folder)]


def _has_priority() -> bool:
    try:
        return not subprocess.run(_FIRST, capture_output=True, check=False).returncode
    except FileNotFoundError:
        return False


def _side_by_side(lanes: Sequence[Lane], profile: str, folder: Path) -> list[Row]:
    runs: list[Run] = []
    try:
        for each in lanes:
            runs.append(_start(each, profile, folder, seen=not runs))
        _wait_for(runs)
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        for under_way in (each for each in runs if each.status is None):
            os.killpg(under_way.process.pid, signal.SIGINT)
        _wait_for(runs)
        raise
    finally:
        for behind in runs[1:]:
            click.echo(behind.log.read_text(errors="replace"))
    return [each.row() for each in runs]


def _start(lane: Lane, profile: str, folder: Path, *, seen: bool) -> Run:
    log, report = folder / f"{lane.name}.log", folder / f"{lane.name}.json"
    options = ("--quiet", f"--hypothesis-profile={profile}", f"--lane-report={report}", "-m", lane.chosen, *lane.words)
    heading = "" if lane.command else f"\n== pytest {shlex.join(options)}\n"
    log.write_text(heading)
    with log.open("ab") as file:
        if seen:
            click.echo(heading, nl=False)
        process = subprocess.Popen(
            lane.command or (sys.executable, "-m", "pytest", *options),
            cwd=ROOT,
            env=os.environ if lane.builds else {**os.environ, "VCUDA_BUILD": "no"},
            stdin=subprocess.DEVNULL,
            stdout=None if seen else file,
            stderr=None if seen else file,
            process_group=0,  # a signal to the terminal reaches this process, which passes it on to whole groups
        )
    return Run(lane, process, log, report)


def _wait_for(runs: Sequence[Run]) -> None:
    """wait4 also says how much of the processor a lane took, with all processes that it waited for."""
    waiting = {each.process.pid: each for each in runs if each.status is None}
    while waiting:
        pid, status, usage = os.wait4(-1, 0)
        if ended := waiting.pop(pid, None):
            ended.wall_s = time.monotonic() - ended.began
            ended.processor_s = usage.ru_utime + usage.ru_stime
            ended.status = ended.process.returncode = os.waitstatus_to_exitcode(status)


def chosen(kind: str | None, groups: Sequence[str], folder: Path) -> list[Row]:
    """What this command runs. Style first, alone: where it fails nothing else has to be looked at."""
    rows = [] if kind == "cluster" or groups else run([STYLE], "", folder)
    if any(row["status"] for row in rows):
        return rows
    if kind is None:
        return rows + run([ORDINARY], "ci", folder)
    if kind == "cluster":
        programs.provide()
        return run([CLUSTER, INSTALLED, MACHINE, REALTIME], "ci", folder)
    rows += run(thorough(groups) if groups else ALL, "thorough", folder)
    if not any(row["status"] for row in rows):
        _record(groups or list(GROUPS))
    return rows


def _record(groups: Sequence[str]) -> None:
    """In .ci/passed, to be committed: .ci/run does not try these groups again while their state is this one."""
    passed, now = ROOT / ".ci/passed", subprocess.check_output([ROOT / ".ci/covered"], text=True).splitlines()
    before = passed.read_text().splitlines() if passed.exists() else []
    kept = [line for line in before if line.split()[0] in GROUPS.keys() - set(groups)]
    passed.write_text(
        "".join(f"{line}\n" for line in sorted([*kept, *(each for each in now if each.split()[0] in groups)]))
    )


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


@click.command()
@click.option("--cluster", "kind", flag_value="cluster", help="A real Kubernetes, other programs, root, real time.")
@click.option("--thorough", "kind", flag_value="thorough", help="Everything, with all examples.")
@click.option("--group", "groups", multiple=True, type=click.Choice(list(GROUPS)), help="Thorough, but only of these.")
@click.option("--show", "shown", type=click.Path(path_type=Path), help="Only print the table of this VCUDA_LANES.")
def main(kind: str | None, groups: tuple[str, ...], shown: Path | None) -> None:
    """Run the lanes of scripts/test. The file that VCUDA_LANES names gets their figures, a line of JSON for each."""
    if shown is not None:
        show([json.loads(line) for line in shown.read_text().splitlines()])
        return
    signal.signal(signal.SIGTERM, _interrupt)
    signal.signal(signal.SIGINT, _interrupt)  # it may have been started with the signal ignored
    with tempfile.TemporaryDirectory(prefix="lanes-") as folder:
        try:
            rows = chosen(kind, groups, Path(folder))
        except KeyboardInterrupt:
            sys.exit(130)
    show(rows)
    if file := os.environ.get("VCUDA_LANES"):
        with Path(file).open("a") as lanes:
            lanes.writelines(f"{json.dumps(row)}\n" for row in rows)
    sys.exit(any(row["status"] for row in rows))


if __name__ == "__main__":
    main()
