"""Claim templates on the real API server: what one namespace names keeps no other one waiting.

In: pods as the webhook leaves them, or as a tenant forges them. Out: templates, events. No pod starts: no scheduler
looks at them.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from sandbox.cluster.claims import DRA
from sandbox.cluster.client import ApiError, Client, JsonObject
from sandbox.cluster.cluster import Cluster
from sandbox.cluster.waiting import wait_until
from tests.e2e.claims.scene import classes_and_policies, rendered
from tests.e2e.scheduling.installation import NAME, PATHS, VcudaScheduler, installed

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

GREEDY, OTHER = "greedy", "other"
NAMES = [f"vcuda-1x{1 + at % 99}c{1 + at // 99}b" for at in range(8000)]
AT_ONCE = 64


@pytest.fixture
def scheduler(cluster: Cluster, tmp_path: Path) -> Iterator[VcudaScheduler]:
    """With the rights that the chart gives it, and two namespaces of tenants."""
    admin = cluster.admin
    documents = yaml.safe_load_all(
        rendered("webhook.translateToClaims=true", "webhook.certificates.patch=true")["scheduler/rbac.yaml"]
    )
    role = next(each for each in documents if each["kind"] == "ClusterRole")
    with classes_and_policies(admin), installed(cluster.control_plane, tmp_path, "--translate-to-claims") as ours:
        admin.merge(f"{PATHS['ClusterRole']}/{NAME}", {"rules": role["rules"]})
        ours.start()
        for each in (GREEDY, OTHER):
            admin.post("/api/v1/namespaces", {"metadata": {"name": each}})
        wait_until(lambda: all(has_account(admin, each) for each in (GREEDY, OTHER)), "both have their accounts")
        try:
            yield ours
        finally:
            for each in (GREEDY, OTHER):
                admin.delete(f"/api/v1/namespaces/{each}")
            wait_until(lambda: not ({GREEDY, OTHER} & namespaces(admin)), "both namespaces are gone")


def has_account(admin: Client, namespace: str) -> bool:
    try:
        admin.get(f"/api/v1/namespaces/{namespace}/serviceaccounts/default")
    except ApiError:
        return False
    return True


def namespaces(admin: Client) -> set[str]:
    return {each["metadata"]["name"] for each in admin.get("/api/v1/namespaces")["items"]}


def templates(admin: Client, namespace: str) -> set[str]:
    found = admin.get(f"{DRA}/namespaces/{namespace}/resourceclaimtemplates?limit=10000")["items"]
    return {each["metadata"]["name"] for each in found}


def refusals(admin: Client) -> dict[str, str]:
    """What was said, by the pod about which."""
    path = f"/api/v1/namespaces/{GREEDY}/events?fieldSelector=reason=GPUClaimRefused"
    return {each["involvedObject"]["name"]: each["message"] for each in admin.get(path)["items"]}


def create(admin: Client, namespace: str, name: str, *named: str, containers: int = 1) -> None:
    spec: JsonObject = {
        "schedulerName": "nobody",
        "containers": [{"name": f"c{at}", "image": "x"} for at in range(containers)],
        "resourceClaims": [{"name": f"c{at}", "resourceClaimTemplateName": each} for at, each in enumerate(named)],
    }
    meta = {"name": name, "labels": {"tencent.com/vcuda-claims": "true"}}
    admin.post(f"/api/v1/namespaces/{namespace}/pods", {"metadata": meta, "spec": spec})


def test_a_namespace_that_names_thousands_keeps_no_other_one_waiting(
    cluster: Cluster, scheduler: VcudaScheduler
) -> None:
    admin = cluster.admin
    create(admin, GREEDY, "one-of-all", *NAMES)
    for at in range(0, len(NAMES), AT_ONCE):
        create(admin, GREEDY, f"some-{at}", *NAMES[at : at + AT_ONCE], containers=AT_ONCE)
    create(admin, OTHER, "one", NAMES[0])
    wait_until(lambda: templates(admin, OTHER) == {NAMES[0]}, "the other namespace has its template")
    wait_until(lambda: len(templates(admin, GREEDY)) == 256, "the first one has its part")
    wait_until(lambda: "one-of-all" in refusals(admin) and len(refusals(admin)) > 1, "who has none is told")
    said = refusals(admin)
    assert "names 8000 claim templates of vcuda and may name 1" in said.pop("one-of-all")
    assert {why.partition(",")[0] for why in said.values()} == {f"namespace {GREEDY} has 256 claim templates"}
    create(admin, OTHER, "two", NAMES[1])
    wait_until(lambda: templates(admin, OTHER) == {*NAMES[:2]}, "and its second one")
    assert len(templates(admin, GREEDY)) == 256
    assert scheduler.client().ready("/healthz")
