"""What is preferred of nodes does not count where the extender chooses, and an explanation says so."""

import json

import pytest

from deviceplugin.cluster.extender.extender import Extender
from deviceplugin.config.scheduler import NodeChooser, PlacementSettings
from deviceplugin.kube.cluster_objects import cluster_nodes, cluster_pods
from deviceplugin.model.node import ClusterNode
from deviceplugin.model.pod import ClusterPod
from deviceplugin.model.preferences import soft_line, soft_warning
from deviceplugin.structs import replace
from sandbox.apiserver import JsonObject, container
from sandbox.apiserver import node as json_node
from sandbox.apiserver import pod as json_pod
from tests.cluster.extender.api import MemoryApi
from tests.cluster.extender.makers import ask, bound, node, order, pod, running

PREFERRED = {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 100, "preference": {}}]}
REQUIRED: JsonObject = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": []}}
RULES: dict[str, tuple[JsonObject, tuple[str, ...]]] = {
    "nothing": ({}, ()),
    "required": ({"affinity": {"nodeAffinity": REQUIRED}}, ()),
    "an empty list": ({"affinity": {"podAffinity": {next(iter(PREFERRED)): []}}}, ()),
    "a hard spread": ({"topologySpreadConstraints": [{"whenUnsatisfiable": "DoNotSchedule"}]}, ()),
    "a node": ({"affinity": {"nodeAffinity": {**REQUIRED, **PREFERRED}}}, ("preferred node affinity",)),
    "pods": (
        {"affinity": {"podAffinity": PREFERRED, "podAntiAffinity": PREFERRED}},
        ("preferred pod affinity", "preferred pod anti-affinity"),
    ),
    "a soft spread": (
        {"topologySpreadConstraints": [{"whenUnsatisfiable": "ScheduleAnyway"}]},
        ("topology spread with ScheduleAnyway",),
    ),
}


@pytest.mark.parametrize("what", RULES)
def test_the_soft_rules_of_a_pod_are_read(what: str) -> None:
    spec, wanted = RULES[what]
    document = json_pod("p", container(cores=10, blocks=4))
    document["metadata"]["uid"] = "u"
    document["spec"] |= spec
    found = cluster_pods().read(json.dumps(document).encode()).item
    assert isinstance(found, ClusterPod)
    assert found.soft_rules == wanted


def test_the_taints_of_a_node_are_read() -> None:
    for effect, wanted in (("PreferNoSchedule", True), ("NoSchedule", False), (None, False)):
        document = json_node("n1")
        document["spec"] = {"taints": [{"key": "a", "effect": "NoExecute"}, {"key": "b", "effect": effect}]}
        found = cluster_nodes().read(json.dumps(document).encode()).item
        assert isinstance(found, ClusterNode)
        assert found.discouraged is wanted


def test_the_sentences() -> None:
    one, two = ["preferred node affinity"], ["preferred node affinity", "topology spread with ScheduleAnyway"]
    assert soft_warning(one).startswith("preferred node affinity does not count, because vcuda's extender chooses ")
    assert soft_warning(two).startswith("preferred node affinity and topology spread with ScheduleAnyway do not count")
    assert len(soft_warning([*two, "preferred pod affinity", "preferred pod anti-affinity"])) <= 240
    assert soft_line([], "") == ""
    assert soft_line([], "n1").startswith("the taint of node n1 with PreferNoSchedule does not count: ")


def preferring(name: str) -> ClusterPod:
    return replace(pod(name, cores=60), soft_rules=("preferred node affinity",))


LINE = "not count: vcuda's extender chooses the node (--node-choice=extender)"


async def test_it_is_said_of_a_pod_that_was_placed_that_waits_and_that_is_bound(
    extender: Extender, api: MemoryApi
) -> None:
    extender.put_node(replace(node("a", 1), discouraged=True))
    placed, waits, unasked = preferring("placed"), preferring("waits"), preferring("unasked")
    api.pods = {placed.uid: placed}
    for each in (placed, waits, unasked):
        extender.put_pod(each)
    assert extender.filter(ask(placed, "a")).names == ("a",)
    assert not extender.filter(ask(waits, "a")).names
    said = {}
    for name in ("placed", "waits", "unasked"):
        found = await extender.explain("d", name)
        assert found is not None
        said[name] = [line for line in found.asked if "not count" in line]
    assert said == {
        "placed": [f"preferred node affinity and the taint of node a with PreferNoSchedule do {LINE}"],
        "waits": [f"preferred node affinity does {LINE}"],
        "unasked": [f"preferred node affinity does {LINE}"],
    }
    assert await extender.bind(order(placed, "a")) == ""
    extender.put_pod(replace(api.pods[placed.uid], soft_rules=placed.soft_rules))
    found = await extender.explain("d", "placed")
    assert found is not None
    assert found.why[-1] == f"preferred node affinity and the taint of node a with PreferNoSchedule do {LINE}"


async def test_where_kube_scheduler_chooses_nothing_is_said(api: MemoryApi) -> None:
    extender = Extender(api, PlacementSettings(node_choice=NodeChooser.SCHEDULER))
    extender.put_node(node("a", 1))
    waits = preferring("waits")
    extender.put_pod(waits)
    extender.put_pod(bound(running("a", 0, 100, 64), "a"))
    extender.filter(ask(waits, "a"))
    found = await extender.explain("d", "waits")
    assert found is not None
    assert "not count" not in str(found)
