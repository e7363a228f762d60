"""`vcuda explain` through the API server's proxy: any replica may answer, the one that leads is found."""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

import aiohttp
import msgspec
import pytest
import yaml
from aiohttp import web
from click.testing import CliRunner

from deviceplugin.cli import main
from deviceplugin.cli.explain import why_unknown
from deviceplugin.kube.pods import PODS
from deviceplugin.model.cluster_view import Explanation, GpuVerdict, NodeVerdict
from sandbox.apiserver.kubeconfig import write_kubeconfig
from tests.cli.command_runner import run, vcuda
from tests.cli.view_server import SERVICE, Cluster, refusal
from tests.cluster.http.scene import serving
from tests.ui.cluster import A100, MadeCluster
from tests.ui.cluster import serving as serving_made

Json = dict[str, Any]
_SERVICE = re.compile(r"/api/v1/namespaces/gpu/services/https:vcuda-scheduler:https/proxy(/.*)")
FORBIDDEN = (
    'services "https:vcuda-scheduler:https" is forbidden: User "ann" cannot get resource "services/proxy" in API '
    'group "" in the namespace "gpu"'
)


@asynccontextmanager
async def proxying(
    port: int, *, may_ask: bool = True, pods: Mapping[str, Json | None] = MappingProxyType({})
) -> AsyncIterator[tuple[str, list[str]]]:
    """The proxy of an API server before one replica. `pods` by path; None: there is none."""
    paths: list[str] = []

    async def forward(request: web.Request) -> web.StreamResponse:
        paths.append(request.path)
        if request.path in pods:
            found_pod = pods[request.path]
            status = {"kind": "Status", "message": "not found"}
            return web.json_response(found_pod or status, status=200 if found_pod else 404)
        if (found := _SERVICE.fullmatch(request.path)) is None or not may_ask:
            return web.json_response({"kind": "Status", "message": FORBIDDEN}, status=403)
        url = f"https://127.0.0.1:{port}{found[1]}?{request.query_string}"
        async with aiohttp.ClientSession() as session, session.get(url, ssl=False) as answer:
            return web.Response(status=answer.status, body=await answer.read(), content_type=answer.content_type)

    app = web.Application()
    app.router.add_get("/{any:.*}", forward)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}", paths
    finally:
        await runner.cleanup()


async def explain(folder: Path, url: str, pod: str, **cluster: str) -> tuple[int, str]:
    """`cluster`: further keys of the kubeconfig's cluster."""
    kubeconfig = write_kubeconfig(folder / "kubeconfig", url)
    document = yaml.safe_load(kubeconfig.read_text())
    document["clusters"][0]["cluster"] |= cluster
    kubeconfig.write_text(yaml.safe_dump(document))
    args = ["explain", pod, "--kubeconfig", str(kubeconfig), "--scheduler-namespace", "gpu"]
    result = await asyncio.to_thread(CliRunner().invoke, main, args)
    return result.exit_code, result.stdout + result.stderr


async def test_the_http_proxy_of_the_kubeconfig_is_used(tmp_path: Path) -> None:
    async with serving() as scene, proxying(scene.server.port) as (url, _):
        code, text = await explain(tmp_path, "http://api.invalid", "d/p", **{"proxy-url": url})
        assert (code, text.startswith("d/p: ")) == (0, True), text


async def test_a_caller_who_may_read_an_unknown_pod_learns_why_it_is_unknown(tmp_path: Path) -> None:
    ended = gpu_pod({"tencent.com/vcuda-core": "50"}, phase="Succeeded")
    async with (
        serving() as scene,
        proxying(
            scene.server.port,
            pods={"/api/v1/namespaces/d/pods/unknown": ended, "/api/v1/namespaces/d/pods/unknown-and-gone": None},
        ) as (url, _),
    ):
        code, text = await explain(tmp_path, url, "d/unknown-and-gone")
        gone = (
            "pod d/unknown-and-gone does not exist; if it is in another namespace, give -n "
            "(a suspended Job, or one without quota, has no pods)"
        )
        assert (code, text) == (1, f"vcuda: {gone}\n")
        code, text = await explain(tmp_path, url, "d/unknown")
        assert (code, text) == (1, "vcuda: pod d/unknown has finished (Succeeded) and has no GPU any more\n")
        code, text = await explain(tmp_path, url, "d/unknown-to-me")
        unknown = "vcuda: pod d/unknown-to-me not found; if it is in another namespace, give -n\n"
        assert (code, text) == (1, unknown), "the API server says 403"


async def test_without_a_scheduler_nothing_is_said_about_the_pod(tmp_path: Path) -> None:
    answers = {
        f"{SERVICE}/explain": refusal(404, 'services "vcuda-scheduler" not found'),
        "/api/v1/namespaces/d/pods/p": refusal(404, 'pods "p" not found'),
    }
    result = await vcuda(Cluster(answers=answers), tmp_path, "explain", "d/p")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith("vcuda: no scheduler found: there is no service vcuda-scheduler ")


def gpu_pod(limits: Json, *, phase: str = "Pending") -> Json:
    spec = {"containers": [{"name": "main", "resources": {"limits": limits}}]}
    return {"metadata": {}, "spec": spec, "status": {"phase": phase}}


def test_why_the_scheduler_knows_nothing_of_a_pod(subtests: pytest.Subtests) -> None:
    none = "pod d/p requests no vcuda resources: no container has limits of vcuda-core or vcuda-memory"
    by_claims = "pod d/p asks by ResourceClaims, which the scheduler watches with the chart's agent.dra.enabled only"
    claiming = gpu_pod({})
    claiming["spec"] = {"containers": [], "resourceClaims": [{"name": "gpu"}]}
    cases: list[tuple[Json, str]] = [
        (gpu_pod({}), none),
        (gpu_pod({"cpu": "1"}), none),
        ({"metadata": {}, "spec": {"containers": [{"name": "main", "resources": {"limits": None}}]}}, none),
        (gpu_pod({"x/vcuda-core": "1"}), ""),
        (gpu_pod({"x/vcuda-gpu": "1"}), by_claims),
        (claiming, by_claims),
        (gpu_pod({}, phase="Failed"), "pod d/p has finished (Failed) and has no GPU any more"),
    ]
    for document, said in cases:
        with subtests.test(document=document):
            found = why_unknown("d/p", PODS.read(json.dumps(document).encode()))
            assert found.startswith(said)
            assert bool(found) == bool(said)


async def test_a_right_that_is_missing_is_said_in_the_api_servers_words(tmp_path: Path) -> None:
    async with serving() as scene, proxying(scene.server.port, may_ask=False) as (url, _):
        code, text = await explain(tmp_path, url, "d/elsewhere")
        assert code == 1
        assert text.startswith(f"vcuda: {FORBIDDEN}; an administrator gives you the right with ")


async def test_an_answer_of_another_version_is_one_sentence(tmp_path: Path) -> None:
    for found in ({"pod": "d/p"}, {"pod": "d/p", "sentence": 7}, {"pod": "d/p", "sentence": "", "nodes": [{}]}):
        result = await vcuda(Cluster(explanations={"d/p": found}), tmp_path, "explain", "d/p")
        assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (1, "", 1)
        assert result.stderr.startswith("vcuda: the scheduler's answer is of another version of vcuda")


async def test_an_api_server_that_is_away_is_one_sentence(tmp_path: Path) -> None:
    code, text = await explain(tmp_path, "http://127.0.0.1:9", "p")
    assert (code, text.count("\n")) == (1, 1)
    assert text.startswith("vcuda: 127.0.0.1:9 cannot be reached: Connection refused; check that it runs, or ")


def test_a_wrong_flag_is_one_sentence(subtests: pytest.Subtests) -> None:
    cases: list[tuple[list[str], int, str]] = [
        (["--url", "http://x"], 2, "--url: 'http://x' is not an address such as https://10.0.0.7:8443"),
        (["--url", "https://x", "--ca-file", "/none"], 1, "--ca-file: /none cannot be used: "),
        (["--insecure"], 2, "--ca-file and --insecure go with --url"),
    ]
    for args, code, message in cases:
        with subtests.test(args=args):
            result = CliRunner().invoke(main, ["explain", "p", *args])
            assert (result.exit_code, result.stderr.startswith(f"vcuda: {message}")) == (code, True), result.stderr


async def test_an_untrusted_certificate_is_one_sentence_with_the_way_out(tmp_path: Path) -> None:
    async with serving() as scene:
        refused = await run("explain", "d/p", "--url", scene.url)
        assert (refused.exit_code, refused.stderr.count("\n")) == (1, 1)
        assert "its certificate is not trusted (" in refused.stderr
        assert "give --ca-file FILE or --insecure" in refused.stderr
        ca = tmp_path / "ca.pem"
        ca.write_bytes(scene.ca.chain)
        for trust in (["--insecure"], ["--ca-file", str(ca)]):
            found = await run("explain", "d/p", "--url", scene.url, "-o", "json", *trust)
            assert json.loads(found.stdout)["pod"] == "d/p", found.output


async def test_pods_are_named_as_kubectl_names_them(tmp_path: Path, subtests: pytest.Subtests) -> None:
    """The namespace of the context is the default, and `pod/llm` is no namespace named pod."""
    cases: list[tuple[list[str], str]] = [
        (["pod/llm"], "research/llm"),
        (["llm"], "research/llm"),
        (["llm", "-n", "other"], "other/llm"),
        (["other/llm"], "other/llm"),
        (["other/pod/llm"], "other/llm"),
        (["po/llm", "--namespace", "other"], "other/llm"),
    ]
    for args, asked in cases:
        with subtests.test(args=args):
            cluster = Cluster()
            result = await vcuda(cluster, tmp_path, "explain", *args, namespace="research")
            assert result.exit_code == 1
            assert [query for path, query in cluster.asked if path.endswith("/explain")] == [{"pod": asked}]


async def test_what_is_no_name_of_a_pod_is_one_sentence(tmp_path: Path, subtests: pytest.Subtests) -> None:
    for name in ["a/b/c", "/llm", "a/", "", "pod/"]:
        with subtests.test(name=name):
            result = await vcuda(Cluster(), tmp_path, "explain", name)
            assert result.exit_code == 2
            said = "is not the name of a pod; write NAME, pod/NAME or NAMESPACE/NAME; see vcuda explain --help\n"
            assert result.stderr.endswith(said)
    two = await vcuda(Cluster(), tmp_path, "explain", "research/llm", "-n", "batch")
    assert (two.exit_code, "name two namespaces; give one of them" in two.stderr) == (2, True)


async def test_why_a_bound_pod_is_there_stands_below_what_it_holds(tmp_path: Path) -> None:
    document = {"pod": "d/p", "sentence": "the pod is bound to node a", "asked": ["container main: 50 cores"], "at": 0}
    document |= {"reasons": {}, "nodes": [], "left_out": 0, "why": ["node a is the only one that fits", "  next: b"]}
    said = (await vcuda(Cluster(explanations={"d/p": document}), tmp_path, "explain", "d/p")).stdout
    assert said.splitlines()[1:] == [
        "  container main: 50 cores",
        "  node a is the only one that fits",
        "    next: b",
        "  cores: 1/100 of a GPU's time",
    ]


async def test_an_explanation_as_json_and_yaml(tmp_path: Path) -> None:
    found = Explanation("d/p", "it waits", node="a", reasons={"no room": 2}, now=True)
    document = json.loads(msgspec.json.encode(found))
    cluster = Cluster(explanations={"d/p": document})
    assert json.loads((await vcuda(cluster, tmp_path, "explain", "d/p", "-o", "json")).stdout) == document
    assert yaml.safe_load((await vcuda(cluster, tmp_path, "explain", "d/p", "-o", "yaml")).stdout) == document


async def test_text_of_others_in_an_explanation_moves_no_cursor_and_begins_no_line(tmp_path: Path) -> None:
    """A node's inventory and a pod's condition are written by others; the terminal obeys what it prints."""
    evil = "ok\x1b]0;owned\x07\x9b2J\nnode z: all GPUs are free\u202e"
    gpu = {"uuid": evil, "minor": 0, "model": evil, "against": evil, "holders": [evil], "nearest": True}
    node = {"node": evil, "reason": evil, "fix": evil, "gpus": [gpu]}
    document = {"pod": "d/p", "sentence": evil, "asked": [evil], "at": 0, "reasons": {evil: 1}, "nodes": [node]}
    document |= {"left_out": 0, "why": [evil], "condition": evil, "node": None, "now": False, "main_reason": evil}
    for words, count in (((), 11), (("--all",), 12)):
        said = (await vcuda(Cluster(explanations={"d/p": document}), tmp_path, "explain", "d/p", *words)).stdout
        lines = said.splitlines()
        assert len(lines) == count
        assert all(line.isprintable() for line in lines)
        assert not any(line.startswith("node z") for line in lines)
    for output in ("json", "yaml"):
        raw = (await vcuda(Cluster(explanations={"d/p": document}), tmp_path, "explain", "d/p", "-o", output)).stdout
        assert yaml.safe_load(raw) == document
        assert all(line.isprintable() for line in raw.splitlines())


def crowded() -> MadeCluster:
    """240 nodes of eight GPUs with two pods each; some nodes without an agent, and GPUs that are unhealthy."""
    made = MadeCluster()
    for number in range(240):
        name = f"gpu-a100-{number:03}"
        made.add_node(name, 8, A100, ill=(3,) if number % 9 == 0 else ())
        for at in range(16):
            made.runs(f"team-{at}/job-{number}-{at}", name, at // 2, 20 + at + number % 7, 40 + at)
    for number in range(0, 240, 30):
        made.lose_agent(f"gpu-a100-{number:03}")
    return made


async def test_in_a_large_cluster_the_summary_has_at_most_forty_lines(
    tmp_path: Path, subtests: pytest.Subtests
) -> None:
    made = crowded()
    cases: list[tuple[tuple[int, int], str, str]] = [
        ((90, 400), "memory request larger than any GPU (232 of 240 nodes)", "fix: request less memory, allow another"),
        ((90, 80), "insufficient vcuda-core on any one GPU (232 of 240 nodes)", " must become free on GPU"),
        ((800, 0), "insufficient whole GPUs (208 of 240 nodes)", "must become free on GPUs 0-7 together"),
    ]
    token = tmp_path / "token"
    token.write_text("good")
    for at, ((cores, blocks), reason, fix) in enumerate(cases):
        made.waits(f"research/p{at}", cores, blocks)
        with subtests.test(reason=reason):
            async with serving_made(made) as url:
                reach = ("--url", url, "--insecure", "--token-file", str(token))
                short, full = [
                    (await run("explain", f"research/p{at}", *words, *reach)).stdout.splitlines()
                    for words in ((), ("--all",))
                ]
            assert short[0] == f"research/p{at} is Pending: {reason}"
            assert len(short) <= 40 < len(full)
            assert [len([line for line in lines if line.startswith("node ")]) for lines in (short, full)] == [3, 20]
            assert fix in next(line for line in short if line.startswith("  fix: ")), "of the nearest node"
            assert not [line for line in (*short, *full) if "block" in line]
            assert short[-1] == (
                "These are the 3 nodes nearest to fitting. --all shows 17 more in full; of 220 more only the reason is "
                "counted above."
            )
            assert full[-1] == "Of 220 more nodes, farther from fitting, only the reason is counted above."


async def test_the_pods_on_the_nearest_gpu_are_named(tmp_path: Path) -> None:
    gpus = [
        GpuVerdict(f"GPU-{at}", at, "A100", "only 30 cores free", ("d/a: 70 cores, 2 GiB (bound)",)) for at in (0, 1)
    ]
    gpus += [GpuVerdict("GPU-2", 2, "A100", "only 40 cores free", ("d/b: 60 cores, 1 GiB (bound)",), nearest=True)]
    nodes = (NodeVerdict("n", "insufficient vcuda-core on any one GPU", "10 more cores", tuple(gpus)),)
    document = msgspec.to_builtins(
        Explanation("d/p", "the pod fits on none", nodes=nodes, main_reason="no room (the node)")
    )
    text = (await vcuda(Cluster(explanations={"d/p": document}), tmp_path, "explain", "d/p")).stdout
    assert text.splitlines() == [
        "d/p is Pending: no room (the node)",
        "  the pod fits on none",
        "",
        "node n: insufficient vcuda-core on any one GPU",
        "  fix: 10 more cores",
        "  GPU 2: only 40 cores free; d/b: 60 cores, 1 GiB (bound)",
        "  GPUs 0 and 1: only 30 cores free",
    ]
