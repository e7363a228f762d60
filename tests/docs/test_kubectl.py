"""docs/kubectl.md and docs/ask-for-a-share.md: every command does something, against a scheduler that answers."""

import shlex
from pathlib import Path

import pytest

from deviceplugin.model.cluster_view import ClusterEventKind, NamespaceRow
from sandbox.emulated_gpus import REPOSITORY
from tests.cli.command_runner import vcuda
from tests.cli.view_server import Cluster, event, node, pod
from tests.fenced import fenced

COMMANDS = [
    line.replace("POD", "llm").replace("NAMESPACE", "research")
    for page in ("kubectl.md", "ask-for-a-share.md")
    for block in fenced(REPOSITORY / "docs" / page, "bash")
    for line in block.splitlines()
]
EXPLANATION = {"pod": "research/llm", "sentence": "it waits", "asked": [], "at": 0, "reasons": {}, "nodes": []}


async def test_each_command_answers(tmp_path: Path, subtests: pytest.Subtests) -> None:
    assert len(COMMANDS) > 5
    cluster = Cluster([node("node-a")], [pod("llm"), pod("big", node=None)], [event("llm", ClusterEventKind.PLACED)])
    cluster.namespaces = [NamespaceRow("research", 2, 100, 80)]
    cluster.explanations["research/llm"] = EXPLANATION | {"left_out": 0}
    for command in COMMANDS:
        with subtests.test(command):
            program, plugin, *arguments = shlex.split(command)
            assert (program, plugin) == ("kubectl", "vcuda")
            result = await vcuda(cluster, tmp_path, *arguments)
            assert (result.exit_code, result.stderr) == (0, "")
            assert result.stdout
