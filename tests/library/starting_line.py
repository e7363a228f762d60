"""Programs that stand ready and wait for a line on stdin. In: the processes. Out: all of them go on."""

import subprocess
from collections.abc import Iterable


def let_go(waiting: Iterable[subprocess.Popen[str]]) -> None:
    for each in waiting:
        assert each.stdin is not None
        each.stdin.write("\n")
        each.stdin.flush()
