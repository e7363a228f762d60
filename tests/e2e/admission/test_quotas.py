"""docs/how-to/quotas.md on a real API server, beside vcuda's webhook: what the quota counts, and what it refuses.

No scheduler places these pods: a quota counts pods that wait as well.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count

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

QUOTA, POLICY = fenced(ROOT / "docs/how-to/quotas.md", "yaml")
_numbers = count(1)


@dataclass(frozen=True, slots=True)
class Team:
    """The namespace of the page under a name of its own: one that was deleted is there for a while."""

    client: Client
    namespace: str

    @property
    def root(self) -> str:
        return f"/api/v1/namespaces/{self.namespace}"

    def documents(self, text: str) -> list[Object]:
        return [*yaml.safe_load_all(text.replace("team-a", self.namespace))]

    def used(self) -> dict[str, str]:
        (found,) = self.client.get(f"{self.root}/resourcequotas")["items"]
        counted: dict[str, str] = found.get("status", {}).get("used", {})
        return counted

    def create(self, pod: Object, *, query: str = "") -> str:
        """The message of the API server; empty where it takes the pod."""
        path, made = in_namespace(self.namespace, pod)
        made["spec"]["schedulerName"] = "nobody"
        try:
            self.client.post(path.partition("?")[0] + query, made)
        except ApiError as error:
            return str(error)
        return ""

    def limits(self, name: str) -> dict[str, str]:
        """Of the pod's first container, as the API server keeps it."""
        return _limits(self.client.get(f"{self.root}/pods/{name}"))

    def limits_of(self, pod: Object) -> dict[str, str]:
        """The same of a pod that is only tried."""
        return _limits(self.client.post(*in_namespace(self.namespace, pod)))


def _limits(pod: Object) -> dict[str, str]:
    found: dict[str, str] = pod["spec"]["containers"][0]["resources"].get("limits", {})
    return found


@pytest.fixture
def team(admin: Client) -> Iterator[Team]:
    with labelled_namespace(admin, f"team-{next(_numbers)}", {}) as namespace:
        yield Team(admin, namespace)


@pytest.fixture
def quota(team: Team) -> Team:
    (made,) = team.documents(QUOTA)
    team.client.post(f"{team.root}/resourcequotas", made)
    wait_until(lambda: len(team.used()) == len(made["spec"]["hard"]), "the quota is counted")
    return team


def test_a_pod_beyond_the_quota_is_refused_and_the_message_names_the_resource(quota: Team) -> None:
    assert quota.create(gpu_pod("one", {CORE: 100})) == ""
    wait_until(lambda: quota.used()[f"requests.{CORE}"] == "100", "the pod is counted")
    refused = quota.create(gpu_pod("two", {CORE: 60, MEMORY: 8}))
    for fact in (f"requests.{CORE}", "requested", "used", "limited", "150"):
        assert fact in refused
    assert quota.create(gpu_pod("three", {CORE: 50, MEMORY: 8})) == ""


def test_the_memory_that_the_webhook_adds_counts(quota: Team) -> None:
    assert quota.create(gpu_pod("share", {CORE: 20})) == ""
    added = quota.limits("share")[MEMORY]
    assert int(added) > 0
    wait_until(lambda: quota.used()[f"requests.{MEMORY}"] == added, "its memory is counted")


def test_a_pod_for_hami_counts_as_what_it_becomes(quota: Team) -> None:
    limits = {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 2048, "nvidia.com/gpucores": 30}
    assert quota.create(gpu_pod("hami", limits)) == ""
    wait_until(lambda: [quota.used()[f"requests.{each}"] for each in (CORE, MEMORY)] == ["30", "8"], "both are counted")


def test_the_policy_bounds_one_container_and_leaves_others_alone(team: Team) -> None:
    with applied(team.client, *team.documents(POLICY)):
        big = gpu_pod("big", {CORE: 60, MEMORY: 8})
        dry = "?dryRun=All"
        assert "half a GPU" in team.create(big, query=dry)
        assert team.create(gpu_pod("half", {CORE: 50, MEMORY: 8}), query=dry) == ""
        assert team.create(pods.pod("none", [pods.container("c", "sleep 1")]), query=dry) == ""
        hidden = gpu_pod("hidden", {CORE: 10, MEMORY: 8})
        hidden["spec"]["initContainers"] = [pods.container("first", "true", {CORE: 60, MEMORY: 8})]
        assert "half a GPU" in team.create(hidden, query=dry)


def test_a_limit_range_is_no_way_to_bound_a_container(team: Team) -> None:
    """The page says so: its largest value becomes everybody's default."""
    item = {"type": "Container", "max": {CORE: "50", MEMORY: "160"}}
    team.client.post(f"{team.root}/limitranges", {"metadata": {"name": "gpu"}, "spec": {"limits": [item]}})
    plain = pods.pod("plain", [pods.container("c", "sleep 1")])
    assert wait_until(lambda: team.limits_of(plain), "the range is in force") == {CORE: "50", MEMORY: "160"}
