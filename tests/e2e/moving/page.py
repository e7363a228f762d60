"""The commands of a page, run as they stand there.

In: a page of docs with a section for each step; the cluster, Helm, the registry. Out: what the commands said.
Invariant: only what the page leaves to the reader is filled in: the node, the registry, and where the chart comes
from. A page knows which of its commands were run, so that a test can say which were not.
"""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from sandbox.emulated_gpus import REPOSITORY
from tests.commands import Block, commands
from tests.e2e.installed.registry import Registry

EMULATED = "--set agent.driver.from=emulated --set agent.flags.allocation-check-period=1s"
"""What the test adds to each installation: there is no GPU, and nobody waits half a minute."""
STAYING = """--set-json 'scheduler.tolerations=[{"operator":"Exists"}]'"""
"""The cluster has one node. In the place of another one, the scheduler comes back to it while it is drained."""
READERS = "REGISTRY=registry.example.com/team"
"""The line in which the reader names a registry."""
_CHARTS = re.compile(r"vcuda (?:daemonset/chart|oci://registry\.example\.org/charts/vcuda --version [\d.]+)")
_PATIENCE_S = 400


@dataclass(frozen=True, slots=True)
class Page:
    """`kubectl` and `helm` are programs. `run` fails with what a command said where it does not end well."""

    name: str
    node: str
    kubeconfig: Path
    registry: Registry
    kubectl: Path
    helm: Path
    words: dict[str, str] = field(default_factory=dict)
    """What else the page leaves to the reader, as it stands there, and what is filled in."""
    from_checkout: bool = False
    """The chart is the one of the tree, not the released one."""
    ran: set[str] = field(default_factory=set)

    def of(self, name: str, words: dict[str, str] | None = None, *, from_checkout: bool = False) -> "Page":
        """Another page, for the same reader."""
        return replace(self, name=name, words=words or {}, from_checkout=from_checkout, ran=set())

    def all(self) -> list[Block]:
        """Those that a test executes."""
        return [each for each in commands(REPOSITORY / "docs" / self.name) if not each.reason]

    def blocks(self, heading: str) -> list[str]:
        found = [each.text for each in self.all() if each.heading == heading]
        assert found, f"{self.name} has no command under {heading!r}"
        return found

    def run(self, heading: str, *, block: int | None = None) -> str:
        """All blocks of the section, or one."""
        blocks = self.blocks(heading)
        return "".join(map(self.shell, blocks if block is None else [blocks[block]]))

    def not_run(self) -> list[str]:
        """The commands of the page that nobody ran, and that it does not mark as such."""
        return [line for each in self.all() for line in each.commands if line not in self.ran]

    def shell(self, lines: str) -> str:
        self.ran.update(Block("", lines, "").commands)
        done = subprocess.run(
            ["bash", "-euxo", "pipefail", "-c", self._filled_in(lines)],
            cwd=REPOSITORY,
            env=self._environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_PATIENCE_S,
            check=False,
        )
        assert done.returncode == 0, f"{lines}: {done.returncode}\n{done.stdout}"
        return done.stdout

    @contextmanager
    def serving(self, line: str, *more: str) -> Iterator[str]:
        """The first line that a command prints that goes on until somebody presses Ctrl-C."""
        self.ran.update(Block("", line, "").commands)
        command = ["bash", "-euc", f"exec {self._filled_in(line.strip())} {' '.join(more)}"]
        with subprocess.Popen(command, env=self._environment(), stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            try:
                yield process.stdout.readline()
            finally:
                process.send_signal(signal.SIGINT)

    def _filled_in(self, lines: str) -> str:
        chart = " ".join(self.registry.chart)
        for word, value in {**self.words, READERS: f"REGISTRY={self.registry.address}"}.items():
            lines = lines.replace(word, value)
        lines = re.sub(r"\bNODE\b", self.node, lines)
        return lines if self.from_checkout else _CHARTS.sub(lambda _: f"vcuda {chart} {EMULATED} {STAYING}", lines)

    def _environment(self) -> dict[str, str]:
        folders = (self.kubectl.parent, self.helm.parent, Path(sys.executable).parent)
        return {
            **os.environ,
            "KUBECONFIG": str(self.kubeconfig),
            "REGISTRY": self.registry.address,
            "PATH": ":".join([*map(str, folders), os.environ["PATH"]]),
        }
