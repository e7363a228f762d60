"""The habits of the commands: tables, ages, amounts, help, names, imports, and what LC_ALL=C and a full disk do."""

import asyncio
import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from deviceplugin import __version__
from deviceplugin.cli import main
from deviceplugin.cli import table as texts
from deviceplugin.cli.nodes import GPU_USE, NODE_USE, NODES, gpu_entries
from deviceplugin.cli.pods import CONTAINER_USE, NAMESPACE_USE, POD_USE, PODS, container_entries
from deviceplugin.cli.table import Column, Kind, table
from deviceplugin.cli.terminal import bar
from deviceplugin.model.cluster_view import NamespaceRow
from tests.cli.command_runner import kubeconfig, run, vcuda
from tests.cli.view_server import AT, Cluster, node, pod, serving
from tests.kube.kubeconfigs import plugin
from tests.ui.cluster import serving as serving_cluster
from tests.ui.cluster import usual

PROGRAMS = Path(sys.executable).parent
OPERATORS = ("completion", "explain", "node", "nodes", "pods", "top", "version")


def test_ages_are_written_as_kubectl_writes_them(subtests: pytest.Subtests) -> None:
    """The values of HumanDuration in k8s.io/apimachinery/pkg/util/duration."""
    for seconds, text in [
        (-5, "0s"),
        (0, "0s"),
        (119, "119s"),
        (120, "2m"),
        (150, "2m30s"),
        (599, "9m59s"),
        (600, "10m"),
        (10799, "179m"),
        (10800, "3h"),
        (12000, "3h20m"),
        (28800, "8h"),
        (172799, "47h"),
        (172800, "2d"),
        (180000, "2d2h"),
        (691200, "8d"),
        (63072000, "2y"),
        (64000000, "2y10d"),
        (252288000, "8y"),
    ]:
        with subtests.test(seconds=seconds):
            assert texts.age(seconds) == text


def test_memory(subtests: pytest.Subtests) -> None:
    for size, text in [
        (None, "-"),
        (0, "0GiB"),
        (512 << 20, "512MiB"),
        (1 << 30, "1GiB"),
        (7 << 29, "3.5GiB"),
        (1 << 40, "1024GiB"),
    ]:
        with subtests.test(size=size):
            assert texts.memory(size) == text


def test_columns_go_by_rank_and_the_last_is_cut_last() -> None:
    columns = (Column("NAME"), Column("LESS", rank=2), Column("MORE", rank=1), Column("TEXT"))
    rows = [("a" * 8, "1" * 8, "2" * 8, "reason " * 9)]
    heads = [table(columns, rows, width=width)[0].split() for width in (200, 50, 38, 20)]
    assert heads == [
        ["NAME", "LESS", "MORE", "TEXT"],
        ["NAME", "LESS", "MORE", "TEXT"],
        ["NAME", "MORE", "TEXT"],
        ["NAME", "TEXT"],
    ]
    assert table(columns, rows, width=20)[1] == "aaaaaaaa   reason r…"
    assert table(columns, rows)[1].endswith("reason"), "a pipe gets everything"


def test_every_command_has_examples_and_both_names_of_help(subtests: pytest.Subtests) -> None:
    for command in OPERATORS:
        with subtests.test(command=command):
            long, short = (
                CliRunner().invoke(main, [command, flag], prog_name="kubectl vcuda").stdout for flag in ("--help", "-h")
            )
            assert long == short
            assert f"Usage: kubectl vcuda {command}" in long
            assert f"\n  kubectl vcuda {command}" in long.partition("Examples:")[2]
            mine, _, connection = long.partition("\nOptions:\n")[2].partition("\nConnection:\n")
            assert "--help" in mine
            assert not {"--kubeconfig", "--url", "NAME"} & {*mine.split()}
            assert ("--kubeconfig" in connection) == (command != "completion")


def test_as_a_plugin_the_help_says_kubectl_vcuda() -> None:
    said = subprocess.run([PROGRAMS / "kubectl-vcuda", "nodes", "--bogus"], capture_output=True, text=True, check=False)
    assert said.returncode == 2
    assert said.stderr == "vcuda: no such option '--bogus'; did you mean --gpus?\n"
    said = subprocess.run([PROGRAMS / "kubectl-vcuda", "node"], capture_output=True, text=True, check=False)
    assert said.stderr == "vcuda: missing argument 'NAME'; see kubectl vcuda node --help\n"


async def test_what_was_probably_meant(subtests: pytest.Subtests) -> None:
    cases: list[tuple[list[str], str]] = [
        (["plcae"], "no such command 'plcae'; did you mean place?"),
        (["verison"], "no such command 'verison'; did you mean version?"),
        (["zzz"], "no such command 'zzz'; see vcuda --help"),
        (["place", "--core", "1"], "no such option '--core'; did you mean --cores or --cordon?"),
        (["place"], "missing option '--topology'; see vcuda place --help"),
        (
            ["place", "--topology", "emulator/profiles/pcie-mixed.json"],
            "missing option '--cores' or '--memory-mib'; see vcuda place --help",
        ),
        (["simulate"], "missing '--nodes', '--pods'; see vcuda simulate --help"),
        (["place", "--cores", "3"], "missing option '--topology'; see vcuda place --help"),
        (["--bogus"], "no such option '--bogus'; see vcuda --help"),
        (
            ["nodes", "-o", "xml"],
            "-o / --output: 'xml' is not one of 'table', 'wide', 'json', 'yaml', 'name'; see vcuda nodes --help",
        ),
    ]
    for args, said in cases:
        with subtests.test(args=args):
            result = await run(*args)
            assert (result.exit_code, result.stdout) == (2, "")
            assert result.stderr == f"vcuda: {said}\n"


async def test_versions(tmp_path: Path) -> None:
    assert (await run("-V")).stdout == (await run("--version")).stdout == f"vcuda {__version__}\n"
    assert (await run("version", "--client")).stdout == f"Client Version: {__version__}\n"
    both = f"Client Version: {__version__}\nScheduler Version: 0.9.7\n"
    assert (await vcuda(Cluster(), tmp_path, "version")).stdout == both
    alone = await run("version")
    assert (alone.exit_code, alone.stdout) == (1, f"Client Version: {__version__}\n")


async def test_nothing_heavy_is_imported_for_help_and_for_lists(tmp_path: Path) -> None:
    """Not even the package of Kubernetes; the process for an exec plugin imports it."""
    script = (
        "import json, sys\n"
        "from click.testing import CliRunner\n"
        "from deviceplugin.cli import main\n"
        "heavy = {'grpc', 'pynvml', 'kubernetes', 'cryptography', 'prometheus_client', 'structlog'}\n"
        "for words in json.loads(sys.argv[1]):\n"
        "    status = CliRunner().invoke(main, words).exit_code\n"
        "    print(words[0], status, *sorted(heavy & sys.modules.keys()))\n"
    )
    commands = (["--help"], ["nodes"], ["node", "n"], ["pods"], ["top"], ["version"], ["completion", "bash"])
    async with serving(Cluster([node("n")])) as url:
        said = await _process(script, json.dumps(commands), kubeconfig=kubeconfig(tmp_path / "kc", url))
    assert said == (0, "".join(f"{words[0]} 0\n" for words in commands), "")


async def test_only_an_exec_plugin_needs_the_package_of_kubernetes(tmp_path: Path) -> None:
    """In no process: here the package cannot be imported."""
    (tmp_path / "kubernetes.py").write_text("raise ImportError('not here')")
    without = {"PYTHONPATH": str(tmp_path)}
    command = [sys.executable, "-m", "deviceplugin", "nodes", "-o", "name"]
    async with serving_cluster(usual()) as scheduler:
        code, out, err = await _run([*command, f"--url={scheduler}", "--insecure"], tmp_path / "none", **without)
    assert (code, err) == (0, "")
    assert out.count("node/") == 8
    async with serving(Cluster([node("n")])) as url:
        path = kubeconfig(tmp_path / "kc", url)
        assert await _run(command, path, **without) == (0, "node/n\n", "")
        document = yaml.safe_load(path.read_text())
        document["users"][0]["user"] = plugin(tmp_path, {"token": "first"})
        path.write_text(yaml.safe_dump(document))
        code, _, err = await _run(command, path, **without)
    assert (code, "not here" in err) == (1, True), err


async def test_plain_characters_where_the_locale_has_no_others(tmp_path: Path) -> None:
    async with serving(Cluster([node("n", problem="naïve → gone")])) as url:
        path = kubeconfig(tmp_path / "kc", url)
        script = "from deviceplugin.cli import main; main()"
        ascii_only = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "COLUMNS": "60"}
        for args in (["node", "n"], ["nodes"], ["top"]):
            code, out, err = await _process(script, *args, kubeconfig=path, **ascii_only)
            assert (code, err) == (0, "")
            assert out.isascii(), out
        assert "#" in (await _process(script, "node", "n", kubeconfig=path, **ascii_only))[1]


async def test_a_full_disk_is_one_sentence_and_a_closed_pipe_is_silent(tmp_path: Path) -> None:
    async with serving(Cluster([node(f"node-{at}") for at in range(900)])) as url:
        path = kubeconfig(tmp_path / "kc", url)
        for form in ("table", "json"):
            command = f"{sys.executable} -m deviceplugin nodes -o {form}"
            full = await _shell(f"{command} >/dev/full", path)
            assert full[0] == 1
            assert (
                full[2].splitlines()[0]
                == "vcuda: the answer cannot be written to standard output: No space left on device"
            )
            assert "Traceback" not in full[2].splitlines()[0]
            closed = await _shell(f"{command} | head -n 1", path)
            assert closed[2] == ""


async def _process(script: str, *args: str, kubeconfig: Path, **env: str) -> tuple[int, str, str]:
    return await _run([sys.executable, "-c", script, *args], kubeconfig, **env)


async def _shell(command: str, path: Path) -> tuple[int, str, str]:
    return await _run(["sh", "-c", command], path)


async def _run(command: list[str], path: Path, **env: str) -> tuple[int, str, str]:
    process = await asyncio.create_subprocess_exec(
        *command,
        env={**os.environ, "KUBECONFIG": str(path), **env},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate()
    return process.returncode or 0, out.decode(errors="replace"), err.decode(errors="replace")


def test_a_reason_stands_below_its_row_where_the_table_has_no_room() -> None:
    columns = (Column("NAME"), Column("CORES", right=True), Column("REASON", rank=6, if_any=True, below=True))
    rows = [("a", "50", "too little memory (7 of 8 nodes)"), ("b", "5", ""), ("TOTAL", "55", " ")]
    assert table(columns, rows, width=50) == [
        "NAME    CORES   REASON",
        "a          50   too little memory (7 of 8 nodes)",
        "b           5   -",
        "TOTAL      55",
    ]
    assert table(columns, rows, width=30) == [
        "NAME    CORES",
        "a          50",
        "  too little memory (7 of 8 n…",
        "b           5",
        "TOTAL      55",
    ]
    assert table(columns, rows[1:], width=30)[0] == "NAME    CORES", "nobody has a reason"


def test_the_column_of_the_order_stays_in_every_width(subtests: pytest.Subtests) -> None:
    name = "a-name-that-is-as-long-as-names-in-clouds-are"
    one_node, one_pod = node(name), pod(name, name, node=name)
    rows: list[tuple[Kind[Any], Any]] = [
        *((kind, one_node) for kind in (NODES, NODE_USE)),
        *((GPU_USE, each) for each in gpu_entries((one_node,))[:1]),
        *((kind, one_pod) for kind in (PODS, POD_USE)),
        *((CONTAINER_USE, each) for each in container_entries([one_pod])),
        (NAMESPACE_USE, NamespaceRow(name, 2, 150, 80, 70.0, 40.0, 1 << 30, 1.5, 110)),
    ]
    for kind, row in rows:
        for word in [each for each in kind.sorts if each != "name"]:
            with subtests.test(kind=kind.what, word=word):
                (at,) = [at for at, each in enumerate(kind.columns) if each.sort == word]
                chosen = kind.columns[at]
                lines = kind.sorted_by(word).lines([row], at=AT, headers=True, wide=False, width=40)
                assert chosen.heading in lines[0].split()
                if chosen.right:
                    assert chosen.text(row, AT) in lines[1].split()


async def test_the_reason_is_whole_at_80_columns(tmp_path: Path) -> None:
    made = usual()
    token = tmp_path / "token"
    token.write_text("good")
    async with serving_cluster(made) as url:
        reach = ("--url", url, "--insecure", "--token-file", str(token))
        env = {"COLUMNS": "80"}
        said = (await run("pods", "-A", "--status", "pending", *reach, env=env)).stdout.splitlines()
        assert said[2] == "  memory request larger than any GPU (7 of 8 nodes), vcuda agent is down (1)"
        for words in (("nodes",), ("top",)):
            assert "  vcuda agent is down" in (await run(*words, *reach, env=env)).stdout.splitlines()
        events = (await run("events", "-A", *reach, env=env)).stdout.splitlines()
        assert events[-1] == "  0/8 nodes are available: memory request larger than any GPU."


async def test_the_document_of_nodes_has_gpus_only_where_they_were_asked_for(tmp_path: Path) -> None:
    scene = Cluster([node("n")])
    asked: list[tuple[tuple[str, ...], bool]] = [(("nodes",), False), (("nodes", "--gpus"), True), (("top",), False)]
    for words, has_gpus in asked:
        (item,) = json.loads((await vcuda(scene, tmp_path, *words, "-o", "json")).stdout)["items"]
        assert ("gpus" in item) is has_gpus


def test_a_bar_is_empty_only_for_nothing_and_full_only_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = (-1.0, 0.0, 0.001, 0.5, 0.56, 0.999, 1.0, 7.0)
    assert [bar(part, 4) for part in parts] == ["░░░░", "░░░░", "▏░░░", "██░░", "██▎░", "███▉", "████", "████"]
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding="ascii"))
    assert [bar(part, 4) for part in parts] == ["....", "....", "#...", "##..", "##..", "###.", "####", "####"]
