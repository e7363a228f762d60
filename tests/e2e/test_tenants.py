"""Tenants ask about GPUs: who has `edit` in namespaces reads about their pods, and about all others sums.

In: a release as a newcomer installs it, with two replicas of the scheduler; a user with the chart's Role `vcuda-tenant`
and `edit` in two namespaces of three, each with a pod that has a share. Out: the pods that the command, its page and
the view name, and that nothing names those of the third.
"""

import asyncio
import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
import urllib3

from sandbox.cluster import pods
from sandbox.cluster.agent import PROGRAM
from sandbox.cluster.client import ApiError, Client
from sandbox.cluster.cluster import Cluster
from sandbox.cluster.kubeconfig import write_kubeconfig
from sandbox.cluster.waiting import wait_until
from sandbox.emulated_gpus import PROFILES
from tests.daemonset.chart import Object
from tests.e2e.installed.asking import VIEW, VIEW_TOKEN, answer_to, says_all, showing
from tests.e2e.installed.published import published
from tests.e2e.installed.release import NAMESPACE, Release, released
from tests.e2e.node.scene import everything, wait_offered
from tests.e2e.node.workload import CORE, MEMORY
from tests.offered import blocks_of_each
from tests.programs import helm_program
from tests.ui.command import started

pytestmark = [pytest.mark.e2e, pytest.mark.installed, pytest.mark.timeout(600)]

RBAC = "/apis/rbac.authorization.k8s.io/v1"
MINE, OURS, THEIRS = "default", "ours", "theirs"
PODS = {MINE: "mine", OURS: "of-us", THEIRS: "a-secret-name"}
USER = {"kind": "User", "name": "ann", "apiGroup": "rbac.authorization.k8s.io"}


@pytest.fixture(scope="module")
def release(
    cluster: Cluster, programs: Path, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Release]:
    """With a pod in each namespace."""
    tenants = f"tenants.subjects=[{json.dumps(USER)}]"
    folder = tmp_path_factory.mktemp("registry")
    with (
        published(cluster, programs, request, folder) as source,
        released(cluster, helm_program(request), source, "--set-json", tenants) as installed,
    ):
        installed.wait_rolled_out()
        wait_offered(cluster.admin, everything(blocks_of_each(PROFILES / "hgx-a100.json")))
        try:
            for namespace, name in PODS.items():
                _place(installed, namespace, name)
            yield installed
        finally:
            for namespace in (OURS, THEIRS):
                cluster.admin.delete(f"/api/v1/namespaces/{namespace}")
            pods.delete_all(cluster.admin)  # while the agent lives
            wait_until(lambda: _namespaces(cluster.admin).isdisjoint((OURS, THEIRS)), "the namespaces are gone")


def _place(release: Release, namespace: str, name: str) -> None:
    admin, path = release.admin, f"/api/v1/namespaces/{namespace}/pods"
    if namespace not in _namespaces(admin):
        admin.post("/api/v1/namespaces", {"metadata": {"name": namespace}})
    pod = pods.pod(name, [pods.container("c", "sleep 1000", {CORE: 10, MEMORY: 4})])
    wait_until(lambda: _is_made(admin, path, pod), f"{name} is made")
    wait_until(lambda: admin.get(f"{path}/{name}")["spec"].get("nodeName"), f"{name} is placed")


def _is_made(admin: Client, path: str, pod: Object) -> bool:
    """As soon as the namespace has its service account, and the webhook is asked."""
    try:
        made = admin.post(f"{path}?dryRun=All", pod)
        return made["spec"]["schedulerName"] == "vcuda-scheduler" and bool(admin.post(path, pod))
    except ApiError as error:
        return "already exists" in str(error)


def _namespaces(admin: Client) -> set[str]:
    return {item["metadata"]["name"] for item in admin.get("/api/v1/namespaces")["items"]}


@dataclass(frozen=True, slots=True)
class Tenant:
    """A user with the Role `vcuda-tenant`, and with `edit` in two of the namespaces.

    `kubeconfig` has a context for one of them, `contexts` one for each of both.
    """

    kubeconfig: Path
    contexts: Path
    client: Client


@pytest.fixture(scope="module")
def tenant(release: Release, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tenant]:
    admin, plane, ca = release.admin, release.cluster.control_plane, release.cluster.ca
    edit = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "edit"}
    bindings = [f"{RBAC}/namespaces/{each}/rolebindings" for each in (MINE, OURS)]
    for path in bindings:
        admin.post(path, {"metadata": {"name": "ann-edits"}, "roleRef": edit, "subjects": [USER]})
    folder, identity = tmp_path_factory.mktemp("ann"), ca.issue("ann", common_name="ann")
    one, both = (
        write_kubeconfig(
            folder / name, server=plane.server, ca=ca.certificate, identity=identity, namespaces=namespaces
        )
        for name, namespaces in (("one", ()), ("both", (OURS, THEIRS)))
    )
    yield Tenant(one, both, Client.by_certificate(plane.server, ca.certificate, identity))
    for path in bindings:
        admin.delete(f"{path}/ann-edits")


def asks(tenant: Tenant, command: list[str], expected: list[str], kubeconfig: Path | None = None) -> str:
    """What it says, once it says what is expected."""
    asked = [str(PROGRAM), *command, f"--kubeconfig={kubeconfig or tenant.kubeconfig}"]
    wait_until(partial(says_all, asked, expected), f"{command} answers", evidence=partial(answer_to, asked))
    return answer_to(asked)


def test_the_right_to_list_pods_shows_those_of_the_namespace(release: Release) -> None:
    admin = release.admin
    roles = f"{RBAC}/namespaces/{MINE}"
    accounts = f"/api/v1/namespaces/{MINE}/serviceaccounts"
    admin.post(accounts, {"metadata": {"name": "reader"}})
    rules = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]}]
    admin.post(f"{roles}/roles", {"metadata": {"name": "reader"}, "rules": rules})
    subject = {"kind": "ServiceAccount", "name": "reader", "namespace": MINE}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "reader"}
    admin.post(f"{roles}/rolebindings", {"metadata": {"name": "reader"}, "roleRef": role, "subjects": [subject]})
    token = admin.post(f"{accounts}/reader/token", {"spec": {"audiences": ["vcuda"]}})["status"]["token"]
    found = showing(admin, token).get(f"{VIEW}/pods?namespace={MINE}&stage=bound")
    assert {row["pod"] for row in found["items"]} == {PODS[MINE]}
    with pytest.raises(ApiError, match="403: "):
        showing(admin, token).get(f"{VIEW}/pods?namespace=kube-system")


def test_with_edit_in_a_namespace_its_pods_have_names_and_the_rest_are_sums(release: Release, tenant: Tenant) -> None:
    node = release.cluster.kubelet.node
    for command, expected in (
        (["nodes"], [node, "Ready"]),
        (["top", "--once"], [node]),
        (["top", "pods", "--once"], ["mine"]),
        (["top", "containers", "-A", "--once"], ["mine"]),
        (["pods"], ["mine", "Bound"]),
        (["pods", "-A"], ["mine", "Bound"]),
        (["node", node], ["default/mine (c)"]),
        (["events"], ["mine"]),
        *[(["explain", "mine"], [f"the pod is bound to node {node}"])] * 4,  # whichever replica is asked
    ):
        said = asks(tenant, command, expected)
        assert "secret" not in said, command
        assert PODS[OURS] not in said, "no context names it"
    for command in (["pods", "-n", THEIRS], ["explain", f"{THEIRS}/a-secret-name"], ["events", "-n", THEIRS]):
        said = answer_to([str(PROGRAM), *command, f"--kubeconfig={tenant.kubeconfig}"])
        assert said.startswith(f"(1) vcuda: you may not read the pods of namespace {THEIRS}"), said
        assert "ask for the ClusterRole edit there" in said


def test_with_edit_in_several_namespaces_all_are_seen_at_once(release: Release, tenant: Tenant) -> None:
    """The second context names one, the third another without a right there; whichever replica is asked."""
    node = release.cluster.kubelet.node
    for command, expected in (
        *[(["pods", "-A"], ["mine", "of-us", "Bound"])] * 4,
        (["pods", "-n", "o*"], ["of-us"]),
        (["top", "pods", "-A", "--once"], ["mine", "of-us"]),
        (["node", node], ["default/mine (c)", "ours/of-us (c)"]),
        (["events", "-A"], ["mine", "of-us"]),
        (["top", "namespaces", "--once"], [MINE, OURS]),
    ):
        said = asks(tenant, command, expected, tenant.contexts)
        assert "secret" not in said, command
        assert THEIRS not in said, command
    namespaces = json.loads(asks(tenant, ["top", "namespaces", "-o", "json"], [OURS], tenant.contexts))
    assert {row["namespace"]: row["cores"] for row in namespaces["items"]} == {MINE: 10, OURS: 10, "(others)": 10}
    rows = json.loads(asks(tenant, ["pods", "-A", "-o", "json"], ["mine"], tenant.contexts))["items"]
    assert [(row["namespace"], row["pod"]) for row in rows] == [(MINE, "mine"), (OURS, "of-us")]


def test_who_may_list_namespaces_needs_no_context_of_each(release: Release, tenant: Tenant) -> None:
    admin = release.admin
    rules = [{"apiGroups": [""], "resources": ["namespaces"], "verbs": ["list"]}]
    admin.post(f"{RBAC}/clusterroles", {"metadata": {"name": "ann-lists"}, "rules": rules})
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "ann-lists"}
    admin.post(f"{RBAC}/clusterrolebindings", {"metadata": {"name": "ann-lists"}, "roleRef": role, "subjects": [USER]})
    try:
        assert "secret" not in asks(tenant, ["pods", "-A"], ["mine", "of-us"])
    finally:
        admin.delete(f"{RBAC}/clusterrolebindings/ann-lists")
        admin.delete(f"{RBAC}/clusterroles/ann-lists")


def test_the_sums_count_each_pod_once_by_pages_of_one_row(release: Release, tenant: Tenant) -> None:
    """Of one question with a token of each namespace: order, pages and sums are the scheduler's."""
    ann = tenant.client
    wanted = {"spec": {"audiences": ["vcuda"]}}
    tokens = [
        ann.post(f"/api/v1/namespaces/{each}/serviceaccounts/default/token", wanted)["status"]["token"]
        for each in (MINE, OURS)
    ]
    viewer = showing(ann, ",".join(tokens))
    seen, more = [], ""
    for _ in range(2):
        page = viewer.get(f"{VIEW}/pods?limit=1&sort=name&order=desc&more={more}")
        assert page["total"] == 2
        seen += [row["pod"] for row in page["items"]]
        more = page["more"]
    assert (seen, more) == (["of-us", "mine"], "")
    sums = viewer.get(f"{VIEW}/namespaces")
    assert [(row["namespace"], row["cores"]) for row in sums["items"]] == [(MINE, 10), (OURS, 10)]
    assert (sums["others"]["namespace"], sums["others"]["cores"]) == ("", 10)
    with pytest.raises(ApiError, match="401: "):
        showing(ann, f"{tokens[0]},{tokens[1]}x").get(f"{VIEW}/pods")
    with pytest.raises(ApiError, match="403: "):
        showing(ann, ",".join(tokens)).get(f"{VIEW}/pods?namespace={THEIRS}")


def test_the_page_shows_the_same(release: Release, tenant: Tenant) -> None:
    asyncio.run(_ask_the_page(tenant.kubeconfig, {"mine"}))
    asyncio.run(_ask_the_page(tenant.contexts, {"mine", "of-us"}))


async def _ask_the_page(kubeconfig: Path, names: set[str]) -> None:
    async with started(f"--kubeconfig={kubeconfig}") as address:
        opened = urllib3.request("GET", address, redirect=False, timeout=60)
        key = {"X-Vcuda-Key": opened.headers["Location"].partition("#key=")[2]}
        origin = address.rpartition("/open/")[0]
        said = {
            path: urllib3.request("GET", f"{origin}{path}", headers=key, timeout=60)
            for path in ("/view/cluster", "/view/nodes?holders=1", "/view/pods", "/explain?pod=default/mine")
        }
    assert {path: answer.status for path, answer in said.items()} == dict.fromkeys(said, 200)
    assert {row["pod"] for row in said["/view/pods"].json()["items"]} == names
    assert not [path for path, answer in said.items() if b"secret" in answer.data]


def test_a_tenant_has_no_other_right_in_the_namespace_of_the_release(release: Release, tenant: Tenant) -> None:
    (agent,) = release.pods("vcuda-agent")
    system = f"/api/v1/namespaces/{NAMESPACE}"
    ann = tenant.client
    for path in (
        f"{system}/secrets",
        f"{system}/pods/{agent['metadata']['name']}:5678/proxy/usage",
        f"{system}/services/https:vcuda-agent:5678/proxy/usage",
    ):
        with pytest.raises(ApiError, match=r"403: .*ann"):
            ann.get(path)
    for path in (VIEW_TOKEN, f"{system}/services/https:vcuda-scheduler:https/proxy/filter"):
        with pytest.raises(ApiError, match=r"403: .*ann"):
            ann.post(path, {"spec": {"audiences": ["vcuda"]}})
