"""What a kube-scheduler with the coscheduling plugin needs in the cluster, as docs/gangs.md tells it.

In: the values that the guide shows, the plugin's own definition of a PodGroup. Out: the definition and the rights in
the API server while the context lasts. Not here: the scheduler itself.
"""

import contextlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import yaml

from sandbox.cluster.client import ApiError, Client, JsonObject
from sandbox.cluster.waiting import wait_until
from sandbox.emulated_gpus import REPOSITORY
from tests.fenced import fenced

GUIDE = REPOSITORY / "docs" / "gangs.md"
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
GROUPS = "/apis/scheduling.x-k8s.io/v1alpha1/namespaces/default/podgroups"
RBAC = "/apis/rbac.authorization.k8s.io/v1"
RIGHTS = "coscheduling"


def values_of_the_guide() -> JsonObject:
    """`scheduler.kubeScheduler` of the values that docs/gangs.md shows."""
    blocks = fenced(GUIDE, "yaml")
    shown = (each for block in blocks for each in yaml.safe_load_all(block))
    found: JsonObject = next(each["scheduler"]["kubeScheduler"] for each in shown if "scheduler" in each)
    return found


@contextmanager
def pod_groups_known(admin: Client, definition: Path, rules: list[JsonObject]) -> Iterator[None]:
    crd = yaml.safe_load(definition.read_text())
    role: JsonObject = {"metadata": {"name": RIGHTS}, "rules": rules}
    binding: JsonObject = {
        "metadata": {"name": RIGHTS},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": RIGHTS},
        "subjects": [{"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": "system:kube-scheduler"}],
    }
    made = (
        (f"{RBAC}/clusterroles", role),
        (f"{RBAC}/clusterrolebindings", binding),
        (DEFINITIONS, crd),
    )
    try:
        for path, body in made:
            admin.post(path, body)
        wait_until(lambda: _served(admin), "PodGroups are served")
        yield
    finally:
        for path, body in reversed(made):
            with contextlib.suppress(ApiError):
                admin.delete(f"{path}/{body['metadata']['name']}")


def _served(admin: Client) -> bool:
    try:
        return not admin.get(GROUPS)["items"]
    except ApiError:
        return False
