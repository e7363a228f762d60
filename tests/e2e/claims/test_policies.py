"""The chart's policies on the real API server: claims that get more than they look are refused with a sentence."""

import itertools
from collections.abc import Iterator

import pytest
import yaml

from sandbox.cluster import pods
from sandbox.cluster.claims import CLAIMS, DRA, DRIVER, SHARES, SLICES, TEMPLATES, WHOLE_GPUS
from sandbox.cluster.client import ApiError, Client, JsonObject
from sandbox.cluster.cluster import Cluster
from sandbox.cluster.identities import Identity, Rule
from sandbox.cluster.waiting import wait_until
from sandbox.emulated_gpus import REPOSITORY
from tests.e2e.admission.requests import as_kubelet
from tests.e2e.claims.scene import classes_and_policies
from tests.fenced import fenced

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

GOOD = {"cores": "20", "memory": "2Gi"}
FORMS = ("exactly", "firstAvailable")
PLACES = (CLAIMS, TEMPLATES)
WITHOUT_DOMAIN = "has the capacities cores and memory, written without a domain"
BOTH = "must say capacity.requests.cores and capacity.requests.memory"


@pytest.fixture(scope="module", autouse=True)
def policies(cluster: Cluster) -> Iterator[None]:
    with classes_and_policies(cluster.admin):
        trap = {"metadata": {"name": "trap"}, "spec": {"extendedResourceName": "tencent.com/vcuda-core"}}
        wait_until(
            lambda: (
                refusal(cluster, CLAIMS, asked(CLAIMS, "exactly", SHARES, None))
                and refusal(cluster, f"{DRA}/deviceclasses", trap)
            ),
            "the API server asks the policies",
        )
        yield


def refusal(cluster: Cluster, path: str, body: JsonObject) -> str:
    """What the API server says; empty if it would make the object."""
    try:
        cluster.admin.post(f"{path}?dryRun=All", body)
    except ApiError as error:
        return str(error)
    return ""


def asked(path: str, form: str, device_class: str, requests: JsonObject | None, **more: object) -> JsonObject:
    one: JsonObject = {"deviceClassName": device_class, **more}
    if requests is not None:
        one["capacity"] = {"requests": requests}
    request: JsonObject = {"name": "gpu", "exactly": one}
    if form == "firstAvailable":
        request = {"name": "gpu", "firstAvailable": [{"name": "first", **one}]}
    spec: JsonObject = {"devices": {"requests": [request]}}
    return {"metadata": {"name": "p"}, "spec": {"spec": spec} if path == TEMPLATES else spec}


@pytest.mark.parametrize(("path", "form"), [*itertools.product(PLACES, FORMS)])
@pytest.mark.parametrize(
    ("device_class", "requests", "said"),
    [
        (SHARES, GOOD, ""),
        (SHARES, {"cores": 20, "memory": "2Gi"}, ""),
        (SHARES, None, BOTH),
        (SHARES, {"cores": "20"}, BOTH),
        (SHARES, {"memory": "2Gi"}, BOTH),
        (SHARES, {f"{DRIVER}/cores": "20", f"{DRIVER}/memory": "2Gi"}, WITHOUT_DOMAIN),
        (SHARES, {"cores": "101", "memory": "2Gi"}, "a GPU has 100 cores"),
        (WHOLE_GPUS, None, ""),
        (WHOLE_GPUS, GOOD, "gets whole GPUs, so leave out its capacity"),
        ("another.example.org", {"shoes": "2"}, ""),
    ],
)
def test_requests(
    cluster: Cluster, path: str, form: str, device_class: str, requests: JsonObject | None, said: str
) -> None:
    found = refusal(cluster, path, asked(path, form, device_class, requests))
    assert (said in found) if said else not found, found


@pytest.mark.parametrize("path", PLACES)
@pytest.mark.parametrize("spec", [{}, {"devices": {}}, {"devices": {"requests": []}}], ids=str)
def test_a_claim_that_asks_for_nothing_is_nobodys_business(cluster: Cluster, path: str, spec: JsonObject) -> None:
    """The policy looks at the claims of every driver, and failed where a field was left out."""
    body = {"metadata": {"name": "p"}, "spec": {"spec": spec} if path == TEMPLATES else spec}
    assert refusal(cluster, path, body) == ""


@pytest.fixture
def admin_namespace(cluster: Cluster) -> Iterator[None]:
    """Elsewhere the API server itself refuses administrative access."""
    path, label = f"/api/v1/namespaces/{pods.NAMESPACE}", "resource.kubernetes.io/admin-access"
    cluster.admin.merge(path, {"metadata": {"labels": {label: "true"}}})
    yield
    cluster.admin.merge(path, {"metadata": {"labels": {label: None}}})


@pytest.mark.usefixtures("admin_namespace")
@pytest.mark.parametrize("path", PLACES)
def test_what_the_driver_would_refuse_is_refused_at_once(cluster: Cluster, path: str) -> None:
    admin = asked(path, "exactly", SHARES, GOOD, adminAccess=True)
    assert "there is no administrative access to a GPU" in refusal(cluster, path, admin)
    for driver, said in ((DRIVER, f"the driver {DRIVER} knows no parameters"), ("gpu.example.org", "")):
        body = asked(path, "exactly", SHARES, GOOD)
        spec = body["spec"]["spec"] if path == TEMPLATES else body["spec"]
        spec["devices"]["config"] = [{"opaque": {"driver": driver, "parameters": {"kind": "Any"}}}]
        found = refusal(cluster, path, body)
        assert (said in found) if said else not found, found


@pytest.mark.parametrize("resource", ["vcuda-core", "vcuda-memory", "vcuda-memory-mib"])
def test_no_class_counts_cores_as_devices(cluster: Cluster, resource: str) -> None:
    body = {"metadata": {"name": "trap"}, "spec": {"extendedResourceName": f"tencent.com/{resource}"}}
    assert "an extended resource counts whole devices" in refusal(cluster, f"{DRA}/deviceclasses", body)


def test_the_api_server_takes_the_claims_of_the_documentation(cluster: Cluster) -> None:
    texts = fenced(REPOSITORY / "docs/claims.md", "yaml")
    for each in (found for text in texts for found in yaml.safe_load_all(text)):
        if each.get("kind") == "Pod":
            assert refusal(cluster, pods.PODS, each) == ""
        elif each.get("kind") == "ResourceClaimTemplate":
            assert refusal(cluster, TEMPLATES, each) == ""
        else:
            assert refusal(cluster, CLAIMS, {"metadata": {"name": "p"}, "spec": each}) == ""


OTHER = "another-node"
NAMED = f"a ResourceSlice of the driver {DRIVER} is named after its node"
POOLED = "and its pool has the name of that node"
FORGED: dict[str, tuple[JsonObject, str]] = {
    "its own": ({}, ""),
    "node": ({"node": OTHER, "pool": OTHER, "generateName": f"{OTHER}-vcuda-"}, "of its own node only"),
    "driver": ({"driver": "gpu.example.org"}, f"of the driver {DRIVER} only"),
    "pool": ({"pool": OTHER}, POOLED),
    "newer slices of a pool": ({"pool": OTHER, "generation": 99}, POOLED),
    "name that another node's may get": ({"name": f"{OTHER}-vcuda-abcde"}, NAMED),
    "beginning of the name": ({"generateName": f"{OTHER}-vcuda-"}, NAMED),
    "name of another node": ({"name": OTHER}, NAMED),
    "any other name": ({"name": "p"}, NAMED),
    "owner": ({"owner": OTHER}, "is owned by its node and by nothing else"),
}
"""One field that identifies at a time, and what is said to it."""


@pytest.fixture(scope="module")
def agent(cluster: Cluster) -> Iterator[Identity]:
    """By the name of the account: an agent in no matter which namespace."""
    rules = [Rule("resource.k8s.io", ["resourceslices"], ["create", "delete", "get"]).as_json()]
    identity = Identity.create(cluster.admin, "vcuda-agent", rules)
    try:
        node = cluster.kubelet.node
        wait_until(
            lambda: "of its own node only" in offered(by_token(cluster, identity.token(node=node)), OTHER),
            "the API server asks the policy of the agents",
        )
        yield identity
    finally:
        identity.remove()


@pytest.mark.parametrize(("change", "said"), FORGED.values(), ids=FORGED)
def test_an_agent_offers_devices_of_its_own_node_and_driver_alone(
    cluster: Cluster, agent: Identity, change: JsonObject, said: str
) -> None:
    """Security A-8: each field by which a slice and its devices are identified."""
    node = cluster.kubelet.node
    found = offered(by_token(cluster, agent.token(node=node)), **{"node": node, **change})
    assert (said in found) if said else not found, found


def test_a_token_that_no_pod_has_offers_nothing(cluster: Cluster, agent: Identity) -> None:
    assert "of its own node only" in offered(by_token(cluster, agent.token()), cluster.kubelet.node)


@pytest.mark.parametrize("field", ["its own", "pool", "newer slices of a pool", "beginning of the name", "owner"])
@pytest.mark.usefixtures("agent")
def test_kubelet_and_everybody_else_name_the_pool_of_our_driver_after_its_node(cluster: Cluster, field: str) -> None:
    """The API server keeps a kubelet to `nodeName`, and lets it write any pool."""
    node, (change, said) = cluster.kubelet.node, FORGED[field]
    for client in (cluster.admin, as_kubelet(cluster.admin, node)):
        found = offered(client, **{"node": node, **change})
        assert (said in found) if said else not found, found
    assert offered(cluster.admin, node, driver="gpu.example.org", pool=OTHER, name="p") == "", "a driver of others"


def test_a_node_with_a_long_name_offers_its_devices(cluster: Cluster, agent: Identity) -> None:
    """The API server makes a name of the first 58 characters of generateName."""
    node = "n" * 70
    cluster.admin.post("/api/v1/nodes", {"metadata": {"name": node}})
    try:
        client = by_token(cluster, agent.token(node=node))
        assert offered(client, node) == ""
        assert NAMED in offered(client, node, generateName="n" * 57)
    finally:
        cluster.admin.delete(f"/api/v1/nodes/{node}")


def by_token(cluster: Cluster, token: str) -> Client:
    return Client.by_token(cluster.control_plane.server, cluster.ca.certificate, token)


def offered(
    client: Client,
    node: str,
    *,
    driver: str = DRIVER,
    pool: str = "",
    generation: int = 1,
    owner: str = "",
    **name: str,
) -> str:
    """What the API server says to a slice as the agent writes it, but for what is given."""
    owners = [{"apiVersion": "v1", "kind": "Node", "name": owner or node, "uid": "1", "controller": True}]
    metadata = {**(name or {"generateName": f"{node}-vcuda-"}), "ownerReferences": owners}
    pools = {"name": pool or node, "generation": generation, "resourceSliceCount": 1}
    spec = {"driver": driver, "nodeName": node, "pool": pools, "devices": []}
    try:
        client.post(f"{SLICES}?dryRun=All", {"metadata": metadata, "spec": spec})
    except ApiError as error:
        return str(error)
    finally:
        client.close()
    return ""
