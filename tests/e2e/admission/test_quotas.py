"""docs/how-to/quotas.md on a real API server, beside vcuda's webhook: what the quota counts, and what it refuses.

No scheduler places these pods: a quota counts pods that wait as well.
"""

from collections.abc import Iterator

import pytest
import yaml

from sandbox.cluster import pods
from sandbox.cluster.client import ApiError, Client
from sandbox.cluster.waiting import wait_until
from scripts.manifests import ROOT
from tests.daemonset.manifests import Object
from tests.e2e.admission.requests import CORE, MEMORY, applied, gpu_pod, in_namespace, labelled_namespace
from tests.fenced import fenced

pytestmark = pytest.mark.e2e

QUOTA, POLICY = ([*yaml.safe_load_all(text)] for text in fenced(ROOT / "docs/how-to/quotas.md", "yaml"))
NAMESPACE = QUOTA[0]["metadata"]["namespace"]
QUOTAS = f"/api/v1/namespaces/{NAMESPACE}/resourcequotas"


@pytest.fixture
def team(admin: Client) -> Iterator[Client]:
    with labelled_namespace(admin, NAMESPACE, {}):
        yield admin


@pytest.fixture
def quota(team: Client) -> Client:
    (made,) = QUOTA
    team.post(QUOTAS, made)
    wait_until(lambda: len(used(team)) == len(made["spec"]["hard"]), "the quota is counted")
    return team


def used(client: Client) -> dict[str, str]:
    (found,) = client.get(QUOTAS)["items"]
    counted: dict[str, str] = found.get("status", {}).get("used", {})
    return counted


def create(client: Client, pod: Object, *, query: str = "") -> str:
    """The message of the API server; empty where it takes the pod."""
    path, made = in_namespace(NAMESPACE, pod)
    made["spec"]["schedulerName"] = "nobody"
    try:
        client.post(path.partition("?")[0] + query, made)
    except ApiError as error:
        return str(error)
    return ""


def test_a_pod_beyond_the_quota_is_refused_and_the_message_names_the_resource(quota: Client) -> None:
    assert create(quota, gpu_pod("one", {CORE: 100})) == ""
    wait_until(lambda: used(quota)[f"requests.{CORE}"] == "100", "the pod is counted")
    refused = create(quota, gpu_pod("two", {CORE: 60, MEMORY: 8}))
    for fact in (f"requests.{CORE}", "requested", "used", "limited", "150"):
        assert fact in refused
    assert create(quota, gpu_pod("three", {CORE: 50, MEMORY: 8})) == ""


def test_the_memory_that_the_webhook_adds_counts(quota: Client) -> None:
    assert create(quota, gpu_pod("share", {CORE: 20})) == ""
    added = int(pods_of(quota)["share"]["spec"]["containers"][0]["resources"]["limits"][MEMORY])
    assert added > 0
    wait_until(lambda: used(quota)[f"requests.{MEMORY}"] == str(added), "its memory is counted")


def test_a_pod_for_hami_counts_as_what_it_becomes(quota: Client) -> None:
    limits = {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 2048, "nvidia.com/gpucores": 30}
    assert create(quota, gpu_pod("hami", limits)) == ""
    wait_until(
        lambda: (used(quota)[f"requests.{CORE}"], used(quota)[f"requests.{MEMORY}"]) == ("30", "8"), "it is counted"
    )


def test_the_policy_bounds_one_container_and_leaves_others_alone(team: Client) -> None:
    with applied(team, *POLICY):
        big = gpu_pod("big", {CORE: 60, MEMORY: 8})
        dry = "?dryRun=All"
        wait_until(lambda: "half a GPU" in create(team, big, query=dry), "the policy holds")
        assert create(team, gpu_pod("half", {CORE: 50, MEMORY: 8}), query=dry) == ""
        assert create(team, pods.pod("none", [pods.container("c", "sleep 1")]), query=dry) == ""
        hidden = gpu_pod("hidden", {CORE: 10, MEMORY: 8})
        hidden["spec"]["initContainers"] = [pods.container("first", "true", {CORE: 60, MEMORY: 8})]
        assert "half a GPU" in create(team, hidden, query=dry)


def test_a_limit_range_is_no_way_to_bound_a_container(team: Client) -> None:
    """The page says so: its largest value becomes everybody's default."""
    item = {"type": "Container", "max": {CORE: "50", MEMORY: "160"}}
    path = f"/api/v1/namespaces/{NAMESPACE}/limitranges"
    team.post(path, {"metadata": {"name": "gpu"}, "spec": {"limits": [item]}})
    wait_until(lambda: team.get(path)["items"], "the range is there")
    wait_until(
        lambda: create(team, pods.pod("plain", [pods.container("c", "sleep 1")])) == "", "the plain pod is created"
    )
    assert pods_of(team)["plain"]["spec"]["containers"][0]["resources"]["limits"][CORE] == "50"


def pods_of(client: Client) -> dict[str, Object]:
    items = client.get(f"/api/v1/namespaces/{NAMESPACE}/pods")["items"]
    return {each["metadata"]["name"]: each for each in items}
