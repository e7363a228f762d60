"""`vcuda doctor` of a cluster: each check, what it says where something is broken, and what it does without rights."""

import base64
import datetime as dt
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from deviceplugin import __version__
from deviceplugin.cluster.certificates.keypair import make_ca
from sandbox.emulated_gpus import REPOSITORY
from tests.cli.command_runner import run, vcuda
from tests.cli.doctor_cluster import PODS, Release, own_pod, scheduler_metrics, webhook
from tests.cli.view_server import SERVICE, refusal
from tests.scheduler.scene import gpu_node

NAMES = (
    *("api-server", "rights", "scheduler", "scheduler-replicas", "versions", "webhook", "admission", "kube-scheduler"),
    *("agents", "gpu-nodes", "inventories", "allocatable", "other-plugins", "pending-pods"),
)


async def findings(release: Release, folder: Path, *args: str) -> dict[str, dict[str, str]]:
    result = await vcuda(release, folder, "doctor", "-o", "json", *args)
    document = json.loads(result.stdout)
    found = {each["check"]: each for each in document["checks"]}
    assert result.exit_code == {"failed": 1, "skipped": 3}.get(document["status"], 0), result.output
    assert "Traceback" not in result.output
    return found


def healthy() -> Release:
    return Release(view={"scheduler_version": __version__, "pods_pending": 0})


async def test_a_healthy_installation_is_ok_line_by_line(tmp_path: Path) -> None:
    release = healthy()
    result = await vcuda(release, tmp_path, "doctor")
    lines = result.stdout.splitlines()
    assert (result.exit_code, result.stderr) == (0, ""), result.output
    assert [line.split(":")[0] for line in lines[:-1]] == [f"ok       {name}" for name in NAMES]
    assert lines[-1] == f"{len(NAMES)} ok, 0 warning, 0 failed, 0 skipped"
    ((path, pod),) = release.tried
    assert path == "/api/v1/namespaces/research/pods", "in the namespace of the context"
    assert pod["spec"]["containers"][0]["resources"]["limits"]["tencent.com/vcuda-core"] == "1"


async def test_the_documents_are_for_programs(tmp_path: Path) -> None:
    result = await vcuda(healthy(), tmp_path, "doctor", "-o", "json")
    document = json.loads(result.stdout)
    assert document["status"] == "ok"
    assert [each["check"] for each in document["checks"]] == [*NAMES]
    assert set(document["checks"][0]) == {"check", "outcome", "message", "advice"}
    assert yaml.safe_load((await vcuda(healthy(), tmp_path, "doctor", "-o", "yaml")).stdout) == document


def _old(release: Release) -> None:
    release.version = "v1.31.4+k3s1"


def _unknown_version(release: Release) -> None:
    release.version = "latest"


def _no_leader(release: Release) -> None:
    release.view["leader"] = ""


def _half_of_the_replicas(release: Release) -> None:
    release.deployment = {"readyReplicas": 1, "updatedReplicas": 2, "replicas": 2}
    release.own_pods[3] = own_pod(
        "vcuda-scheduler-2", "vcuda-scheduler", node="node-b", ready=False, waiting="ImagePullBackOff"
    )


def _image_away(release: Release) -> None:
    release.daemon_set = {"desiredNumberScheduled": 2, "numberReady": 1, "updatedNumberScheduled": 2}
    says = 'failed to resolve reference "vcuda:1": dial tcp:\nconnection refused'
    release.own_pods[1] = own_pod(
        "vcuda-agent-b", "vcuda-agent", node="node-b", ready=False, waiting="ErrImagePull", says=says
    )


def _no_replica(release: Release) -> None:
    release.deployment = {"readyReplicas": 0, "updatedReplicas": 2, "replicas": 2}


def _older_revision(release: Release) -> None:
    release.deployment = {"readyReplicas": 2, "updatedReplicas": 1, "replicas": 2}


def _one_release_apart(release: Release) -> None:
    release.metrics["vcuda-agent-a:5678"] = 'vcuda_build_info{version="0.2.0"} 1.0\n'


def _far_apart(release: Release) -> None:
    release.metrics["vcuda-agent-a:5678"] = 'vcuda_build_info{version="0.9.0"} 1.0\n'


def _no_webhook(release: Release) -> None:
    release.webhook = None


def _hook(release: Release) -> dict[str, Any]:
    assert release.webhook is not None
    found: dict[str, Any] = release.webhook["webhooks"][0]["clientConfig"]
    return found


def _no_bundle(release: Release) -> None:
    _hook(release)["caBundle"] = ""


def _garbage_bundle(release: Release) -> None:
    _hook(release)["caBundle"] = base64.b64encode(b"not a certificate").decode()


def _ends_soon(release: Release) -> None:
    ca = make_ca(dt.datetime.now(dt.UTC), dt.timedelta(days=300))
    release.webhook = webhook(ca.chain)
    ends = ca.certificate.not_valid_after_utc.timestamp()
    for number in (1, 2):
        release.metrics[f"https:vcuda-scheduler-{number}:8443"] = scheduler_metrics(leads=number == 1, ca_ends=ends)


def _foreign_bundle(release: Release) -> None:
    other = make_ca(dt.datetime(2026, 2, 1, tzinfo=dt.UTC), dt.timedelta(days=300))
    _hook(release)["caBundle"] = base64.b64encode(other.chain).decode()


def _elsewhere(release: Release) -> None:
    _hook(release)["service"]["namespace"] = "old"


def _unchanged(release: Release) -> None:
    release.mutates = False


def _untrusted(release: Release) -> None:
    release.admission_error = (
        500,
        'Internal error occurred: failed calling webhook "pods.vcuda.tencent.com": x509: signed by unknown authority',
    )


def _denied(release: Release) -> None:
    release.admission_error = (403, 'admission webhook "pods.vcuda.tencent.com" denied the request: no')


def _quota(release: Release) -> None:
    release.admission_error = (403, "exceeded quota: gpus, requested: tencent.com/vcuda-core=1")


def _may_not_create(release: Release) -> None:
    release.admission_error = (403, 'pods is forbidden: User "ann" cannot create resource "pods" in API group ""')


def _never_asked(release: Release) -> None:
    release.metrics["https:vcuda-scheduler-1:8443"] = scheduler_metrics(leads=True, asked=0)
    release.metrics["https:vcuda-scheduler-2:8443"] = scheduler_metrics(leads=False, asked=0)
    release.view |= {"pods_pending": 2, "pending_by_reason": {}}


def _asked_by_a_stranger(release: Release) -> None:
    release.metrics["https:vcuda-scheduler-1:8443"] += (
        'vcuda_scheduler_requests_total{verb="filter",outcome="unauthorized"} 4.0\n'
    )


def _agent_not_ready(release: Release) -> None:
    release.daemon_set = {"desiredNumberScheduled": 2, "numberReady": 1, "updatedNumberScheduled": 2}
    release.own_pods[1] = own_pod(
        "vcuda-agent-b", "vcuda-agent", node="node-b", ready=False, waiting="CrashLoopBackOff"
    )


def _agent_old(release: Release) -> None:
    release.daemon_set = {"desiredNumberScheduled": 2, "numberReady": 2, "updatedNumberScheduled": 1}


def _no_daemon_set(release: Release) -> None:
    release.daemon_set = None


def _no_node_selected(release: Release) -> None:
    release.daemon_set = {}


def _node_not_ready(release: Release) -> None:
    release.objects[0]["status"]["conditions"] = [{"type": "Ready", "status": "Unknown"}]


def _labelled(release: Release) -> None:
    release.objects.append(
        {"metadata": {"name": "node-c", "uid": "c", "labels": {"nvidia.com/gpu.present": "true"}}, "status": {}}
    )


def _annotation(release: Release, text: str) -> None:
    release.objects[1]["metadata"]["annotations"]["tencent.com/vcuda-inventory"] = text


def _malformed(release: Release) -> None:
    _annotation(release, '{"version": 7}')


def _missing(release: Release) -> None:
    _annotation(release, "")


def _stale(release: Release) -> None:
    release.objects.append(gpu_node("node-gone"))


def _offers_less(release: Release) -> None:
    release.objects[1]["status"]["allocatable"]["tencent.com/vcuda-core"] = "100"


def _other_plugin(release: Release) -> None:
    release.objects[0]["status"]["allocatable"]["nvidia.com/gpu"] = "2"


def _other_driver(release: Release) -> None:
    said = {"uuid": {"string": "GPU-node-b-1"}, "minor": {"int": 1}}
    release.slices = [
        {"metadata": {"name": str(number)}, "spec": {"driver": "gpu.nvidia.com", "devices": devices}}
        for number, devices in enumerate([[], [], [{"name": "gpu-1", "attributes": said}]])
    ]


def _no_slices(release: Release) -> None:
    release.slices = None


def _pending(release: Release) -> None:
    release.view |= {"pods_pending": 3, "pending_by_reason": {"too few cores": 2, "no agent": 1}}


ROUNDS: tuple[tuple[tuple[Callable[[Release], None], str, str, str], ...], ...] = (
    ((_old, "api-server", "failed", "v1.31.4+k3s1 is older than 1.32"),),
    (
        (_unknown_version, "api-server", "warning", "'latest'"),
        (_no_leader, "scheduler", "failed", "none leads"),
        (
            _half_of_the_replicas,
            "scheduler-replicas",
            "warning",
            "1 of 2 replicas ready: vcuda-scheduler-2: extender Im",
        ),
        (_one_release_apart, "versions", "warning", "0.2.0"),
        (_no_bundle, "webhook", "failed", "no caBundle"),
        (_denied, "admission", "ok", "it denies a trial pod"),
        (_asked_by_a_stranger, "kube-scheduler", "warning", "refused 4 requests"),
        (_agent_not_ready, "agents", "failed", "vcuda-agent-b on node-b: agent CrashLoopBackOff"),
        (_agent_not_ready, "inventories", "warning", "without a ready agent: node-b"),
        (_node_not_ready, "gpu-nodes", "warning", "not Ready: node-a"),
    ),
    (
        (_no_replica, "scheduler-replicas", "failed", "0 of 2 replicas ready"),
        (_far_apart, "versions", "failed", "more than one release apart"),
        (_garbage_bundle, "webhook", "failed", "cannot be read"),
        (_quota, "admission", "skipped", "exceeded quota"),
        (_never_asked, "kube-scheduler", "failed", "no kube-scheduler has asked"),
        (_agent_old, "agents", "warning", "1 of them of an older revision"),
        (_labelled, "gpu-nodes", "warning", "nothing offers them: node-c"),
        (_malformed, "inventories", "failed", "1 node cannot be read, and no GPU pod is placed there: node-b"),
        (_other_plugin, "other-plugins", "failed", "as nvidia.com/gpu: node-a"),
    ),
    (
        (_older_revision, "scheduler-replicas", "warning", "1 of 2 replicas of an older revision"),
        (_foreign_bundle, "webhook", "failed", "has not the CA that the scheduler uses"),
        (_unchanged, "admission", "failed", "does not change a GPU pod"),
        (_pending, "pending-pods", "warning", "3 GPU pods pending: 2 × too few cores, 1 × no agent"),
        (_missing, "inventories", "failed", "without an inventory: node-b"),
        (_no_slices, "other-plugins", "ok", "no other DRA driver"),
    ),
    (
        (_elsewhere, "webhook", "failed", "service in namespace old"),
        (_untrusted, "admission", "failed", "x509"),
        (_stale, "inventories", "warning", "node-gone"),
        (_offers_less, "allocatable", "warning", "node-b offers 100 cores and 128 blocks and has 200 cores"),
        (_no_daemon_set, "agents", "skipped", "installed no agent"),
        (_other_driver, "other-plugins", "failed", "offers to claims, gpu.nvidia.com: node-b"),
    ),
    (
        (_ends_soon, "webhook", "warning", "the CA of the webhook ends on 20"),
        (_no_node_selected, "agents", "warning", "no node is selected"),
    ),
    (
        (_no_webhook, "webhook", "warning", "there is no webhook"),
        (_no_webhook, "admission", "skipped", "no webhook"),
    ),
    (
        (_may_not_create, "admission", "skipped", "you may not create pods in namespace research"),
        (
            _image_away,
            "agents",
            "failed",
            'agent ErrImagePull: failed to resolve reference "vcuda:1": dial tcp: connection',
        ),
    ),
)
"""What can be broken at the same time; of each part what the check says."""


async def test_what_is_broken_is_named_with_what_to_do(tmp_path: Path, subtests: pytest.Subtests) -> None:
    for broken in ROUNDS:
        with subtests.test(broken=broken):
            release = healthy()
            for damage in dict.fromkeys(damage for damage, *_ in broken):
                damage(release)
            every = await findings(release, tmp_path)
            for _, check, outcome, says in broken:
                found = every[check]
                assert (found["outcome"], says in found["message"]) == (outcome, True), found
                assert found["advice"] or outcome in ("ok", "skipped")


async def test_what_the_caller_may_not_do_is_skipped_and_names_the_right(tmp_path: Path) -> None:
    release = healthy()
    release.may_create_token = False
    release.forbidden = ("/api/v1/nodes", "/api/v1/namespaces/", "/apis/apps", "/apis/admissionregistration")
    found = await findings(release, tmp_path)
    outcomes = {name: each["outcome"] for name, each in found.items()}
    assert outcomes.pop("api-server") == outcomes.pop("rights") == "ok"
    assert set(outcomes.values()) == {"skipped"}
    assert "get daemonsets in namespace kube-system" in found["agents"]["message"]
    assert "list nodes" in found["other-plugins"]["message"]
    assert "operators.subjects" in found["scheduler"]["advice"]
    result = await vcuda(release, tmp_path, "doctor")
    assert (result.exit_code, result.stdout.splitlines()[-1]) == (
        3,
        f"2 ok, 0 warning, 0 failed, {len(NAMES) - 2} skipped",
    )
    assert result.stderr.startswith("vcuda: nothing of the installation was checked, because you lack the rights")
    release.forbidden = release.forbidden[1:]
    assert (await vcuda(release, tmp_path, "doctor")).exit_code == 0, "something was checked"


async def test_a_namespace_that_the_webhook_leaves_out_says_nothing_about_it(tmp_path: Path) -> None:
    release = healthy()
    by_name = (await findings(release, tmp_path, "-n", "left-out"))["admission"]
    assert (by_name["outcome"], "kubernetes.io/metadata.name" in by_name["message"]) == ("skipped", True)
    release.labels = {"tencent.com/vcuda-webhook": "ignore"}
    assert "tencent.com/vcuda-webhook" in (await findings(release, tmp_path))["admission"]["message"]
    release.forbidden = ("/api/v1/namespaces/research",)
    release.mutates = False
    assert release.tried == []
    release.forbidden = ()
    release.labels = {"other": "label"}
    assert (await findings(release, tmp_path))["admission"]["outcome"] == "failed"


async def test_rights_that_are_missing_are_named(tmp_path: Path) -> None:
    release = healthy()
    release.may_not = ("get services/proxy", "create serviceaccounts/token")
    found = (await findings(release, tmp_path))["rights"]
    assert found["outcome"] == "warning"
    assert "in namespace kube-system you may not get services/proxy" in found["message"]
    assert "operators.subjects or tenants.subjects" in found["advice"]


async def test_a_tenant_needs_no_right_of_operators(tmp_path: Path) -> None:
    release = healthy()
    assert (await findings(release, tmp_path))["rights"]["message"].endswith("need, for all pods")
    release.may_not = ("create serviceaccounts/token vcuda-view",)
    found = (await findings(release, tmp_path))["rights"]
    assert (found["outcome"], "for the pods of namespace research and sums of all" in found["message"]) == ("ok", True)
    release.may_not = ("create serviceaccounts/token",)
    found = (await findings(release, tmp_path))["rights"]
    assert (found["outcome"], "the ClusterRole edit in namespace research" in found["advice"]) == ("warning", True)


async def test_a_command_that_asks_the_api_server_names_no_url(tmp_path: Path) -> None:
    for command in ("doctor", "bundle"):
        missing = await run(command, env={"KUBECONFIG": str(tmp_path / "none")})
        assert missing.stderr.endswith("exists; pass --kubeconfig FILE\n"), missing.stderr
        refused = await run(command, "--url", "https://127.0.0.1:1")
        said = f"{command} asks the API server; leave out --url and give a kubeconfig; see vcuda {command} --help"
        assert (refused.exit_code, refused.stderr) == (2, f"vcuda: {said}\n")
    missing = await run("nodes", env={"KUBECONFIG": str(tmp_path / "none")})
    assert missing.stderr.endswith("exists; pass --kubeconfig FILE, or --url https://HOST:8443 of the scheduler\n")


async def test_agents_behind_a_network_policy_fail_nothing(tmp_path: Path) -> None:
    release = healthy()
    del release.metrics["vcuda-agent-a:5678"]
    found = (await findings(release, tmp_path))["versions"]
    assert (found["outcome"], "agents could not be asked" in found["message"]) == ("ok", True)


async def test_one_agent_that_does_not_answer_hides_no_other_one(tmp_path: Path) -> None:
    """Of each image one is asked."""
    release = healthy()
    for at, image in enumerate(("sha256:1", "sha256:2")):
        release.own_pods[at]["status"]["containerStatuses"][0]["imageID"] = image
    for silent, speaks in (("a", "b"), ("b", "a")):
        release.metrics.pop(f"vcuda-agent-{silent}:5678", None)
        release.metrics[f"vcuda-agent-{speaks}:5678"] = 'vcuda_build_info{version="7.0.0"} 1.0\n'
        found = (await findings(release, tmp_path))["versions"]
        assert "7.0.0" in found["message"]
        assert "agents could not be asked" in found["message"]


async def test_one_replica_whose_metrics_are_no_metrics_hides_no_other_one(tmp_path: Path) -> None:
    release = healthy()
    release.metrics["https:vcuda-scheduler-2:8443"] = "{{{ nothing = of \x00 that"
    found = await findings(release, tmp_path)
    assert "kube-scheduler has asked the extender" in found["kube-scheduler"]["message"]


async def test_agents_alone_are_an_installation(tmp_path: Path) -> None:
    release = healthy()
    release.deployment = release.webhook = None
    release.own_pods = release.own_pods[:2]
    release.answers[f"{SERVICE}/view/cluster"] = refusal(404, 'services "https:vcuda-scheduler:https" not found')
    found = await findings(release, tmp_path)
    assert {each["outcome"] for each in found.values()} == {"ok", "skipped"}
    assert found["agents"]["outcome"] == found["versions"]["outcome"] == "ok"


async def test_nothing_installed_fails_with_what_to_do(tmp_path: Path) -> None:
    release = healthy()
    release.deployment = release.webhook = release.daemon_set = None
    release.own_pods, release.objects = [], [{"metadata": {"name": "node-a", "uid": "a"}}]
    release.answers[f"{SERVICE}/view/cluster"] = refusal(404, 'services "https:vcuda-scheduler:https" not found')
    found = await findings(release, tmp_path)
    assert found["scheduler"]["message"].startswith("no scheduler found: there is no service")
    assert found["scheduler"]["advice"].startswith("install the chart")
    assert found["agents"]["outcome"] == found["scheduler-replicas"]["outcome"] == "failed"


async def test_malformed_answers_are_sentences(tmp_path: Path, subtests: pytest.Subtests) -> None:
    for body in ["", "no JSON", "[]", '{"items": 7}', '{"gitVersion": 5, "status": "x", "spec": 1}']:
        with subtests.test(body=body):
            release = healthy()
            for path in ("/api/v1/nodes", PODS, "/apis/apps/v1/namespaces/kube-system/daemonsets/vcuda-agent"):
                release.answers[path] = (200, body)
            release.answers["/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/vcuda-scheduler"] = (
                200,
                body,
            )
            release.metrics["https:vcuda-scheduler-1:8443"] = "{{{ nothing = of \x00 that"
            found = await findings(release, tmp_path)
            assert found["agents"]["outcome"] in ("failed", "warning")


async def test_without_an_answer_the_rest_is_skipped(tmp_path: Path) -> None:
    release = healthy()
    release.answers["/version"] = refusal(401, "Unauthorized")
    found = await findings(release, tmp_path)
    assert (found["api-server"]["outcome"], "log in again" in found["api-server"]["advice"]) == ("failed", True)
    rest = [each for name, each in found.items() if name != "api-server"]
    assert {each["message"] for each in rest} == {"api-server has failed"}


async def test_a_dead_server_is_one_failed_check(tmp_path: Path) -> None:
    path = tmp_path / "kubeconfig"
    path.write_text(
        "{apiVersion: v1, kind: Config, current-context: a, clusters: [{name: a, cluster: {server: 'http://127.0.0.1:1'}}],"
        " contexts: [{name: a, context: {cluster: a, user: a}}], users: [{name: a, user: {token: t}}]}"
    )
    result = await run("doctor", env={"KUBECONFIG": str(path)})
    assert result.exit_code == 1
    assert result.stdout.splitlines()[0].startswith("failed   api-server: 127.0.0.1:1 cannot be reached")
    assert result.stdout.splitlines()[1].startswith(
        "         -> check that it runs, or name another one with --context"
    )


async def test_a_narrow_terminal_wraps_and_loses_no_word(tmp_path: Path) -> None:
    release = healthy()
    _other_plugin(release)
    wide = (await vcuda(release, tmp_path, "doctor")).stdout
    narrow = (await vcuda(release, tmp_path, "doctor", env={"COLUMNS": "40"})).stdout
    long = [line for line in narrow.splitlines() if len(line) > 40]
    assert [len(line.split()) for line in long] in ([], [1]), "a word of a command is not broken"
    assert narrow.split() == wide.split()


async def test_text_from_outside_cannot_move_the_cursor(tmp_path: Path) -> None:
    release = healthy()
    release.admission_error = (403, "exceeded \x1b[2J quota\nnext line")
    result = await vcuda(release, tmp_path, "doctor")
    assert "\x1b" not in result.stdout
    assert result.stdout.count("\n") == len(NAMES) + 2, "the checks, one advice, the summary"


async def test_the_scheduler_alone_cannot_be_asked_for_a_cluster() -> None:
    result = await run("doctor", "--url", "https://127.0.0.1:1")
    assert (result.exit_code, result.stderr) == (
        2,
        "vcuda: doctor asks the API server; leave out --url and give a kubeconfig; see vcuda doctor --help\n",
    )


def test_the_page_has_every_check() -> None:
    page, _, _ = (REPOSITORY / "docs/how-to/doctor.md").read_text().partition("## On a node")
    assert re.findall(r"^\| `([a-z-]+)` \| ", page, re.MULTILINE) == [*NAMES]
