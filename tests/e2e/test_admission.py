"""The webhook's configuration and the annotation policy on a real API server: its CEL, its patches, its accounts.

No scheduler and no agent of ours runs: pods that ask for GPUs wait, and bindings go to a node that does not exist.
"""

import base64
import contextlib
import copy
from collections.abc import Iterator
from typing import Any

import pytest

from deviceplugin.cluster.webhook.known_gpus import KnownGpus
from deviceplugin.cluster.webhook.review import AdmissionWebhook
from deviceplugin.config.webhook import HamiSettings, WebhookSettings
from deviceplugin.kube.quantity import parse_quantity
from sandbox.cluster import pods
from sandbox.cluster.admission import WebhookServer, serving
from sandbox.cluster.client import ApiError, Client
from sandbox.cluster.cluster import Cluster
from sandbox.cluster.waiting import wait_until
from tests.daemonset.manifests import Object, documents

pytestmark = pytest.mark.e2e

ADMISSION = "/apis/admissionregistration.k8s.io/v1"
PATHS = {
    "MutatingWebhookConfiguration": f"{ADMISSION}/mutatingwebhookconfigurations",
    "ValidatingAdmissionPolicy": f"{ADMISSION}/validatingadmissionpolicies",
    "ValidatingAdmissionPolicyBinding": f"{ADMISSION}/validatingadmissionpolicybindings",
}
CORE, MEMORY = "tencent.com/vcuda-core", "tencent.com/vcuda-memory"
ALLOCATION, INDEX = "tencent.com/vcuda-allocation", "tencent.com/predicate-gpu-idx-0"
KNOWN = KnownGpus(smallest_blocks=160, largest_blocks=320, most=8, models=frozenset({"NVIDIA A100"}))
# Every one translated and hidden that can be, so that the API server sees all kinds of patches.
SETTINGS = WebhookSettings(hami=HamiSettings(), hide_gpus=True)
DRY = f"{pods.PODS}?dryRun=All"


def as_account(admin: Client, account: str) -> Client:
    """One of kube-system's service accounts, and for its rights a cluster administrator."""
    user = f"system:serviceaccount:kube-system:{account}"
    return Client(admin.server, admin.pool, {"Impersonate-User": user, "Impersonate-Group": "system:masters"})


def gpu_pod(name: str, limits: dict[str, int], *, annotations: dict[str, str] | None = None, **spec: Any) -> Object:
    made = pods.pod(name, [pods.container("main", "sleep 1", limits)], **spec)
    made["metadata"]["annotations"] = annotations or {}
    return made


@contextlib.contextmanager
def applied(admin: Client, *objects: Object) -> Iterator[None]:
    with contextlib.ExitStack() as undo:
        for item in objects:
            path = PATHS[item["kind"]]
            admin.post(f"{path}?fieldValidation=Strict", item)
            undo.callback(admin.delete, f"{path}/{item['metadata']['name']}")
        yield


def configuration(server: WebhookServer, cluster: Cluster) -> Object:
    """The shipped one, but for the way to the server."""
    made = copy.deepcopy(documents("scheduler/webhook.yaml")[0])
    bundle = base64.b64encode(cluster.ca.certificate.read_bytes()).decode()
    made["webhooks"][0]["clientConfig"] = {"url": server.url, "caBundle": bundle}
    return made


@pytest.fixture(scope="module")
def server(cluster: Cluster) -> Iterator[WebhookServer]:
    pair = cluster.ca.issue("webhook", common_name="webhook", names=["127.0.0.1"])
    with (
        serving(AdmissionWebhook(SETTINGS), KNOWN, pair) as running,
        applied(cluster.admin, configuration(running, cluster)),
    ):
        probe = gpu_pod("probe", {CORE: 100})
        wait_until(
            lambda: cluster.admin.post(DRY, probe)["spec"]["schedulerName"] == "vcuda-scheduler",
            "the API server asks the webhook",
        )
        yield running


@pytest.fixture
def admin(empty_cluster: Cluster, server: WebhookServer) -> Client:
    server.asked.clear()
    return empty_cluster.admin


def refusal(client: Client, manifest: Object) -> str:
    with pytest.raises(ApiError) as refused:
        client.post(DRY, manifest)
    return str(refused.value)


def test_a_share_is_completed_and_sent_to_our_scheduler(admin: Client) -> None:
    made = admin.post(pods.PODS, gpu_pod("share", {CORE: 30}, annotations={ALLOCATION: "{}", INDEX: "0", "mine": "1"}))
    assert made["metadata"]["annotations"] == {"mine": "1"}
    assert made["spec"]["schedulerName"] == "vcuda-scheduler"
    wanted = {CORE: "30", MEMORY: "48"}
    assert made["spec"]["containers"][0]["resources"] == {"limits": wanted, "requests": wanted}


def test_a_pod_as_hami_writes_it_is_translated(admin: Client) -> None:
    limits = {"nvidia.com/gpu": 2, "nvidia.com/gpucores": 30, "nvidia.com/gpumem": 4096}
    manifest = gpu_pod("ours", limits)
    manifest["metadata"] = {"generateName": "hami-"}
    manifest["spec"]["containers"].append(pods.container("plain", "sleep 1"))
    made = admin.post(DRY, manifest)
    main, plain = made["spec"]["containers"]
    assert made["metadata"]["annotations"] == {"tencent.com/vcuda-gpus": "main=2"}
    assert main["resources"] == {"limits": {CORE: "60", MEMORY: "32"}, "requests": {CORE: "60", MEMORY: "32"}}
    assert plain["env"] == [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "none"}]


def test_every_kind_of_change_is_a_patch_that_the_api_server_applies(admin: Client) -> None:
    env = [{"name": name, "value": "/x"} for name in ("NVIDIA_VISIBLE_DEVICES", "LD_LIBRARY_PATH", "OTHER")]
    init = [{**pods.container("warm", "true"), "resources": {"requests": {"cpu": "1m"}, "limits": {MEMORY: "4"}}}]
    manifest = gpu_pod("all", {CORE: 100}, init=init, nodeName="n1")
    manifest["spec"]["containers"][0]["env"] = env
    made = admin.post(DRY, manifest)["spec"]
    assert [(each["name"], each["value"]) for each in made["containers"][0]["env"]] == [
        ("LD_LIBRARY_PATH", "/usr/local/nvidia/lib64:/x"),
        ("OTHER", "/x"),
    ]
    assert made["initContainers"][0]["resources"] == {
        "limits": {CORE: "10", MEMORY: "4"},
        "requests": {CORE: "10", MEMORY: "4", "cpu": "1m"},
    }
    assert "nodeName" not in made
    (term,) = made["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert term == {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}


def test_a_user_reads_why_his_pod_is_refused(admin: Client) -> None:
    assert "container main: tencent.com/vcuda-core: 150 is not possible" in refusal(admin, gpu_pod("no", {CORE: 150}))


def test_only_pods_that_concern_us_are_sent(admin: Client, server: WebhookServer) -> None:
    out = {"labels": {"tencent.com/vcuda-webhook": "ignore"}}
    manifests = [
        gpu_pod("plain", {}, annotations={"mine": "1"}),
        gpu_pod("other-vendor", {"amd.com/gpu": 1}),
        gpu_pod("stale", {}, annotations={INDEX: "0"}),
        gpu_pod("core", {CORE: 100}),
        gpu_pod("hami", {"nvidia.com/gpu": 1, "nvidia.com/gpucores": 50}),
        gpu_pod("hami-by-annotation", {"nvidia.com/gpu": 1}, annotations={"nvidia.com/use-gputype": "A100"}),
        gpu_pod("hami-by-scheduler", {"nvidia.com/gpu": 1}, schedulerName="hami-scheduler"),
        gpu_pod("of-nvidias-plugin", {"nvidia.com/gpu": 1}),
        pods.pod("init", [pods.container("main", "true")], init=[pods.container("warm", "true", {MEMORY: 1})]),
    ]
    opted_out, stale_opted_out = gpu_pod("opted-out", {CORE: 150}), gpu_pod("opted-out-stale", {CORE: 100})
    opted_out["metadata"] |= out
    stale_opted_out["metadata"] |= {**out, "annotations": {ALLOCATION: "{}"}}
    for manifest in (*manifests, opted_out, stale_opted_out):
        admin.post(DRY, manifest)
    assert sorted(set(server.asked)) == [
        "core", "hami", "hami-by-annotation", "hami-by-scheduler", "init", "opted-out-stale", "stale"
    ]  # fmt: skip


def test_very_many_annotations_are_within_the_cost_that_cel_may_have(admin: Client, server: WebhookServer) -> None:
    many = {f"example.com/annotation-{number}": "x" for number in range(8000)}  # of 256 KiB that all may have together
    admin.post(DRY, gpu_pod("plain", {}, annotations=many))
    assert not server.asked
    admin.post(DRY, gpu_pod("stale", {}, annotations={**many, ALLOCATION: "{}"}))
    assert server.asked[-1] == "stale"


@pytest.fixture
def away(cluster: Cluster, admin: Client) -> Iterator[Client]:
    """Nobody answers for pods whose names begin with `away-`."""
    nobody = WebhookServer(AdmissionWebhook(SETTINGS), KNOWN, "https://127.0.0.1:1/webhook")
    made = configuration(nobody, cluster)
    made["metadata"]["name"] = "vcuda-webhook-away"
    made["webhooks"][0]["matchConditions"][1:1] = [
        {"name": "of-this-test", "expression": 'has(object.metadata.name) && object.metadata.name.startsWith("away-")'}
    ]
    with applied(admin, made):
        wait_until(lambda: _is_held(admin, DRY, gpu_pod("away-gpu", {CORE: 100})), "GPU pods are held")
        yield admin


def _is_held(client: Client, path: str, manifest: Object) -> bool:
    """Any other refusal is an error of the test."""
    try:
        client.post(path, manifest)
    except ApiError as error:
        if 'failed calling webhook "pods.vcuda.tencent.com"' in str(error):
            return True
        raise
    return False


def _in(namespace: str, manifest: Object) -> tuple[str, Object]:
    manifest = copy.deepcopy(manifest)
    manifest["metadata"]["namespace"] = namespace
    manifest["spec"].pop("serviceAccountName", None)
    return f"/api/v1/namespaces/{namespace}/pods?dryRun=All", manifest


MIRROR = "kubernetes.io/config.mirror"


def as_kubelet(admin: Client, node: str) -> Client:
    groups = "system:nodes"  # urllib3 sends a header once; the API server adds system:authenticated
    return Client(admin.server, admin.pool, {"Impersonate-User": f"system:node:{node}", "Impersonate-Group": groups})


def _static(name: str, node: Object, **annotations: str) -> Object:
    """A mirror pod at the API server, as the node's kubelet makes it."""
    mirror = {MIRROR: "abc", "kubernetes.io/config.source": "file", **annotations}
    made = gpu_pod(name, {CORE: 100}, annotations=mirror, nodeName=node["metadata"]["name"])
    owner = {
        "apiVersion": "v1",
        "kind": "Node",
        "controller": True,
        **{k: node["metadata"][k] for k in ("name", "uid")},
    }
    made["metadata"]["ownerReferences"] = [owner]
    made["spec"]["automountServiceAccountToken"] = False
    return made


@pytest.fixture
def node(cluster: Cluster) -> Object:
    return cluster.admin.get(f"/api/v1/nodes/{cluster.kubelet.node}")


def test_while_the_webhook_is_away_kubelets_show_their_static_pods(away: Client, node: Object) -> None:
    """And nobody else passes for a kubelet (Security 9)."""
    mirror = _static("away-static", node)
    assert not _is_held(as_kubelet(away, node["metadata"]["name"]), DRY, mirror)
    assert _is_held(away, DRY, mirror)


def test_while_the_webhook_is_away_only_pods_that_need_it_are_held(away: Client) -> None:
    labelled = gpu_pod("away-labelled", {CORE: 100})
    labelled["metadata"]["labels"] = {"tencent.com/vcuda-webhook": "ignore"}
    passing = {
        "no GPU": gpu_pod("away-plain", {}),
        "NVIDIA's own plugin": gpu_pod("away-nvidia", {"nvidia.com/gpu": 1}),
        "opted out": labelled,
    }
    assert {why: _is_held(away, DRY, each) for why, each in passing.items()} == dict.fromkeys(passing, False)
    needed = {
        "a share": gpu_pod("away-share", {CORE: 30}),
        "HAMi's words": gpu_pod("away-hami", {"nvidia.com/gpumem": 512}),
        "HAMi's annotation": gpu_pod(
            "away-marked", {"nvidia.com/gpu": 1}, annotations={"nvidia.com/use-gputype": "T4"}
        ),
    }
    assert {why: _is_held(away, DRY, each) for why, each in needed.items()} == dict.fromkeys(needed, True)


@pytest.mark.parametrize("label", [None, "tencent.com/vcuda-webhook", "hami.io/webhook"])
def test_while_the_webhook_is_away_the_system_and_namespaces_that_opted_out_go_on(
    away: Client, label: str | None
) -> None:
    """Ours run in kube-system with these manifests, so a rollout never waits for itself."""
    if label is None:
        assert not _is_held(away, *_in("kube-system", gpu_pod("away-system", {CORE: 100})))
        return
    with _namespace(away, f"away-{label.partition('.')[0]}", {label: "ignore"}) as name:
        assert not _is_held(away, *_in(name, gpu_pod("away-ignored", {CORE: 100})))


@contextlib.contextmanager
def _namespace(client: Client, name: str, labels: dict[str, str]) -> Iterator[str]:
    client.post("/api/v1/namespaces", {"metadata": {"name": name, "labels": labels}})
    try:
        wait_until(lambda: _has_account(client, name), "the namespace has its service account")
        yield name
    finally:
        client.delete(f"/api/v1/namespaces/{name}")


def _has_account(client: Client, namespace: str) -> bool:
    found = client.get(f"/api/v1/namespaces/{namespace}/serviceaccounts")["items"]
    return "default" in [each["metadata"]["name"] for each in found]


@pytest.mark.parametrize(("written", "cores"), [("0.1k", "100"), ("1e2", "100"), ("100000m", "100"), ("2E2", "200")])
def test_every_way_of_writing_a_quantity_is_understood(admin: Client, written: Any, cores: str) -> None:
    made = admin.post(DRY, gpu_pod("quantity", {CORE: written}))
    (container,) = made["spec"]["containers"]
    asked = container["resources"]
    assert asked["limits"] == asked["requests"]
    assert parse_quantity(asked["limits"][CORE]) == int(cores)


def test_gpus_are_asked_for_nowhere_but_in_containers(admin: Client) -> None:
    """So the webhook need not look anywhere else: the API server refuses the rest by itself."""
    pod_level = gpu_pod("level", {})
    pod_level["spec"]["resources"] = {"limits": {CORE: "100"}}
    assert "spec.resources" in refusal(admin, pod_level)
    admin.post(pods.PODS, gpu_pod("held", {CORE: 30}))
    path = f"{pods.PODS}/held"
    try:
        more = {"name": "main", "resources": {"limits": {CORE: "60"}, "requests": {CORE: "60"}}}
        for way in ("", "/resize"):
            with pytest.raises(ApiError, match=r"(?i)forbidden|invalid"):
                admin.merge(f"{path}{way}", {"spec": {"containers": [{"image": "none", **more}]}})
        debug = {"name": "debug", "image": "none", "resources": {"limits": {CORE: "10"}}}
        with pytest.raises(ApiError, match="ephemeralContainers"):
            admin.merge(f"{path}/ephemeralcontainers", {"spec": {"ephemeralContainers": [debug]}})
    finally:
        admin.delete(f"{path}?gracePeriodSeconds=0")


@pytest.fixture(scope="module")
def policy(cluster: Cluster, server: WebhookServer) -> Iterator[None]:
    """In force when it refuses for the first time."""
    with applied(cluster.admin, *documents("scheduler/policy.yaml")):
        cluster.admin.post(pods.PODS, gpu_pod("probe", {CORE: 100}))
        change = {"metadata": {"annotations": {ALLOCATION: "{}"}}}
        path = f"{pods.PODS}/probe"
        wait_until(lambda: _message(cluster.admin, f"{path}?dryRun=All", change), "the policy holds")
        pods.delete(cluster.admin, ["probe"])
        yield


def _message(client: Client, path: str, change: Object) -> str:
    try:
        client.merge(path, change)
    except ApiError as error:
        return str(error)
    return ""


SET = {"metadata": {"annotations": {ALLOCATION: "{}", INDEX: "1"}}}


@pytest.mark.usefixtures("policy")
class TestPolicy:
    """Each test has a pod that waits and carries an allocation, written by the agent's account."""

    @pytest.fixture
    def path(self, admin: Client) -> Iterator[str]:
        admin.post(pods.PODS, gpu_pod("held", {CORE: 100}))
        path = f"{pods.PODS}/held"
        as_account(admin, "vcuda-agent").merge(path, {"metadata": {"annotations": {ALLOCATION: "{}", INDEX: "0"}}})
        yield path
        admin.delete(f"{path}?gracePeriodSeconds=0")  # no kubelet ends the pod of a node that does not exist

    @pytest.mark.parametrize("account", ["vcuda-agent", "vcuda-scheduler"])
    def test_our_programs_change_them(self, admin: Client, path: str, account: str) -> None:
        changed = as_account(admin, account).merge(path, SET)
        assert changed["metadata"]["annotations"][INDEX] == "1"

    @pytest.mark.parametrize("subresource", ["", "/status"])
    @pytest.mark.parametrize("text", ["2", None])
    def test_no_other_account_changes_or_removes_them(
        self, admin: Client, path: str, subresource: str, text: str | None
    ) -> None:
        change = {"metadata": {"annotations": {INDEX: text}}}
        said = _message(as_account(admin, "default"), path + subresource, change)
        assert f"{INDEX} is written by vcuda alone; leave the annotations of the pod as they are" in said

    @pytest.mark.parametrize("subresource", ["/resize", "/ephemeralcontainers"])
    def test_the_subresources_that_are_not_looked_at_change_no_annotation(
        self, admin: Client, path: str, subresource: str
    ) -> None:
        debug = [{"name": "debug", "image": "none"}] if subresource == "/ephemeralcontainers" else None
        spec = {"spec": {"ephemeralContainers": debug}} if debug else {}
        admin.merge(path + subresource, {"metadata": {"annotations": {INDEX: "7"}}, **spec})
        assert admin.get(path)["metadata"]["annotations"][INDEX] == "0"

    def test_the_message_names_all_of_them(self, admin: Client, path: str) -> None:
        change = {"metadata": {"annotations": {INDEX: "2", ALLOCATION: None}}}
        assert f"{INDEX}, {ALLOCATION} are written by vcuda alone" in _message(admin, path, change)

    @pytest.mark.parametrize("label", [None, "tencent.com/vcuda-webhook", "hami.io/webhook"])
    def test_new_pods_do_not_bring_them_where_the_webhook_is_not_asked(
        self, admin: Client, server: WebhookServer, label: str | None
    ) -> None:
        """Security 9: as with the failure policy Ignore, or with no webhook at all."""
        forged = gpu_pod("forged", {CORE: 1}, annotations={ALLOCATION: "{}", INDEX: "0"}, nodeName="n1")
        mirror = gpu_pod("mirror", {CORE: 1}, annotations={MIRROR: "uid-of-a-victim"}, nodeName="n1")
        mirror["spec"]["automountServiceAccountToken"] = False
        with contextlib.ExitStack() as undo:
            name = "kube-system"
            if label is not None:
                name = undo.enter_context(_namespace(admin, f"new-{label.partition('.')[0]}", {label: "ignore"}))
            user = as_account(admin, "default")
            with pytest.raises(ApiError, match="are written by vcuda alone; leave out these annotations"):
                user.post(*_in(name, forged))
            with pytest.raises(ApiError, match=r"config\.mirror is written by kubelets alone"):
                user.post(*_in(name, mirror))
            user.post(*_in(name, gpu_pod("plain", {CORE: 100}, annotations={"mine": "1"})))
        assert not server.asked

    def test_a_forged_mirror_is_sent_to_the_webhook_and_refused_in_spite_of_every_label(
        self, admin: Client, server: WebhookServer
    ) -> None:
        """Security 9: the webhook never saw it."""
        mirror = gpu_pod("mirror", {CORE: 30}, annotations={MIRROR: "uid-of-a-victim", INDEX: "0"}, nodeName="n1")
        mirror["spec"]["automountServiceAccountToken"] = False
        for labels in ({}, {"tencent.com/vcuda-webhook": "ignore"}):
            mirror["metadata"]["labels"] = labels
            refusal(admin, mirror)
        assert server.asked == ["mirror", "mirror"]
        del mirror["metadata"]["annotations"][INDEX]
        assert "config.mirror is written by kubelets alone" in refusal(admin, mirror)
        assert server.asked == ["mirror", "mirror"]

    def test_kubelet_shows_its_static_pods_with_whatever_their_files_have(
        self, admin: Client, server: WebhookServer, node: Object
    ) -> None:
        mirror = _static("static", node, **{INDEX: "0"})
        made = as_kubelet(admin, node["metadata"]["name"]).post(DRY, mirror)
        assert made["metadata"]["annotations"].items() >= {MIRROR: "abc", INDEX: "0"}.items()
        assert not server.asked

    def test_the_api_server_finds_nothing_wrong_with_its_expressions(self, admin: Client) -> None:
        found = admin.get(f"{PATHS['ValidatingAdmissionPolicy']}/vcuda-annotations")
        assert found["status"]["typeChecking"] == {}

    def test_all_other_changes_are_everybodys(self, admin: Client, path: str) -> None:
        change = {
            "metadata": {"annotations": {"mine": "1", "tencent.com/vcuda-core-limit": "50"}, "labels": {"a": "b"}}
        }
        changed = as_account(admin, "default").merge(path, change)
        assert changed["metadata"]["annotations"] == {
            ALLOCATION: "{}",
            INDEX: "0",
            "mine": "1",
            "tencent.com/vcuda-core-limit": "50",
        }

    def test_very_many_other_annotations_may_change_at_once(self, admin: Client, path: str) -> None:
        many = {f"example.com/annotation-{number}": "x" for number in range(7000)}
        admin.merge(path, {"metadata": {"annotations": many}})
        admin.merge(path, {"metadata": {"annotations": dict.fromkeys(many, "y")}})
        said = _message(admin, path, {"metadata": {"annotations": {**many, INDEX: "7"}}})
        assert f"{INDEX} is written by vcuda alone" in said

    @pytest.mark.parametrize("way", ["/held/binding", "bindings"])
    def test_only_our_scheduler_binds_with_them(self, admin: Client, path: str, way: str) -> None:
        binding = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": "held", "annotations": {INDEX: "5"}},
            "target": {"kind": "Node", "name": "nowhere"},
        }
        where = f"{pods.PODS}{way}" if way.startswith("/") else f"/api/v1/namespaces/{pods.NAMESPACE}/{way}"
        with pytest.raises(ApiError, match="is written by vcuda alone"):
            as_account(admin, "default").post(where, binding)
        as_account(admin, "vcuda-scheduler").post(where, binding)
        bound = admin.get(path)
        assert (bound["spec"]["nodeName"], bound["metadata"]["annotations"][INDEX]) == ("nowhere", "5")

    def test_another_scheduler_binds_without_them(self, admin: Client, path: str) -> None:
        binding = {"metadata": {"name": "held", "annotations": {"mine": "1"}}, "target": {"kind": "Node", "name": "x"}}
        as_account(admin, "volcano").post(f"{path}/binding", {"apiVersion": "v1", "kind": "Binding", **binding})
        assert admin.get(path)["metadata"]["annotations"] == {ALLOCATION: "{}", INDEX: "0", "mine": "1"}
