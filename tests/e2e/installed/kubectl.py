"""kubectl with the admin's kubeconfig, as the guides tell people to type it.

In: words, or lines of a guide for the shell. Out: what it said; whatever does not end well fails the test with that.
"""

import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

_PATIENCE_S = 300


@dataclass(frozen=True, slots=True)
class Kubectl:
    """`kubectl("get", "pods")`, or `kubectl.shell("kubectl get pods | wc -l")`."""

    program: Path
    kubeconfig: Path

    def __call__(self, *words: str) -> str:
        return self._said([str(self.program), *words])

    def shell(self, lines: str) -> str:
        return self._said(["bash", "-euo", "pipefail", "-c", lines])

    @contextmanager
    def forwarded(self, *words: str) -> Iterator[str]:
        """`port-forward` with these words; the address where it listens."""
        command = [str(self.program), "port-forward", "--address=127.0.0.1", *words]
        with subprocess.Popen(command, env=self._environment(), stdout=subprocess.PIPE, text=True) as process:
            try:
                assert process.stdout is not None
                line = process.stdout.readline()
                found = re.fullmatch(r"Forwarding from (127\.0\.0\.1:\d+) -> \d+\n", line)
                assert found, line
                yield f"http://{found[1]}"
            finally:
                process.terminate()

    def _said(self, command: list[str]) -> str:
        done = subprocess.run(
            command,
            env=self._environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_PATIENCE_S,
            check=False,
        )
        assert done.returncode == 0, f"{' '.join(command)}: {done.returncode}\n{done.stdout}"
        return done.stdout

    def _environment(self) -> dict[str, str]:
        path = f"{self.program.parent}:{os.environ['PATH']}"
        return {**os.environ, "KUBECONFIG": str(self.kubeconfig), "PATH": path}
