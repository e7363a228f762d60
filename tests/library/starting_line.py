"""Programs that tell how far they are, or wait, line by line. In: the processes. Out: what they said; they go on."""

import subprocess
from collections.abc import Iterable


def let_go(waiting: Iterable[subprocess.Popen[str]]) -> None:
    for each in waiting:
        assert each.stdin is not None
        each.stdin.write("\n")
        each.stdin.flush()


def line_of(process: subprocess.Popen[str]) -> str:
    """What it says next, with the line's end."""
    assert process.stdout is not None
    return process.stdout.readline()
