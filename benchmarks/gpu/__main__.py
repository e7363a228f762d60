"""Builds the library, runs the checks of the plan and writes the results file; see README.md.

    python -m benchmarks.gpu [--only P1,T1,T4.gemm] [--quick | --short] [--driver auto|real|emulated] [--results DIR]
[--merge]

Exit status: 0 all checks that ran passed, 1 a check failed, 2 nothing could be run or an error ended it.
"""

import argparse
import dataclasses
import datetime as dt
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.command import ends_in_one_sentence
from benchmarks.gpu import build, driver, plan, prepare, report, runner
from benchmarks.gpu.bench import Bench, ProgramFailed
from benchmarks.gpu.build import REPOSITORY, CannotBuild
from benchmarks.gpu.outcome import Check, Outcome, Status

RESULTS = REPOSITORY / "benchmarks/results"
FULL = (5, 2.0)  # repeats and window: ten seconds in all
QUICK = (2, 1.0)
SHORT = "T2.cuda,T9"


def main(words: Sequence[str] | None = None) -> int:
    given = arguments(words)
    if Path("/etc/vcuda").exists():
        print(
            "benchmark: /etc/vcuda exists and takes precedence over VCUDA_DIR; run this outside of vcuda's containers"
        )
        return 2
    scratch = Path(tempfile.mkdtemp(prefix="vg-"))
    try:
        return run_in(scratch, given)
    except (CannotBuild, driver.NoDriver, ProgramFailed, subprocess.SubprocessError) as error:
        print(f"benchmark: nothing can be run: {error}")
        return 2
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def run_in(scratch: Path, given: argparse.Namespace) -> int:
    bench = prepared(given, scratch)
    return run_all(plan.chosen(given.only), bench, setting_of(bench, given.commit), given.results, merge=given.merge)


def arguments(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--only", default="", help="parts, topics and checks, separated by commas: P1,T1,T4.gemm (default: all)"
    )
    parser.add_argument("--quick", action="store_true", help="2 repeats of 1 s, the smallest memory limit only")
    parser.add_argument("--short", action="store_true", help=f"a few seconds: --quick --only {SHORT}")
    parser.add_argument("--driver", choices=["auto", "real", "emulated"], default="auto")
    parser.add_argument("--results", type=Path, default=RESULTS, metavar="DIR")
    parser.add_argument(
        "--merge", action="store_true", help="keep the other checks of the newest file in DIR of this GPU"
    )
    parser.add_argument("--repeats", type=int, default=0)
    parser.add_argument("--window", type=float, default=0.0, help="seconds of each measurement of a share")
    parser.add_argument("--python", default="", help="an interpreter with PyTorch (default: this one, or python3)")
    parser.add_argument("--commit", default="", help="the measured commit, for a copy without git")
    given = parser.parse_args(words)
    if given.short:
        given.quick, given.only = True, given.only or SHORT
    try:
        plan.chosen(given.only)
    except ValueError as error:
        parser.error(str(error))
    return given


def prepared(given: argparse.Namespace, scratch: Path) -> Bench:
    built = build.build(scratch)
    found = driver.find(given.driver, built, scratch)
    prepare.lay_out(built, found, scratch)
    repeats, window = QUICK if given.quick else FULL
    bench = Bench(
        scratch=scratch,
        driver=found,
        quick=given.quick,
        window_s=given.window or window,
        repeats=given.repeats or repeats,
        torch_python=python_with_torch(given.python),
        round_ps=4000,
    )
    return dataclasses.replace(bench, round_ps=calibrated(bench))


def python_with_torch(wished: str) -> str:
    code = "import importlib.util as u, sys; sys.exit(u.find_spec('torch') is None)"
    for python in filter(None, (wished, sys.executable, shutil.which("python3"))):
        if subprocess.run([python, "-c", code], check=False, capture_output=True).returncode == 0:
            return str(python)
    return ""


def calibrated(bench: Bench) -> int:
    """Picoseconds of one round of the kernel's loop on this GPU, from the events around a million rounds."""
    printed = bench.native().run(bench.program("pace"), "--seconds", 1, "--kernel-us", 4000, "--round-ps", 4000)
    picoseconds: float = printed["event_ms"] * 1000
    return max(1, round(picoseconds))


def setting_of(bench: Bench, said: str) -> report.Setting:
    return report.Setting(
        emulated=bench.driver.emulated,
        gpu=bench.device.name,
        driver=bench.driver.version,
        cuda=bench.driver.cuda_version,
        torch=torch_version(bench.torch_python),
        date=now(),
        commit=said or commit() or "unknown",
        host=f"{os.cpu_count()} cores, Linux {platform.release()}, Python {platform.python_version()}",
        quick=bench.quick,
        window_s=bench.window_s,
        repeats=bench.repeats,
        why_this_driver=bench.driver.why,
    )


def now() -> str:
    return dt.datetime.now(dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def torch_version(python: str) -> str:
    if not python:
        return ""
    code = "import json, torch; print(json.dumps([torch.__version__, torch.version.cuda]))"
    done = subprocess.run([python, "-c", code], check=False, capture_output=True, text=True)
    return " for CUDA ".join(map(str, json.loads(done.stdout))) if done.returncode == 0 else "cannot be imported"


def commit() -> str:
    """The commit of the repository, with `-changed` if measured files are not committed; empty without git."""
    git = ["git", "-C", str(REPOSITORY)]
    try:
        head = subprocess.run([*git, "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True, check=True)
        paths = ["library", "deviceplugin/container", "benchmarks/gpu"]
        changed = subprocess.run([*git, "diff", "--quiet", "HEAD", "--", *paths], capture_output=True, check=False)
    except (OSError, subprocess.CalledProcessError):
        return ""
    return head.stdout.strip() + ("-changed" if changed.returncode else "")


def run_all(checks: Sequence[Check], bench: Bench, setting: report.Setting, results: Path, *, merge: bool) -> int:
    kind = "EMULATED: no figure is of a GPU" if setting.emulated else "real"
    print(
        f"{setting.gpu}, driver {setting.driver} ({kind}; {setting.why_this_driver}), {len(checks)} checks", flush=True
    )
    earlier = report.newest(results, setting) if merge else []
    kept = {each.id: each for each in earlier}
    fresh: list[Outcome] = []
    path = results
    for check in checks:
        run = dataclasses.replace(runner.run(check, bench), date=now(), commit=setting.commit)
        done = report.superseding(run, kept.get(check.id))
        fresh.append(done)
        kept[check.id] = done
        print(f"{done.status:8} {done.id:28} {done.seconds:7.1f} s  {done.reason}", flush=True)
        path = report.write(results, setting, in_order(kept))
    print(f"{path}\n{path.with_suffix('.md')}")
    return int(any(each.status is Status.FAILED for each in fresh))


def in_order(outcomes: dict[str, Outcome]) -> list[Outcome]:
    order = {check.id: place for place, check in enumerate(plan.checks())}
    return sorted(outcomes.values(), key=lambda each: order.get(each.id, len(order)))


if __name__ == "__main__":
    ends_in_one_sentence(main, status=2)
