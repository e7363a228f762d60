"""Terminals of 40 columns: every command that prints a table loses columns or text, and no digits."""

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from benchmarks.traces import example
from deviceplugin.cli import main
from deviceplugin.cli.table import Column, table
from deviceplugin.cli.terminal import shortened, shortened_apart
from deviceplugin.config.scheduler import PlacementSettings
from deviceplugin.model.cluster_view import ClusterEventKind
from deviceplugin.model.preferences import NodePolicy
from tests.cli.command_runner import run, vcuda
from tests.cli.view_server import Cluster, event, node, pod

WIDTH = 40
NARROW = {"COLUMNS": str(WIDTH)}
LONG = "a-name-of-a-node-that-is-longer-than-the-terminal"
TRACES = Path(example.__file__).parent
WORKLOAD = ("--nodes", str(TRACES / "example-nodes.csv"), "--pods", str(TRACES / "example-pods.csv"))
EVERY_POLICY = [word for each in NodePolicy for word in ("--node-policy", each.value)]


def lost_numbers(text: str) -> list[str]:
    """Words that begin with a digit and were cut."""
    return re.findall(r"(?:^|(?<=\s))\d\S*[…~]", text, re.MULTILINE)


def long_names() -> Cluster:
    return Cluster(
        [node(LONG, gpus=8, free_gpus=7)],
        [pod(LONG, "research", node=LONG)],
        [event(LONG, ClusterEventKind.PLACED)],
    )


async def test_a_name_is_cut_and_a_number_never(tmp_path: Path, subtests: pytest.Subtests) -> None:
    cases: list[tuple[tuple[str, ...], tuple[str, ...]]] = [
        (("nodes",), ("7",)),
        (("top", "nodes"), ("35%",)),
        (("top", "gpus"), ("0", "35%")),
        (("top", "pods"), ("49",)),
        (("top", "containers"), ("49",)),
        (("pods",), ()),
        (("pods", "-A"), ()),
        (("events",), ("60s",)),
    ]
    for words, numbers in cases:
        with subtests.test(words=words):
            result = await vcuda(long_names(), tmp_path, *words, env=NARROW)
            assert (result.exit_code, result.stderr) == (0, "")
            assert max(map(len, result.stdout.splitlines())) <= WIDTH
            assert lost_numbers(result.stdout) == []
            shown = result.stdout.splitlines()[1].split()
            assert set(numbers) <= set(shown)


async def test_the_picture_of_a_node_keeps_its_numbers(tmp_path: Path) -> None:
    result = await vcuda(long_names(), tmp_path, "node", LONG, env=NARROW)
    assert result.exit_code == 0
    assert lost_numbers(result.stdout) == []
    assert "50" in result.stdout


def test_the_tables_of_simulate_keep_their_numbers_and_every_policy(subtests: pytest.Subtests) -> None:
    cases: list[list[str]] = [[], EVERY_POLICY]
    for policies in cases:
        with subtests.test(policies=policies):
            narrow, wide = (
                CliRunner().invoke(main, ["simulate", *WORKLOAD, *policies], env={"COLUMNS": columns}).stdout
                for columns in (str(WIDTH), None)
            )
            assert max(map(len, narrow.splitlines())) <= WIDTH
            assert lost_numbers(narrow) == []
            shown = [each for each in re.findall(r"\S+", narrow) if each[0].isdigit()]
            assert set(re.findall(r"\b\d+\.\d\b", wide)) - set(shown) == seconds_of(wide), (
                "by GPU model, of every policy"
            )
            for policy in policies[1::2] or [PlacementSettings().node_policy.value]:
                assert re.search(rf"^{policy} .*\d\d\.\d\d", narrow, re.MULTILINE)


def seconds_of(text: str) -> set[str]:
    """They are left out on a narrow terminal."""
    return {line.split()[-1] for line in text.splitlines() if re.match(r"\w+ +\d\d\.\d\d ", line)}


async def test_what_is_no_table_is_never_cut(subtests: pytest.Subtests) -> None:
    cases: list[tuple[str, ...]] = [
        ("place", "--topology", "emulator/profiles/hgx-a100.json", "--cores", "200", "--explain"),
        ("config", "print"),
    ]
    for words in cases:
        with subtests.test(words=words):
            narrow, wide = (await run(*words, env=NARROW)).stdout, (await run(*words)).stdout
            assert narrow == wide != ""


def test_text_is_cut_before_numbers_wherever_it_stands() -> None:
    columns = (Column("NAME"), Column("COUNT", right=True), Column("OTHER"), Column("LAST", right=True))
    rows = [("n" * 60, "1234", "o" * 40, "87")]
    (line,) = table(columns, rows, headers=False, width=WIDTH)
    name, count, other, last = line.split()
    assert (count, last, len(line)) == ("1234", "87", WIDTH)
    assert (name[-1], other[-1]) == ("…", "…")


async def test_names_as_clouds_give_them_lose_their_middle_before_a_number_goes(
    tmp_path: Path, subtests: pytest.Subtests
) -> None:
    names = [f"ip-10-20-{at}-17.eu-central-1.compute.internal" for at in (4, 104, 105)]
    scene = Cluster([node(name) for name in names], [pod(f"llm-{at}", node=name) for at, name in enumerate(names)])
    cases: list[tuple[tuple[str, ...], list[str]]] = [
        (("nodes",), ["NAME", "STATUS", "GPUS", "FREE", "CORES", "MEMORY", "PODS"]),
        (("top",), ["NAME", "GPUS", "FREE", "CORES", "UTIL", "IDLE", "MEMORY", "USED"]),
        (("pods", "-A"), ["NAMESPACE", "NAME", "STATUS", "NODE", "GPU", "CORES", "MEMORY"]),
    ]
    for words, heads in cases:
        with subtests.test(words=words):
            lines = (await vcuda(scene, tmp_path, *words, env={"COLUMNS": "80"})).stdout.splitlines()
            assert lines[0].split()[: len(heads)] == heads
            assert max(map(len, lines)) <= 80
            shown = [next(word for word in line.split() if word.startswith("ip-")) for line in lines[1:]]
            assert len(set(shown)) == 3, shown
            assert all("…" in name and len(name) >= 20 for name in shown), shown
    whole = (await vcuda(scene, tmp_path, "nodes")).stdout
    assert [name for name in names if name not in whole] == []


def test_names_stay_different_where_they_differ_in_their_middle() -> None:
    names = {f"gpu-node-{at:02}-of-the-large-cluster" for at in range(20)}
    short = shortened_apart(names, 20)
    assert (len({*short.values()}), {*map(len, short.values())}) == (20, {20})
    assert shortened("abcdef", 3) == "a…f"
