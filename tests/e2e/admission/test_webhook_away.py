"""What goes on, and what is held, while nobody answers for the webhook."""

from collections.abc import Iterator

import pytest

from deviceplugin.cluster.webhook.review import AdmissionWebhook
from sandbox.cluster.admission import WebhookServer
from sandbox.cluster.client import ApiError, Client
from sandbox.cluster.cluster import Cluster
from sandbox.cluster.waiting import wait_until
from tests.daemonset.manifests import Object
from tests.e2e.admission.requests import (
    CORE,
    DRY,
    KNOWN,
    SETTINGS,
    applied,
    as_kubelet,
    configuration,
    gpu_pod,
    in_namespace,
    labelled_namespace,
    static_pod,
)

pytestmark = pytest.mark.e2e


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


def test_while_the_webhook_is_away_kubelets_show_their_static_pods(away: Client, node: Object) -> None:
    """And nobody else passes for a kubelet (Security 9)."""
    mirror = static_pod("away-static", node)
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
        assert not _is_held(away, *in_namespace("kube-system", gpu_pod("away-system", {CORE: 100})))
        return
    with labelled_namespace(away, f"away-{label.partition('.')[0]}", {label: "ignore"}) as name:
        assert not _is_held(away, *in_namespace(name, gpu_pod("away-ignored", {CORE: 100})))
