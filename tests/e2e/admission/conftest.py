"""The webhook as the API server asks it, with the shipped configuration; one server for each module of tests."""

from collections.abc import Iterator

import pytest

from deviceplugin.cluster.webhook.review import AdmissionWebhook
from sandbox.cluster.admission import WebhookServer, serving
from sandbox.cluster.client import Client
from sandbox.cluster.cluster import Cluster
from sandbox.cluster.waiting import wait_until
from tests.daemonset.manifests import Object
from tests.e2e.admission.requests import CORE, DRY, KNOWN, SETTINGS, applied, configuration, gpu_pod


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


@pytest.fixture
def node(cluster: Cluster) -> Object:
    return cluster.admin.get(f"/api/v1/nodes/{cluster.kubelet.node}")
