"""The annotation policy on a real API server: its CEL, and what each account may write and bind.

No scheduler and no agent of ours runs, and bindings go to a node that does not exist.
"""

import contextlib
from collections.abc import Iterator

import pytest

from sandbox.cluster import pods
from sandbox.cluster.admission import WebhookServer
from sandbox.cluster.client import ApiError, Client
from sandbox.cluster.cluster import Cluster
from sandbox.cluster.policies import POLICIES
from tests.daemonset.manifests import Object, documents
from tests.e2e.admission.requests import (
    ALLOCATION,
    CORE,
    DRY,
    INDEX,
    MIRROR,
    applied,
    as_account,
    as_kubelet,
    gpu_pod,
    in_namespace,
    labelled_namespace,
    refusal,
    static_pod,
)

pytestmark = [pytest.mark.e2e, pytest.mark.usefixtures("policy")]


@pytest.fixture(scope="module")
def policy(cluster: Cluster, server: WebhookServer) -> Iterator[None]:
    with applied(cluster.admin, *documents("scheduler/policy.yaml")):
        yield


def _message(client: Client, path: str, change: Object) -> str:
    try:
        client.merge(path, change)
    except ApiError as error:
        return str(error)
    return ""


SET = {"metadata": {"annotations": {ALLOCATION: "{}", INDEX: "1"}}}


@pytest.fixture
def path(admin: Client) -> Iterator[str]:
    admin.post(pods.PODS, gpu_pod("held", {CORE: 100}))
    path = f"{pods.PODS}/held"
    as_account(admin, "vcuda-agent").merge(path, {"metadata": {"annotations": {ALLOCATION: "{}", INDEX: "0"}}})
    yield path
    admin.delete(f"{path}?gracePeriodSeconds=0")  # no kubelet ends the pod of a node that does not exist


@pytest.mark.parametrize("account", ["vcuda-agent", "vcuda-scheduler"])
def test_our_programs_change_them(admin: Client, path: str, account: str) -> None:
    changed = as_account(admin, account).merge(path, SET)
    assert changed["metadata"]["annotations"][INDEX] == "1"


@pytest.mark.parametrize("subresource", ["", "/status"])
@pytest.mark.parametrize("text", ["2", None])
def test_no_other_account_changes_or_removes_them(admin: Client, path: str, subresource: str, text: str | None) -> None:
    change = {"metadata": {"annotations": {INDEX: text}}}
    said = _message(as_account(admin, "default"), path + subresource, change)
    assert f"{INDEX} is written by vcuda alone; leave the annotations of the pod as they are" in said


@pytest.mark.parametrize("subresource", ["/resize", "/ephemeralcontainers"])
def test_the_subresources_that_are_not_looked_at_change_no_annotation(
    admin: Client, path: str, subresource: str
) -> None:
    debug = [{"name": "debug", "image": "none"}] if subresource == "/ephemeralcontainers" else None
    spec = {"spec": {"ephemeralContainers": debug}} if debug else {}
    admin.merge(path + subresource, {"metadata": {"annotations": {INDEX: "7"}}, **spec})
    assert admin.get(path)["metadata"]["annotations"][INDEX] == "0"


def test_the_message_names_all_of_them(admin: Client, path: str) -> None:
    change = {"metadata": {"annotations": {INDEX: "2", ALLOCATION: None}}}
    assert f"{INDEX}, {ALLOCATION} are written by vcuda alone" in _message(admin, path, change)


@pytest.mark.parametrize("label", [None, "tencent.com/vcuda-webhook", "hami.io/webhook"])
def test_new_pods_do_not_bring_them_where_the_webhook_is_not_asked(
    admin: Client, server: WebhookServer, label: str | None
) -> None:
    """Security 9: as with the failure policy Ignore, or with no webhook at all."""
    forged = gpu_pod("forged", {CORE: 1}, annotations={ALLOCATION: "{}", INDEX: "0"}, nodeName="n1")
    mirror = gpu_pod("mirror", {CORE: 1}, annotations={MIRROR: "uid-of-a-victim"}, nodeName="n1")
    mirror["spec"]["automountServiceAccountToken"] = False
    with contextlib.ExitStack() as undo:
        name = "kube-system"
        if label is not None:
            name = undo.enter_context(labelled_namespace(admin, f"new-{label.partition('.')[0]}", {label: "ignore"}))
        user = as_account(admin, "default")
        with pytest.raises(ApiError, match="are written by vcuda alone; leave out these annotations"):
            user.post(*in_namespace(name, forged))
        with pytest.raises(ApiError, match=r"config\.mirror is written by kubelets alone"):
            user.post(*in_namespace(name, mirror))
        user.post(*in_namespace(name, gpu_pod("plain", {CORE: 100}, annotations={"mine": "1"})))
    assert not server.asked


def test_a_forged_mirror_is_sent_to_the_webhook_and_refused_in_spite_of_every_label(
    admin: Client, server: WebhookServer
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


@pytest.mark.parametrize("resource", [CORE, "tencent.com/vcuda-memory", "tencent.com/vcuda-memory-mib"])
def test_a_forged_mirror_with_any_resource_of_ours_is_refused(
    admin: Client, server: WebhookServer, resource: str
) -> None:
    """Each one that the webhook would look at, where it is not asked."""
    mirror = gpu_pod("mirror", {resource: 1}, annotations={MIRROR: "uid-of-a-victim"}, nodeName="n1")
    mirror["spec"]["automountServiceAccountToken"] = False
    with pytest.raises(ApiError, match=r"config\.mirror is written by kubelets alone"):
        as_account(admin, "default").post(*in_namespace("kube-system", mirror))
    assert not server.asked


def test_kubelet_shows_its_static_pods_with_whatever_their_files_have(
    admin: Client, server: WebhookServer, node: Object
) -> None:
    mirror = static_pod("static", node, **{INDEX: "0"})
    made = as_kubelet(admin, node["metadata"]["name"]).post(DRY, mirror)
    assert made["metadata"]["annotations"].items() >= {MIRROR: "abc", INDEX: "0"}.items()
    assert not server.asked


def test_the_api_server_finds_nothing_wrong_with_its_expressions(admin: Client) -> None:
    found = admin.get(f"{POLICIES}/vcuda-annotations")
    assert found["status"]["typeChecking"] == {}


def test_all_other_changes_are_everybodys(admin: Client, path: str) -> None:
    change = {"metadata": {"annotations": {"mine": "1", "tencent.com/vcuda-core-limit": "50"}, "labels": {"a": "b"}}}
    changed = as_account(admin, "default").merge(path, change)
    assert changed["metadata"]["annotations"] == {
        ALLOCATION: "{}",
        INDEX: "0",
        "mine": "1",
        "tencent.com/vcuda-core-limit": "50",
    }


def test_very_many_other_annotations_may_change_at_once(admin: Client, path: str) -> None:
    many = {f"example.com/annotation-{number}": "x" for number in range(7000)}
    admin.merge(path, {"metadata": {"annotations": many}})
    admin.merge(path, {"metadata": {"annotations": dict.fromkeys(many, "y")}})
    said = _message(admin, path, {"metadata": {"annotations": {**many, INDEX: "7"}}})
    assert f"{INDEX} is written by vcuda alone" in said


@pytest.mark.parametrize("way", ["/held/binding", "bindings"])
def test_only_our_scheduler_binds_with_them(admin: Client, path: str, way: str) -> None:
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


def test_another_scheduler_binds_without_them(admin: Client, path: str) -> None:
    binding = {"metadata": {"name": "held", "annotations": {"mine": "1"}}, "target": {"kind": "Node", "name": "x"}}
    as_account(admin, "volcano").post(f"{path}/binding", {"apiVersion": "v1", "kind": "Binding", **binding})
    assert admin.get(path)["metadata"]["annotations"] == {ALLOCATION: "{}", INDEX: "0", "mine": "1"}
