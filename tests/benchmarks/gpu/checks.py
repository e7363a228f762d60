"""Checks that go wrong in every way that one can; the runner starts them by name."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.gpu.bench import Bench
from benchmarks.gpu.outcome import Judgement, NotRun


def passes(_bench: Bench, word: str) -> Judgement:
    return Judgement({"word": word})


def misses(_bench: Bench) -> Judgement:
    judgement = Judgement({"got": 7})
    judgement.expect(False, "got 7, not 8")
    judgement.expect(True, "never said")
    return judgement


def does_not_apply(_bench: Bench) -> Judgement:
    raise NotRun("PyTorch is not installed")


def raises(_bench: Bench) -> Judgement:
    raise ValueError("what went wrong")


def dies(_bench: Bench) -> Judgement:
    print("the last words", file=sys.stderr, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
    return Judgement()


def hangs_with_a_child(_bench: Bench, pid_file: str) -> Judgement:
    child = subprocess.Popen(["sleep", "600"])
    Path(pid_file).write_text(str(child.pid))
    time.sleep(600)
    return Judgement()
