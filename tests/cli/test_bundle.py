"""`vcuda bundle`: what is in it, what never is, and what becomes of parts that cannot be read."""

import base64
import gzip
import io
import json
import subprocess
import tarfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from deviceplugin import __version__
from deviceplugin.cli.bundle import archive
from tests.cli.command_runner import vcuda
from tests.cli.doctor_cluster import PODS, Release, own_pod, scheduler_metrics
from tests.cli.view_server import SERVICE, node, pod, status
from tests.examples import examples

Json = dict[str, Any]
JWT = "eyJhbGciOiJSUzI1NiIsImtpZCI6IiJ9.eyJpc3MiOiJrdWJlIiwic3ViIjoieCJ9.c2lnbmF0dXJlLW9mLXRva2Vu"
SECRETS = {
    "env": "PLANTED-env-7f3a",
    "args": "PLANTED-args-19cc",
    "annotation": "PLANTED-annotation-b04d",
    "secret": "PLANTED-secret-55aa",
    "config map": "PLANTED-configmap-61fe",
    "bearer": "PLANTEDbearer.99.xyz",
    "password": "PLANTED-password-0c0c",
    "key": "PLANTEDprivatekeyMIIEvQIBADANBg",
    "url": "PLANTED-url-password",
    "tenant": "PLANTED-tenant-3e3e",
    "volume": "PLANTED-volume-d1d1",
    "probe": "PLANTED-probe-9a9a",
    "event": "PLANTED-event-4b4b",
    "jwt": JWT,
}
LOG = f"""{{"msg": "server_listening"}}
GET /x Authorization: Bearer {SECRETS["bearer"]}
a token {JWT} in a line
-----BEGIN RSA PRIVATE KEY-----
{SECRETS["key"]}
-----END RSA PRIVATE KEY-----
db password={SECRETS["password"]} host=db
proxy http://ann:{SECRETS["url"]}@proxy:3128
the end
"""


def workload(kind: str) -> Json:
    """With a secret in each place where an operator may put one."""
    container = {
        "name": "agent",
        "image": "vcuda:1",
        "args": ["agent", "--share-mode=true", f"--unknown={SECRETS['args']}", SECRETS["args"]],
        "env": [{"name": "HTTPS_PROXY", "value": SECRETS["env"]}],
        "livenessProbe": {"httpGet": {"httpHeaders": [{"name": "X", "value": SECRETS["probe"]}]}},
        "lifecycle": {"preStop": {"exec": {"command": [SECRETS["probe"]]}}},
        "volumeMounts": [{"name": "v", "mountPath": "/v"}],
    }
    spec = {
        "containers": [container],
        "volumes": [{"name": "v", "csi": {"volumeAttributes": {"x": SECRETS["volume"]}}}],
    }
    annotations = {
        "kubectl.kubernetes.io/last-applied-configuration": SECRETS["annotation"],
        "tencent.com/vcuda-x": "kept",
        "tencent.com/of-another-product": SECRETS["annotation"],
    }
    meta = {"name": "vcuda-agent", "annotations": annotations}
    status = {"readyReplicas": 2, "updatedReplicas": 2, "desiredNumberScheduled": 2, "numberReady": 2}
    template = {"metadata": meta, "spec": spec}
    return {"kind": kind, "metadata": meta, "spec": {"replicas": 2, "template": template, **spec}, "status": status}


def tenant() -> Json:
    container = {
        "name": "main",
        "image": f"registry/{SECRETS['tenant']}",
        "args": [SECRETS["tenant"]],
        "env": [{"name": "KEY", "value": SECRETS["tenant"]}],
        "resources": {"limits": {"tencent.com/vcuda-core": "20"}},
    }
    annotations = {"their/annotation": SECRETS["tenant"], "tencent.com/vcuda-gpu-policy": "spread"}
    return {
        "metadata": {"name": "llm", "namespace": "research", "uid": "u", "annotations": annotations},
        "spec": {"containers": [container], "volumes": [{"name": "s", "secret": {"secretName": SECRETS["tenant"]}}]},
        "status": {
            "phase": "Pending",
            "conditions": [{"type": "PodScheduled", "message": "0/2 nodes fit"}, {"message": SECRETS["tenant"]}],
        },
    }


@dataclass
class Install(Release):
    """Also with logs, events, a Secret and a ConfigMap, which nobody may ask for."""

    tenants: list[Json] = field(default_factory=lambda: [tenant()])

    async def answer(self, request: web.Request) -> web.StreamResponse:
        path = request.path
        assert "secrets" not in path
        assert "configmaps" not in path, "neither is read"
        if any(path.startswith(each) for each in self.forbidden):
            return status(403, f'User "ann" cannot get path "{path}"')
        if path.startswith(f"{PODS}/") and path.endswith("/log"):
            assert {"limitBytes", "tailLines", "sinceSeconds"} < set(request.query)
            return web.Response(text=LOG)
        if path.startswith(f"{PODS}/") and path.count("/") == 6:
            return web.json_response(workload("Pod") | {"metadata": {"name": path.rpartition("/")[2]}})
        if path.endswith(("/daemonsets/vcuda-agent", "/deployments/vcuda-scheduler")):
            return web.json_response(workload("DaemonSet"))
        if path.endswith("/leases/vcuda-scheduler"):
            return web.json_response({"metadata": {"name": "vcuda-scheduler"}, "spec": {"holderIdentity": "a"}})
        if path.endswith("/events"):
            message = f"failed with token={SECRETS['event']}"
            return web.json_response({"items": [{"metadata": {"name": "e"}, "reason": "Failed", "message": message}]})
        if path == "/api/v1/pods" and "as=PartialObject" not in request.headers.get("Accept", ""):
            return web.json_response({"items": [*self.tenants, {"metadata": {"name": "other"}, "spec": {}}]})
        return await super().answer(request)


def install() -> Install:
    found = Install([node("node-a")], [pod("llm")], view={"scheduler_version": __version__, "pods_pending": 0})
    for each in found.own_pods:
        each["status"]["containerStatuses"][0]["restartCount"] = 1
    found.metrics["vcuda-agent-b:5678"] = "m 1\n"
    found.metrics["https:vcuda-scheduler-2:8443"] = scheduler_metrics(leads=False) + f"# Bearer {SECRETS['bearer']}\n"
    found.objects[0]["metadata"]["annotations"]["their/annotation"] = SECRETS["annotation"]
    return found


async def made(release: Release, folder: Path, *args: str) -> tuple[dict[str, str], bytes]:
    """The members, and everything in one piece."""
    file = folder / "b.tar.gz"
    result = await vcuda(release, folder, "bundle", "--file", str(file), *args)
    assert (result.exit_code, result.stdout) == (0, f"{file}\n"), result.output
    assert file.stat().st_mode & 0o777 == 0o600
    whole = gzip.decompress(file.read_bytes())
    with tarfile.open(fileobj=io.BytesIO(whole)) as tar:
        members = {each.name: tar.extractfile(each) for each in tar.getmembers()}
        assert all(file is not None for file in members.values())
        texts = {name: file.read().decode() for name, file in members.items() if file is not None}
    return {name.removeprefix("vcuda-bundle/"): text for name, text in texts.items()}, whole


async def test_no_secret_leaves(tmp_path: Path) -> None:
    members, whole = await made(install(), tmp_path)
    assert {name for name, secret in SECRETS.items() if secret.encode() in whole} == set()
    encoded = {name for name, each in SECRETS.items() if base64.b64encode(each.encode()) in whole}
    assert encoded == set()
    assert archive.REMOVED in members["pods/vcuda-agent-a/agent.log"]


async def test_what_support_needs_is_in_it(tmp_path: Path) -> None:
    members, _ = await made(install(), tmp_path)
    log = members["pods/vcuda-agent-a/agent.log"]
    assert [log.splitlines()[0], log.splitlines()[-1]] == ['{"msg": "server_listening"}', "the end"]
    assert members["pods/vcuda-agent-a/agent.previous.log"] == log
    assert "vcuda_scheduler_leader 1.0" in members["pods/vcuda-scheduler-1/metrics.txt"]
    assert {each["check"] for each in json.loads(members["doctor.json"])["checks"]} > {"agents", "webhook"}
    assert json.loads(members["versions.json"])["scheduler"] == __version__
    assert json.loads(members["view/nodes-001.json"])["items"][0]["node"] == "node-a"
    nodes = [json.loads(line) for line in members["nodes.jsonl"].splitlines()]
    assert "tencent.com/vcuda-inventory" in nodes[0]["metadata"]["annotations"]
    assert nodes[0]["status"]["allocatable"]["tencent.com/vcuda-core"] == "200"
    (gpu_pod,) = (json.loads(line) for line in members["pods.jsonl"].splitlines())
    assert gpu_pod["spec"]["containers"] == [
        {"name": "main", "resources": {"limits": {"tencent.com/vcuda-core": "20"}}}
    ]
    assert gpu_pod["metadata"]["annotations"]["tencent.com/vcuda-gpu-policy"] == "spread"
    assert gpu_pod["status"]["conditions"][0]["message"] == "0/2 nodes fit"
    agent = json.loads(members["objects/daemonset.json"])["spec"]["template"]["spec"]["containers"][0]
    assert agent["args"] == ["agent", "--share-mode=true", f"--unknown={archive.REMOVED}", archive.REMOVED]
    assert agent["env"] == [{"name": "HTTPS_PROXY", "value": archive.REMOVED}]
    assert "caBundle" in members["objects/webhook.json"]
    assert "holderIdentity" in members["objects/lease.json"]
    index = json.loads(members["index.json"])
    assert {each["name"] for each in index["files"]} == set(members) - {"index.json"}
    assert index["notRead"] == []
    again, _ = await made(install(), _other(tmp_path))
    assert list(again) == list(members), "the same names every time"


def _other(folder: Path) -> Path:
    found = folder / "again"
    found.mkdir()
    return found


async def test_what_cannot_be_read_is_in_the_index(tmp_path: Path) -> None:
    release = install()
    release.forbidden = ("/api/v1/nodes", "/api/v1/pods", f"{PODS}/vcuda-agent-a/log")
    members, _ = await made(release, tmp_path)
    missing = {each["name"]: each["why"] for each in json.loads(members["index.json"])["notRead"]}
    assert missing["nodes.jsonl"] == "you may not list nodes"
    assert missing["pods/vcuda-agent-a/agent.log"] == "you may not get pods/log"
    assert {"nodes.jsonl", "pods.jsonl"} & set(members) == set()
    assert "pods/vcuda-agent-b/agent.log" in members


async def test_one_object_of_a_part_that_cannot_be_read_hides_no_other_one(tmp_path: Path) -> None:
    release = install()
    release.tenants = [tenant(), tenant(), tenant()]
    release.tenants[0]["metadata"]["namespace"] = "closed"
    release.tenants[1]["spec"] |= {"containers": [{"name": "main", "resources": "all of it"}]}
    release.objects.insert(0, {"metadata": {"name": "odd", "labels": "none"}})
    release.forbidden = ("/api/v1/namespaces/closed/events",)
    members, _ = await made(release, tmp_path)
    missing = {each["name"]: each["why"] for each in json.loads(members["index.json"])["notRead"]}
    assert [json.loads(line)["metadata"]["name"] for line in members["nodes.jsonl"].splitlines()] == [
        "node-a",
        "node-b",
    ]
    assert len(members["pods.jsonl"].splitlines()) == 2
    assert len(members["events/of-pending-pods.jsonl"].splitlines()) == 1
    assert missing["events of closed/llm"] == "you may not list events"
    assert {"nodes.jsonl: odd", "pods.jsonl: llm"} <= missing.keys()


async def test_the_agents_versions_do_not_wait_for_the_schedulers(tmp_path: Path) -> None:
    release = install()
    release.answers[f"{SERVICE}/view/cluster"] = (503, "away")
    members, _ = await made(release, tmp_path)
    assert json.loads(members["versions.json"])["agents"] == __version__
    missing = {each["name"]: each["why"] for each in json.loads(members["index.json"])["notRead"]}
    assert "no replica of the scheduler answers" in missing["versions.json: scheduler"]


async def test_of_many_agents_those_with_trouble_and_those_that_are_named(tmp_path: Path) -> None:
    release = install()
    release.own_pods = [
        own_pod(f"vcuda-agent-{at:02}", "vcuda-agent", node=f"n{at:02}", ready=at != 37) for at in range(40)
    ]
    members, _ = await made(release, tmp_path, "--node", "n33")
    with_log = {name.split("/")[1] for name in members if name.endswith("agent.log")}
    assert len(with_log) == 20
    assert {"vcuda-agent-33", "vcuda-agent-37"} < with_log
    assert any("20 agents" in each["name"] for each in json.loads(members["index.json"])["notRead"])


async def test_no_file_is_overwritten_and_none_is_left_half(tmp_path: Path) -> None:
    (tmp_path / "b.tar.gz").write_text("mine")
    result = await vcuda(install(), tmp_path, "bundle", "--file", str(tmp_path / "b.tar.gz"))
    assert (result.exit_code, "File exists" in result.stderr) == (1, True)
    assert (tmp_path / "b.tar.gz").read_text() == "mine"
    result = await vcuda(install(), tmp_path, "bundle", "--file", str(tmp_path / "nowhere/b.tar.gz"))
    assert (result.exit_code, "No such file" in result.stderr) == (1, True)


@pytest.mark.root
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
async def test_a_full_disk_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full = tmp_path / "small"
    full.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4k", "vcuda-test", full], check=True)
    try:
        result = await vcuda(install(), tmp_path, "bundle", "--file", str(full / "b.tar.gz"))
        assert (result.exit_code, "No space left" in result.stderr) == (1, True), result.output
        assert list(full.iterdir()) == []
    finally:
        subprocess.run(["umount", full], check=True)


async def test_without_an_api_server_there_is_what_doctor_says(tmp_path: Path) -> None:
    release = install()
    release.answers["/version"] = (503, "")
    members, _ = await made(release, tmp_path)
    assert set(members) == {"doctor.json", "index.json"}
    assert json.loads(members["doctor.json"])["status"] == "failed"
    why = {each["why"] for each in json.loads(members["index.json"])["notRead"]}
    assert why == {"the API server does not answer"}


@given(st.text(max_size=200), st.sampled_from([JWT, f"Bearer {SECRETS['bearer']}", f"password={SECRETS['password']}"]))
@examples(200)
def test_a_token_is_removed_wherever_it_stands_alone(around: str, secret: str) -> None:
    cleaned = archive.text(f"{around} {secret} {around}")
    assert secret.split("=")[-1].split()[-1] not in cleaned


def test_other_text_stays_as_it_is(subtests: pytest.Subtests) -> None:
    for line in ["GPU 0 is healthy", "pods: 5, tokens 3", "vcuda_scheduler_leader 1.0", "uid=a1b2-c3"]:
        with subtests.test(line=line):
            assert archive.text(line) == line
