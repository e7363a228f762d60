"""`vcuda pods` and `vcuda events`: the tables, whose namespace is asked, and whose names are shown to whom."""

import json
from pathlib import Path
from typing import Any

import pytest

from deviceplugin.model.cluster_view import (
    ClusterEventKind,
    ClusterEventRow,
    ContainerRow,
    PodStage,
    ShareLive,
    ShareRow,
    ShareSource,
)
from tests.cli.command_runner import run, vcuda
from tests.cli.view_server import ACCOUNT, AT, SERVICE, TOKEN, Cluster, event, node, pod
from tests.ui.cluster import serving, usual


def cluster(**rights: Any) -> Cluster:
    waiting = pod("big", node=None, gang="research/train")
    return Cluster(pods=[pod("llm"), waiting, pod("web", "shop", node="node-b", stage=PodStage.RESERVED)], **rights)


async def test_the_namespace_of_the_context_is_the_default(tmp_path: Path) -> None:
    scene = cluster()
    result = await vcuda(scene, tmp_path, "pods")
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.splitlines() == [
        "NAME   STATUS    NODE     GPU   CORES   MEMORY   AGE   REASON",
        "big    Pending   -        -        50    10GiB    5m   insufficient vcuda-core on any one GPU",
        "llm    Bound     node-a   0        50    10GiB    5m   -",
    ]
    assert scene.asked[-1] == (f"{SERVICE}/view/pods", {"namespace": "research", "limit": "5000"})


async def test_all_namespaces_have_a_column(tmp_path: Path) -> None:
    lines = (await vcuda(cluster(), tmp_path, "pods", "-A")).stdout.splitlines()
    assert [line.split()[:3] for line in lines] == [
        ["NAMESPACE", "NAME", "STATUS"],
        ["research", "big", "Pending"],
        ["research", "llm", "Bound"],
        ["shop", "web", "Reserved"],
    ]


async def test_namespaces_that_begin_alike_and_parts_of_names_are_chosen_by_a_real_scheduler(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("good")
    async with serving(usual()) as url:
        reach = ("--url", url, "--insecure", "--token-file", str(token))
        for words in (("pods",), ("top", "pods"), ("top", "containers")):
            lines = (await run(*words, "-n", "ser*", "--name", "BED-1", *reach)).stdout.splitlines()
            assert lines[0].startswith("NAMESPACE")
            assert [line.split()[:2] for line in lines[1:]] == [["serving", "embed-10"]]
        for words in (("nodes",), ("top", "nodes"), ("top", "gpus")):
            lines = (await run(*words, "--name", "A100-3", *reach)).stdout.splitlines()
            assert {line.split()[0] for line in lines[1:]} == {"gpu-a100-3"}, words
        wrong = await run("top", "namespaces", "--name", "x", *reach)
        assert (wrong.exit_code, wrong.stderr.count("\n")) == (2, 1)
        assert "--name is a part of the name of a node or pod" in wrong.stderr
        for words, chosen in (
            (("-n", "training"), ["training"]),
            (("-n", "*"), ["batch", "research", "serving", "training"]),
        ):
            lines = (await run("top", "namespaces", *words, *reach)).stdout.splitlines()
            assert [line.split()[0] for line in lines[1:]] == chosen


async def test_a_star_where_it_would_find_nothing_and_a_namespace_where_there_is_none_are_refused(
    subtests: pytest.Subtests,
) -> None:
    cases: list[tuple[list[str], str]] = [
        (["pods", "--name", "notebook*"], "--name: a part of the name needs no *; write 'notebook'"),
        (["nodes", "--model", "*"], "--model: a part of the name needs no *; write 'llm'"),
        (["top", "--name", "*a100*"], "--name: a part of the name needs no *; write 'a100'"),
        (["pods", "-n", "*arch"], "-n / --namespace: in '*arch' * must stand at the end, as in 'team-*'"),
        (["events", "-n", "a*b*"], "-n / --namespace: in 'a*b*' * must stand at the end"),
        (["nodes", "-n", "research"], "no such option '-n'"),
        (["node", "node-a", "-n", "research"], "no such option '-n'"),
        (["top", "-n", "research"], "-n goes with pods, containers or namespaces; nodes belong to none; see"),
        (["top", "gpus", "-n", "research"], "-n goes with pods, containers or namespaces; gpus belong to none; see"),
    ]
    for words, said in cases:
        with subtests.test(words=words):
            result = await run(*words)
            assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1)
            assert result.stderr.startswith(f"vcuda: {said}"), result.stderr


async def test_what_is_asked_for_is_asked_of_the_scheduler(tmp_path: Path, subtests: pytest.Subtests) -> None:
    cases: list[tuple[list[str], dict[str, str]]] = [
        (["-n", "shop"], {"namespace": "shop"}),
        (["-A", "--status", "Pending"], {"stage": "pending"}),
        (["-A", "--node", "node/node-b"], {"node": "node-b"}),
        (["-A", "--name", "llm"], {"name": "llm"}),
        (["-n", "res*"], {"namespace": "res*"}),
    ]
    for args, asked in cases:
        with subtests.test(args=args):
            scene = cluster()
            await vcuda(scene, tmp_path, "pods", *args)
            assert scene.asked[-1][1] == {**asked, "limit": "5000"}


EXPLAINED = {"pod": "research/llm", "sentence": "it waits", "asked": [], "reasons": {}, "nodes": [], "left_out": 0}


async def test_who_may_not_read_about_pods_is_told_which_right_is_missing(
    tmp_path: Path, subtests: pytest.Subtests
) -> None:
    for words in (["pods"], ["pods", "-A"], ["top", "pods"], ["node", "node-a"], ["events"], ["explain", "d/p"]):
        with subtests.test(words=words):
            result = await vcuda(cluster(may_create_token=False), tmp_path, *words)
            assert (result.exit_code, result.stdout) == (1, "")
            namespace = "d" if "d/p" in words else "research"
            assert result.stderr == (
                f"vcuda: you may not read the pods of namespace {namespace}; ask for the ClusterRole edit there, or "
                "use -n with one of yours\n"
            )
    assert (await vcuda(cluster(may_create_token=False), tmp_path, "nodes")).exit_code == 0


async def test_a_tenant_shows_a_token_of_the_namespace_that_he_asks_about(
    tmp_path: Path, subtests: pytest.Subtests
) -> None:
    accounts = "/api/v1/namespaces/{}/serviceaccounts/default/token"
    for words, namespace in (
        (["pods", "-n", "research"], "research"),
        (["top", "pods", "-n", "research", "--once"], "research"),
        (["events", "-n", "research"], "research"),
        (["pods", "-A"], "research"),
        (["explain", "research/llm"], "research"),
        (["explain", "llm", "-n", "research"], "research"),
    ):
        with subtests.test(words=words):
            made = cluster(may_create_token=False, edits=("research",))
            made.explanations["research/llm"] = EXPLAINED
            made.events.append(event("llm", ClusterEventKind.PLACED))
            result = await vcuda(made, tmp_path, *words)
            assert (result.exit_code, result.stderr) == (0, ""), result.stderr
            asked = [path for path, _ in made.asked if path.endswith("/token")]
            assert asked == [ACCOUNT, accounts.format(namespace)]


async def test_a_tenant_of_several_namespaces_sees_them_together_by_one_question(
    tmp_path: Path, subtests: pytest.Subtests
) -> None:
    cases: list[tuple[list[str], dict[str, Any], list[str]]] = [
        (["pods", "-A"], {}, ["research", "shop"]),
        (["top", "pods", "-A", "--once"], {}, ["research", "shop"]),
        (["pods", "-n", "*"], {}, ["research", "shop"]),
        (["pods", "-n", "sh*"], {}, ["shop"]),
        (["node", "node-a"], {}, ["research", "shop"]),
        (["top", "namespaces", "--once"], {}, ["research", "shop"]),
        (["pods", "-A"], {"listed": ("a", "shop", "team")}, ["research", "shop", "team"]),
        (["pods"], {}, ["research"]),
        (["nodes"], {}, ["research"]),
    ]
    for words, rights, shown in cases:
        with subtests.test(words=words, rights=rights):
            edits = ("research", "shop", "team", "elsewhere")
            made = cluster(may_create_token=False, edits=edits, **rights)
            made.pods += [pod("secret", "theirs")]
            made.nodes.append(node("node-a"))
            result = await vcuda(made, tmp_path, *words, others=("shop", "kube-system"))
            assert (result.exit_code, result.stderr.replace("No namespaces with GPUs found.\n", "")) == (0, "")
            assert made.shown == [",".join(f"eyJ.{each}.usual" for each in shown)]
            assert "secret" not in result.stdout
            if words == ["pods", "-A"]:
                assert {line.split()[0] for line in result.stdout.splitlines()[1:]} == {"research", "shop"}


async def test_of_many_namespaces_a_bounded_number_is_tried_and_fits_in_one_header(tmp_path: Path) -> None:
    listed = tuple(f"t{number:03}" for number in range(300))
    tried = {}
    for edits, padding, shown in ((listed, 0, 8), (listed, 1500, 5), (listed[200:], 0, 0)):
        made = cluster(may_create_token=False, edits=edits, padding=padding, listed=listed[::-1])
        result = await vcuda(made, tmp_path, "top", "namespaces", "--once")
        tokens = list(filter(None, made.shown[-1].split(",")))
        assert [each.split(".")[1] for each in tokens] == list(edits[:shown]), result.stderr
        tried[edits[0], padding] = sum(path.endswith("/default/token") for path, _ in made.asked)
    assert tried == {("t000", 0): 16, ("t000", 1500): 16, ("t200", 0): 64}


async def test_a_tenant_who_names_namespaces_that_nobody_told_him_of_learns_what_to_name(tmp_path: Path) -> None:
    result = await vcuda(cluster(may_create_token=False), tmp_path, "pods", "-n", "team-*")
    assert result.stderr == (
        "vcuda: no such namespace is in a context of your kubeconfig, and you may list none; name one whole with -n\n"
    )


async def test_a_token_of_ones_own_is_shown_through_the_api_server_too(tmp_path: Path) -> None:
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    result = await vcuda(cluster(may_create_token=False), tmp_path, "pods", "--token-file", str(tmp_path / "token"))
    assert (result.exit_code, result.stderr) == (0, "")
    assert "llm" in result.stdout


async def test_an_order_by_use_asks_for_it_and_shows_it(tmp_path: Path) -> None:
    busy, idle = (
        pod(
            name,
            containers=(ContainerRow("main", 50, 40, (ShareRow("GPU-a", 0, 50, 40, ShareLive(cores_used=used)),)),),
        )
        for name, used in (("busy", 45.0), ("idle", 2.5))
    )
    scene = Cluster(pods=[busy, idle, pod("big", node=None)])
    result = await vcuda(scene, tmp_path, "pods", "--sort-by", "idle", "--sum", env={"COLUMNS": "50"})
    assert scene.asked[-1] == (f"{SERVICE}/view/pods", {"live": "1", "namespace": "research", "limit": "5000"})
    lines = result.stdout.splitlines()
    idle_end = lines[0].index("IDLE") + len("IDLE")
    assert [line[:idle_end].split()[-1] for line in lines if not line.startswith("  ")] == [
        "IDLE",
        "48",
        "5",
        "-",
        "53",
    ]
    assert "IDLE" not in (await vcuda(Cluster(pods=[pod("big", node=None)]), tmp_path, "pods")).stdout
    await vcuda(scene, tmp_path, "pods", "--sort-by", "cores")
    assert "live" not in scene.asked[-1][1]


async def test_that_there_is_nothing_is_said_on_standard_error_and_what_to_do(tmp_path: Path) -> None:
    wider = "-A lists those of all namespaces"
    for words, said in (
        (["pods"], f"No pods with GPUs in namespace research found; {wider}."),
        (["pods", "-A"], "No pods with GPUs found; docs/ask-for-a-share.md has a pod that asks for a share."),
        (["pods", "-A", "--status", "Bound"], "No pods with GPUs match --status bound."),
        (["pods", "-A", "--node", "nosuch", "--name", "x"], "No pods with GPUs match --node nosuch --name x."),
        (["pods", "--node", "a"], "No pods with GPUs in namespace research match --node a."),
        (["events"], f"No events in namespace research found; {wider}."),
        (["events", "--kind", "GPU"], "No events in namespace research match --kind gpu."),
        (["events", "-A"], "No events found."),
        (
            ["nodes"],
            "No nodes with GPUs found; kubectl vcuda doctor says why, and docs/install.md what a node needs.",
        ),
        (["nodes", "--model", "h100", "--free"], "No nodes with GPUs match --model h100 --free."),
        (["top", "pods", "--once"], "No pods with GPUs in namespace research found."),
        (["top", "--once", "--name", "x"], "No nodes with GPUs match --name x."),
        (["top", "namespaces", "-n", "team-*"], "No namespaces with GPUs match -n team-*."),
    ):
        result = await vcuda(Cluster(), tmp_path, *words)
        assert (result.exit_code, result.stdout, result.stderr) == (0, "", f"{said}\n")
        assert json.loads((await vcuda(Cluster(), tmp_path, *words, "-o", "json")).stdout)["items"] == []


async def test_wide_has_more_columns_and_cuts_nothing(tmp_path: Path) -> None:
    result = await vcuda(cluster(), tmp_path, "pods", "-A", "-o", "wide", env={"COLUMNS": "40"})
    assert "PRIORITY" in result.stdout
    assert "research/train" in result.stdout
    assert "insufficient vcuda-core on any one GPU" in result.stdout


async def test_pods_that_ask_by_claims_say_so(tmp_path: Path) -> None:
    by_claim = ContainerRow("main", 20, 8, source=ShareSource.CLAIM, claim="mine")
    unmade = ContainerRow("side", 100, 0, source=ShareSource.CLAIM)
    scene = Cluster(pods=[pod("a", containers=(by_claim,)), pod("b", containers=(unmade,)), pod("c")])
    lines = (await vcuda(scene, tmp_path, "pods")).stdout.splitlines()
    assert lines[0].split()[-1] == "CLAIM"
    assert [line.split()[-1] for line in lines[1:]] == ["mine", "yes", "-"]
    read = json.loads((await vcuda(scene, tmp_path, "pods", "-o", "json")).stdout)["items"]
    assert [(each["containers"][0]["source"], each["containers"][0]["claim"]) for each in read] == [
        ("claim", "mine"),
        ("claim", None),
        ("device-plugin", None),
    ]


def lately() -> Cluster:
    ill = ClusterEventRow(ClusterEventKind.GPU, AT - 5, AT - 5, 1, "", "", "", "node-b", "GPU 1 unavailable")
    recent = [
        ill,
        event("big", ClusterEventKind.PENDING, count=3),
        event("web", ClusterEventKind.ENDED, namespace="shop"),
    ]
    pods = [pod("big", node=None), pod("web", "shop")]
    return Cluster(pods=pods, events=recent)


async def test_the_events_of_the_context_s_namespace(tmp_path: Path) -> None:
    scene = lately()
    result = await vcuda(scene, tmp_path, "events")
    assert (result.exit_code, result.stderr) == (0, "")
    assert [line.split() for line in result.stdout.splitlines()] == [
        ["LAST", "SEEN", "KIND", "OBJECT", "NODE", "MESSAGE"],
        ["60s", "pending", "pod/big", "node-a", "what", "happened"],
    ]
    assert scene.asked[-1] == (f"{SERVICE}/view/events", {"namespace": "research", "limit": "5000"})


async def test_all_namespaces_have_nodes_and_gpus_too_the_newest_last(tmp_path: Path) -> None:
    lines = (await vcuda(lately(), tmp_path, "events", "-A", "-o", "wide")).stdout.splitlines()
    assert [line.split()[:4] for line in lines[1:]] == [
        ["research", "60s", "pending", "pod/big"],
        ["shop", "60s", "ended", "pod/web"],
        ["-", "5s", "gpu", "node/node-b"],
    ]
    assert lines[1].split()[5:7] == ["3", "2m"]


async def test_which_events_is_asked_of_the_scheduler(tmp_path: Path) -> None:
    scene = lately()
    await vcuda(scene, tmp_path, "events", "-A", "--node", "node/node-b", "--kind", "gpu")
    assert scene.asked[-1][1] == {"kind": "gpu", "node": "node-b", "limit": "5000"}


async def test_an_older_scheduler_has_no_events(tmp_path: Path) -> None:
    scene = lately()
    scene.answers[f"{SERVICE}/view/events"] = (404, '{"error": "no such view; the views are ...", "leader": "a"}')
    result = await vcuda(scene, tmp_path, "events")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith("vcuda: the scheduler is older than this command; upgrade it")
