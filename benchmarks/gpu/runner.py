"""Runs checks one after the other, each in a separate process with a time limit.

In: checks and a Bench. Out: an Outcome for each, whatever its process does: it may die, hang or print nothing, and the
next check still runs. The process leads a session, and the whole session is killed at the end.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.gpu.bench import Bench
from benchmarks.gpu.build import REPOSITORY
from benchmarks.gpu.outcome import Check, Outcome, Status, outcome


def run(check: Check, bench: Bench) -> Outcome:
    began = time.monotonic()
    answer, errors = bench.scratch / "answer.json", bench.scratch / "errors"
    answer.unlink(missing_ok=True)
    task = {"function": check.function, "arguments": check.arguments, "bench": bench.as_json(), "answer": str(answer)}
    with errors.open("w") as stderr:
        process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.gpu.single"],
            cwd=REPOSITORY,
            stdin=subprocess.PIPE,
            stdout=stderr,
            stderr=stderr,
            start_new_session=True,
        )
        ended = _feed(process, json.dumps(task).encode(), check.limit_s)
    return _judge(check, answer, _tail(errors), process.returncode if ended else None, time.monotonic() - began)


def _feed(process: subprocess.Popen[bytes], task: bytes, limit_s: float) -> bool:
    """Whether it ended by itself."""
    try:
        process.communicate(task, timeout=limit_s)
    except subprocess.TimeoutExpired:
        return False
    else:
        return True
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _judge(check: Check, answer: Path, tail: str, code: int | None, seconds: float) -> Outcome:
    if code is None:
        reason = f"was still running after {check.limit_s:g} s and was killed; stderr ends: {tail}"
        return outcome(check, Status.FAILED, reason, s=seconds)
    try:
        printed = json.loads(answer.read_text())
        return outcome(check, Status(printed["status"]), printed["reason"], printed["figures"], s=seconds)
    except (OSError, ValueError, KeyError):
        return outcome(check, Status.FAILED, f"ended with {code} and said nothing; stderr ends: {tail}", s=seconds)


def _tail(errors: Path) -> str:
    return errors.read_text(errors="replace").strip()[-300:] or "nothing"
