"""Completion in real shells: the commands, the options, and the names of pods and nodes when the cluster answers."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from deviceplugin.cli import main
from tests.cli.command_runner import kubeconfig
from tests.cli.view_server import Cluster, node, pod, serving
from tests.programs import installed

PROGRAMS = Path(sys.executable).parent


async def answered(folder: Path, words: str, *, url: str = "http://127.0.0.1:9", program: str = "vcuda") -> list[str]:
    """What bash's script gets; the last word is not complete."""
    path = kubeconfig(folder / "kubeconfig", url, namespace="research")
    given = words.split(" ")
    environment = {**os.environ, "KUBECONFIG": str(path), "PATH": f"{PROGRAMS}:{os.environ['PATH']}"}
    if program == "vcuda":
        environment |= {
            "_VCUDA_COMPLETE": "bash_complete",
            "COMP_WORDS": f"vcuda {words}",
            "COMP_CWORD": str(len(given)),
        }
        given = []
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, str(PROGRAMS / program), *given),
        env=environment,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate()
    assert (process.returncode, err) == (0, b"")
    return [line.removeprefix("plain,").partition("\t")[0] for line in out.decode().splitlines() if line]


async def test_commands_options_and_words(tmp_path: Path) -> None:
    assert await answered(tmp_path, "no") == ["node", "nodes"]
    assert "--sort-by" in await answered(tmp_path, "nodes --s")
    assert await answered(tmp_path, "pods --status p") == ["pending"]


async def names(folder: Path, words: str, url: str, program: str = "vcuda") -> list[str]:
    """Asked again while the cluster does not answer at once, as on a busy machine."""
    for _ in range(20):
        if (found := await answered(folder, words, url=url, program=program)) not in ([], [":4"]):
            return found
    return []


async def test_names_of_nodes_and_pods(tmp_path: Path) -> None:
    scene = Cluster([node("node-a"), node("other")], [pod("llm"), pod("web", "shop")])
    async with serving(scene) as url:
        assert await names(tmp_path, "node n", url) == ["node-a"]
        assert await names(tmp_path, "explain l", url) == ["llm"]
        assert await names(tmp_path, "explain shop/", url) == ["shop/web"]
        assert await names(tmp_path, "explain -n shop w", url) == ["web"]
        assert await names(tmp_path, "node n", url, "kubectl_complete-vcuda") == ["node-a", ":4"]


async def test_a_cluster_that_is_away_completes_nothing_and_says_nothing(tmp_path: Path) -> None:
    assert await answered(tmp_path, "node n") == []
    assert await answered(tmp_path, "", program="kubectl_complete-vcuda") != [":4"], "the commands"


def script(shell: str, folder: Path) -> Path:
    result = CliRunner().invoke(main, ["completion", shell], prog_name="vcuda")
    assert (result.exit_code, result.stderr) == (0, "")
    path = folder / "script"
    path.write_text(result.stdout)
    return path


@pytest.fixture(scope="session")
def shells() -> None:
    installed("zsh=zsh", "fish=fish")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_is_one_that_the_shell_reads(shells: None, shell: str, tmp_path: Path) -> None:
    done = subprocess.run([shell, "-n", script(shell, tmp_path)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


COMPLETED = {
    "bash": ". SCRIPT; COMP_WORDS=(vcuda expl); COMP_CWORD=1; _vcuda_completion vcuda; echo ${COMPREPLY[@]}",
    "zsh": """
        autoload -Uz compinit && compinit -u -d FOLDER/dump
        . SCRIPT
        words=(vcuda expl) CURRENT=2
        _describe() { print -l -- ${(P)3} }
        _vcuda_completion | cut -d: -f1
    """,
    "fish": "source SCRIPT; complete --do-complete 'vcuda expl' | string split --fields 1 \\t",
}
"""What Tab does after `vcuda expl`. zsh calls _describe with the name of the array that has the candidates."""


@pytest.mark.parametrize("shell", COMPLETED)
def test_the_shell_completes_with_the_script(shells: None, shell: str, tmp_path: Path) -> None:
    path = script(shell, tmp_path)
    options = {"bash": ("--norc",), "zsh": ("-f",), "fish": ("--no-config",)}[shell]
    typed = COMPLETED[shell].replace("SCRIPT", str(path)).replace("FOLDER", str(tmp_path))
    done = subprocess.run(
        [shell, *options, "-c", typed],
        env={**os.environ, "PATH": f"{PROGRAMS}:{os.environ['PATH']}", "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.split() == ["explain"], done.stderr
