"""The commands of a page, run as they stand there.

In: a page of docs/how-to with a section for each step; the cluster, Helm, the registry. Out: what the commands said.
Invariant: only what the page leaves to the reader is filled in: the node, and where chart and image come from.
"""

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from sandbox.emulated_gpus import REPOSITORY
from tests.e2e.installed.registry import Registry

EMULATED = "--set agent.driver.from=emulated --set agent.flags.allocation-check-period=1s"
"""What the test adds to each installation: there is no GPU, and nobody waits half a minute."""
STAYING = """--set-json 'scheduler.tolerations=[{"operator":"Exists"}]'"""
"""The cluster has one node. In the place of another one, the scheduler comes back to it while it is drained."""
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

    def blocks(self, heading: str) -> list[str]:
        text = (REPOSITORY / "docs/how-to" / self.name).read_text()
        (section,) = re.findall(rf"^## {re.escape(heading)}\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
        found = re.findall(r"^```\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
        assert found, f"{self.name} has no command under {heading!r}"
        return found

    def run(self, heading: str, *, block: int | None = None) -> str:
        """All blocks of the section, or one."""
        blocks = self.blocks(heading)
        return "".join(map(self.shell, blocks if block is None else [blocks[block]]))

    def shell(self, lines: str) -> str:
        done = subprocess.run(
            ["bash", "-euxo", "pipefail", "-c", self._filled_in(lines)],
            env=self._environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_PATIENCE_S,
            check=False,
        )
        assert done.returncode == 0, f"{lines}: {done.returncode}\n{done.stdout}"
        return done.stdout

    def _filled_in(self, lines: str) -> str:
        chart = " ".join(self.registry.chart)
        lines = re.sub(r"\bNODE\b", self.node, lines)
        lines = lines.replace("vcuda daemonset/chart", f"vcuda {chart} {EMULATED} {STAYING}")
        return lines.replace("registry.example.org/vcuda", self.registry.image)

    def _environment(self) -> dict[str, str]:
        folders = (self.kubectl.parent, self.helm.parent, Path(sys.executable).parent)
        return {
            **os.environ,
            "KUBECONFIG": str(self.kubeconfig),
            "PATH": ":".join([*map(str, folders), os.environ["PATH"]]),
        }
