"""`vcuda nodes` and `vcuda node`: the table to kubectl's habits, its other forms, and what each asks the scheduler."""

import json
from pathlib import Path

import pytest
import yaml

from deviceplugin.model.cluster_view import MOST_IN_DETAIL, GpuLive, ShareSource
from deviceplugin.structs import replace
from tests.cli.command_runner import run, vcuda
from tests.cli.view_server import SERVICE, Cluster, node, pod
from tests.ui.cluster import serving as serving_cluster
from tests.ui.cluster import usual


def cluster() -> Cluster:
    nodes = [node("node-b", gpus=8), node("node-a"), node("node-c", problem="no agent")]
    return Cluster(nodes, [pod("llm")])


async def test_the_table_has_kubectls_form(tmp_path: Path) -> None:
    result = await vcuda(cluster(), tmp_path, "nodes")
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.splitlines() == [
        "NAME     STATUS        GPUS   FREE    CORES      MEMORY   PODS   MODEL                   REASON",
        "node-a   Ready            2      1   50/200   10/160GiB      1   NVIDIA A100-SXM4-80GB   -",
        "node-b   Ready            8      7   50/800   10/640GiB      1   NVIDIA A100-SXM4-80GB   -",
        "node-c   Unavailable      2      1   50/200   10/160GiB      1   NVIDIA A100-SXM4-80GB   no agent",
    ]


async def test_other_orders_names_and_no_headings(tmp_path: Path) -> None:
    args = ["nodes", "--sort-by", "free", "-o", "name"]
    assert (await vcuda(cluster(), tmp_path, *args)).stdout.split() == ["node/node-b", "node/node-a", "node/node-c"]
    reverse = await vcuda(cluster(), tmp_path, *args, "--reverse")
    assert reverse.stdout.split()[-1] == "node/node-b"
    plain = await vcuda(cluster(), tmp_path, "nodes", "--no-headers")
    assert plain.stdout.splitlines()[0].startswith("node-a   Ready")


async def test_json_is_the_rows(tmp_path: Path, subtests: pytest.Subtests) -> None:
    cases: list[tuple[str, ...]] = [("-o", "json"), ("-ojson",), ("-o=json",), ("--output", "json"), ("--output=json",)]
    for form in cases:
        with subtests.test(form=form):
            result = await vcuda(cluster(), tmp_path, "nodes", *form)
            assert not {"gpus", "live", "live_error", "cores_used"} & json.loads(result.stdout)["items"][0].keys()
            assert [each["node"] for each in json.loads(result.stdout)["items"]] == ["node-a", "node-b", "node-c"]
            assert yaml.safe_load((await vcuda(cluster(), tmp_path, "nodes", "-o", "yaml")).stdout) == json.loads(
                result.stdout
            )


async def test_what_is_asked_for_is_asked_of_the_scheduler(tmp_path: Path) -> None:
    scene = cluster()
    await vcuda(scene, tmp_path, "nodes", "--model", "a100", "--problems", "--gpus", "-o", "json")
    assert scene.asked[-1] == (
        f"{SERVICE}/view/nodes",
        {"model": "a100", "state": "problem", "holders": "1", "limit": "250"},
    )


async def test_an_order_by_use_asks_for_it_and_shows_it(tmp_path: Path) -> None:
    scene = Cluster([node("busy", cores_idle=0.0), node("idle", cores_idle=40.0), node("silent", gpus_measured=0)])
    scene.nodes[2] = replace(scene.nodes[2], live=None, cores_used=None, cores_idle=None)
    result = await vcuda(scene, tmp_path, "nodes", "--sort-by", "idle", "--name", "s", env={"COLUMNS": "60"})
    assert scene.asked[-1] == (f"{SERVICE}/view/nodes", {"name": "s", "live": "1", "limit": "5000"})
    head, *lines = [line.split() for line in result.stdout.splitlines()]
    assert [line[head.index("IDLE")] for line in lines] == ["40", "0", "-"]
    assert [line[head.index("UTIL")] for line in lines] == ["35%", "35%", "-"]


async def test_every_page_is_fetched_and_a_changed_list_is_read_again(tmp_path: Path) -> None:
    scene = Cluster([node(f"node-{at:04}") for at in range(2 * MOST_IN_DETAIL + 1)])
    scene.gone_after = 2
    result = await vcuda(scene, tmp_path, "nodes", "--gpus", "-o", "json")
    assert result.exit_code == 0, result.output
    assert [each["node"] for each in json.loads(result.stdout)["items"]] == [each.node for each in scene.nodes]
    assert len([path for path, _ in scene.asked if path.endswith("/view/nodes")]) == 6, "two pages, 410, three pages"


async def test_narrow_terminals_lose_columns_and_never_digits(tmp_path: Path, subtests: pytest.Subtests) -> None:
    for width in [40, 60, 80]:
        with subtests.test(width=width):
            result = await vcuda(cluster(), tmp_path, "nodes", env={"COLUMNS": str(width)})
            lines = result.stdout.splitlines()
            assert max(map(len, lines)) <= width
            assert lines[0].startswith("NAME")
            for cell in ("node-b", "50/800", " 7"):
                assert cell in lines[2]
            assert "\N{HORIZONTAL ELLIPSIS}" not in "\n".join(lines[:3])


async def test_text_from_outside_cannot_move_the_cursor(tmp_path: Path) -> None:
    result = await vcuda(Cluster([node("node-a", problem="\x1b[2J\nred")]), tmp_path, "nodes")
    assert "\x1b" not in result.stdout
    assert result.stdout.count("\n") == 2


async def test_the_picture_of_a_node(tmp_path: Path) -> None:
    result = await vcuda(cluster(), tmp_path, "node", "node/node-a")
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.splitlines() == [
        "node-a · 2 × NVIDIA A100-SXM4-80GB · driver 550.54 · CUDA 12.4",
        "cores  █████░░░░░░░░░░░░░░░ 50 of 200 allocated",
        "memory █░░░░░░░░░░░░░░░░░░░ 10 of 160 GiB allocated",
        "",
        "NUMA node 0  1 GPU, 0 free",
        "└─ GPU 0  cores █████░░░░░  50  memory █░░░░░░░░░ 10 of 80 GiB  35% busy, 9 GiB used",
        "   └─  50 cores    10 GiB  research/llm (main) · uses 49 cores, 9 GiB",
        "NUMA node 1  1 GPU, 1 free",
        "└─ GPU 1  cores ░░░░░░░░░░   0  memory ░░░░░░░░░░  0 of 80 GiB",
    ]


async def test_the_picture_says_what_is_held_by_claims(tmp_path: Path) -> None:
    scene = cluster()
    first, second = scene.nodes[1].gpus
    (plain,) = first.holders
    mine = replace(plain, source=ShareSource.CLAIM, claim="mine")
    holders = (
        *(plain, mine),
        replace(mine, uid="uid-claim", pod="ours", container="gpu", claim="ours", users=3),
        replace(mine, uid="uid-claim", pod="free", container="gpu", claim="free", users=0),
    )
    gpus = (replace(first, source=ShareSource.CLAIM, holders=holders), second)
    scene.nodes[1] = replace(scene.nodes[1], gpus=gpus)
    lines = (await vcuda(scene, tmp_path, "node", "node-a")).stdout.splitlines()
    assert lines[5].endswith("35% busy, 9 GiB used · for claims")
    assert [line.partition("  research/")[2].partition(" · uses")[0] for line in lines[6:10]] == [
        "llm (main)",
        "llm (main) · claim mine",
        "ours (gpu) · claim ours, 3 containers",
        "free (gpu) · claim free, no containers",
    ]
    assert "for claims" not in "\n".join(lines[10:])
    wide = (await vcuda(scene, tmp_path, "top", "gpus", "-o", "wide")).stdout.splitlines()
    assert "SOURCE" in wide[0]
    assert [line.split()[-1] for line in wide[1:3]] == ["claim", "device-plugin"]


async def test_the_picture_fits_a_narrow_terminal_and_says_what_is_wrong(tmp_path: Path) -> None:
    scene = cluster()
    sick = replace(scene.nodes[1].gpus[1], available=False, healthy=False, reason="XID 79", live=GpuLive())
    scene.nodes[1] = replace(scene.nodes[1], gpus=(sick,), live_error="no answer in 2 s", problem="cordoned")
    lines = (await vcuda(scene, tmp_path, "node", "node-a", env={"COLUMNS": "40"})).stdout.splitlines()
    assert max(map(len, lines)) == 40
    wide = (await vcuda(scene, tmp_path, "node", "node-a", "-o", "wide", env={"COLUMNS": "40"})).stdout
    for said in ("✗ unavailable: cordoned", "✗ what is used is not known: no answer in 2 s", "- busy"):
        assert said in wide
    for said in ("✗ unavailable: cordoned", "   ✗ unavailable: XID 79"):
        assert said in lines, "the reason has a line of its own"
    for said in ("✗ what is used is not known: no answer in 2 s", "- busy"):
        assert said in wide


async def test_a_real_scheduler_says_which_gpus_are_unavailable_and_why(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("good")
    said = {}
    async with serving_cluster(usual()) as url:
        for words in (("nodes", "--problems"), ("top", "gpus"), ("node", "gpu-a100-2"), ("top", "--name", "a100-2")):
            reach = ("--url", url, "--insecure", "--token-file", str(token))
            said[words[0], len(words)] = (await run(*words, *reach, env={"COLUMNS": "80"})).stdout.splitlines()
    nodes, gpus, one, use = said.values()
    assert [line.split()[:3] for line in nodes[1::2]] == [
        ["gpu-a100-2", "1", "unavailable"],
        ["gpu-t4-3", "Unavailable", "4"],
    ]
    assert nodes[2::2] == ["  GPU 5: Xid 79", "  vcuda agent is down"]
    assert use[2:] == ["  GPU 5: Xid 79"]
    assert [line for line in gpus if "unavailable" in line] == [
        "  unavailable: Xid 79",
        *["  unavailable: vcuda agent is down"] * 4,
    ]
    at = next(number for number, line in enumerate(one) if "GPU 5" in line)
    assert one[at].endswith("37% busy, 23.2 GiB used"), "bars are worth less than numbers"
    assert one[at + 1] == "│  ✗ unavailable: Xid 79"
    assert one[at + 3].endswith("uses 1.2 cores, 5.2 GiB")
    assert one[4] == "8 GPUs, 6 free", "no word about NUMA where there is none"


async def test_a_node_that_is_unknown_is_one_sentence(tmp_path: Path) -> None:
    result = await vcuda(cluster(), tmp_path, "node", "node-x")
    assert (result.exit_code, result.stderr) == (1, "vcuda: no node node-x with GPUs\n")
    wrong = await vcuda(cluster(), tmp_path, "node", "pod/x")
    assert wrong.stderr == "vcuda: 'pod/x' is not the name of a node; write NAME or node/NAME; see vcuda node --help\n"
    quoted = cluster()
    assert (await vcuda(quoted, tmp_path, "node", "node-a?x=1")).exit_code == 1
    assert quoted.asked[-1][1] == {"live": "1"}, "a name cannot change the query"
