"""The cluster itself: what fails here is the harness's fault, not the agent's."""

import pytest

from sandbox.cluster import claims, pods
from sandbox.cluster.client import ApiError, Client
from sandbox.cluster.cluster import Cluster
from sandbox.cluster.identities import Identity, Rule
from sandbox.cluster.kubelet import NODE
from sandbox.cluster.reset import reset
from sandbox.cluster.waiting import wait_until
from tests.e2e import device_plugin

pytestmark = pytest.mark.e2e

SLEEP = "trap 'exit 0' TERM; while :; do sleep 3600 & wait $!; done"


def test_a_plain_pod_runs_and_its_log_is_read(empty_cluster: Cluster) -> None:
    admin = empty_cluster.admin
    pods.create(admin, pods.pod("plain", [pods.container("main", f"echo hello from $HOSTNAME; {SLEEP}")]))

    state = pods.wait_running(admin, ["plain"])["plain"]

    assert state.node == NODE
    wait_until(lambda: pods.log(admin, "plain", "main") == "hello from plain\n", "the pod's log is there")


def test_a_pod_gets_the_devices_of_a_device_plugin(empty_cluster: Cluster) -> None:
    admin, resource = empty_cluster.admin, "example.com/widget"
    plugin = device_plugin.DevicePlugin(resource, count=4)
    with device_plugin.registered(plugin, empty_cluster.layout.device_plugins):
        wait_until(lambda: _allocatable(admin, resource) == 4, "the node offers 4 widgets")
        script = f"echo given ${device_plugin.GIVEN}; {SLEEP}"
        pods.create(admin, pods.pod("widgets", [pods.container("main", script, {resource: 3})]))
        pods.wait_running(admin, ["widgets"])

        (given,) = plugin.allocated
        assert len(given) == 3
        assert plugin.prestarted == [given]
        expected = f"given {','.join(given)}\n"
        wait_until(lambda: pods.log(admin, "widgets", "main") == expected, "the pod names its devices")


def test_running_pods_survive_a_killed_kubelet(empty_cluster: Cluster) -> None:
    admin, kubelet = empty_cluster.admin, empty_cluster.kubelet
    pods.create(admin, pods.pod("survivor", [pods.container("main", SLEEP)]))
    before = pods.wait_running(admin, ["survivor"])["survivor"]

    kubelet.kill()
    kubelet.start()

    after = pods.wait_running(admin, ["survivor"])["survivor"]
    assert after.containers == before.containers  # the same container, restarted not once


@pytest.mark.parametrize(("resource", "allowed"), [("nodes/pods", True), ("nodes/proxy", True), ("nodes", False)])
def test_kubelet_shows_its_pods_to_whom_it_is_permitted(cluster: Cluster, resource: str, allowed: bool) -> None:
    name = f"reader-{resource.replace('/', '-')}"
    identity = Identity.create(cluster.admin, name, [Rule("", [resource], ["get"]).as_json()])
    kubelet = Client.by_token(cluster.kubelet.url, cluster.ca.certificate, identity.token())
    try:
        assert _may_read_pods(kubelet) is allowed
        identity.permit([])
        wait_until(lambda: not _may_read_pods(kubelet), "a permission taken away is gone")
    finally:
        kubelet.close()
        identity.remove()


def _may_read_pods(kubelet: Client) -> bool:
    try:
        return bool(kubelet.get("/pods")["kind"] == "PodList")
    except ApiError as error:
        if error.status != 403:
            raise
        return False


def _allocatable(admin: Client, resource: str) -> int:
    return int(admin.get(f"/api/v1/nodes/{NODE}")["status"]["allocatable"].get(resource, 0))


def test_a_node_that_was_left_dirty_is_reset(empty_cluster: Cluster) -> None:
    admin, node = empty_cluster.admin, f"/api/v1/nodes/{NODE}"
    pods.create(admin, pods.pod("left", [pods.container("main", SLEEP)]))
    pods.wait_running(admin, ["left"])
    admin.post(f"{claims.CLASSES}", {"metadata": {"name": "left.example.com"}, "spec": {}})
    admin.merge(node, {"metadata": {"labels": {"left": "x"}, "annotations": {"example.com/left": "x"}}})
    admin.merge(node, {"spec": {"unschedulable": True}})
    offered = {"example.com/left": "8"}
    admin.merge(f"{node}/status", {"status": {"capacity": offered, "allocatable": offered}})
    remembered = empty_cluster.layout.kubelet / "dra_manager_state"
    remembered.write_text("left")

    reset(empty_cluster)

    found = admin.get(node)
    assert pods.states(admin) == {}
    assert [each["metadata"]["name"] for each in admin.get(claims.CLASSES)["items"]] == []
    assert "left" not in found["metadata"]["labels"]
    assert "example.com/left" not in found["metadata"]["annotations"]
    assert not found["spec"].get("unschedulable")
    assert "example.com/left" not in found["status"]["capacity"] | found["status"]["allocatable"]
    assert not remembered.exists() or remembered.read_text() != "left"
    test_a_plain_pod_runs_and_its_log_is_read(empty_cluster)
