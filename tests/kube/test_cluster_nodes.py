"""A node says what its agent, its operator and kubelet say of it, and a heartbeat says nothing new."""

import asyncio
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deviceplugin.kube.client import KubeClient
from deviceplugin.kube.cluster_objects import cluster_nodes
from deviceplugin.kube.reflector import Reflector, StoreChange, WatchTiming
from deviceplugin.model.gpu import Driver, Gpu, GpuUuid, Inventory
from deviceplugin.model.node import ClusterNode, cordon_words
from deviceplugin.model.topology import Topology
from deviceplugin.model.units import Compute
from sandbox.apiserver import ApiServer, JsonObject, node
from tests.waiting import in_background, until

NODES = cluster_nodes()
FULL: JsonObject = {
    "metadata": {
        "name": "n1",
        "uid": "u-1",
        "resourceVersion": "7",
        "annotations": {
            "tencent.com/vcuda-inventory": '{"version":1}',
            "tencent.com/vcuda-cordon": "GPU-a, 3",
            "hami.io/device-cordon": "GPU-b",
            "volumes.kubernetes.io/controller-managed-attach-detach": "true",
        },
    },
    "spec": {"unschedulable": True, "podCIDR": "10.0.0.0/24"},
    "status": {
        "allocatable": {
            "cpu": "96",
            "memory": "1Ti",
            "tencent.com/vcuda-core": "800",
            "tencent.com/vcuda-memory": "2k",
        },
        "conditions": [
            {"type": "MemoryPressure", "status": "False", "lastHeartbeatTime": "2026-01-01T00:00:00Z"},
            {"type": "Ready", "status": "True", "reason": "KubeletReady"},
        ],
        "images": [{"names": ["a", "b"], "sizeBytes": 1}],
    },
}


def read(item: JsonObject) -> ClusterNode:
    found = NODES.read(json.dumps(item).encode()).item
    assert found is not None
    return found


def test_everything_that_counts_is_read() -> None:
    assert read(FULL) == ClusterNode(
        name="n1",
        uid="u-1",
        inventory='{"version":1}',
        cordon=frozenset({"GPU-a", "3", "GPU-b"}),
        unschedulable=True,
        ready=True,
        deleting=False,
        cores=800,
        blocks=2000,
        allocatable=Compute(96_000, 1 << 40),
    )


def test_a_bare_node_offers_nothing() -> None:
    found = read({"metadata": {"name": "n1", "uid": "u-1"}})
    assert (found.inventory, found.ready, found.unschedulable, found.cores, found.blocks) == ("", False, False, 0, 0)


def test_a_node_that_is_not_known_to_be_ready_is_not(subtests: pytest.Subtests) -> None:
    for status in ["False", "Unknown"]:
        with subtests.test(status=status):
            assert not read(FULL | {"status": {"conditions": [{"type": "Ready", "status": status}]}}).ready


def test_an_allocatable_that_cannot_be_read_offers_nothing(subtests: pytest.Subtests) -> None:
    for text in ["lots", "-3", "1500m", ""]:
        with subtests.test(text=text):
            assert read(FULL | {"status": {"allocatable": {"tencent.com/vcuda-core": text}}}).cores == 0


def test_cpu_and_memory_are_known_together_or_not_at_all(subtests: pytest.Subtests) -> None:
    cases: list[tuple[JsonObject, Compute | None]] = [
        ({"cpu": "7910m", "memory": "64Gi"}, Compute(7910, 64 << 30)),
        ({"cpu": 8, "memory": 1024}, Compute(8000, 1024)),
        ({"cpu": "1.5", "memory": "1e3"}, Compute(1500, 1000)),
        ({"cpu": "8"}, None),
        ({"memory": "1Gi"}, None),
        ({"cpu": "8", "memory": "much"}, None),
        ({}, None),
    ]
    for allocatable, offers in cases:
        with subtests.test(allocatable=allocatable):
            assert read(FULL | {"status": {"allocatable": allocatable}}).allocatable == offers


def test_a_node_that_is_going_says_so() -> None:
    assert read({"metadata": {"name": "n1", "uid": "u", "deletionTimestamp": "2026-01-01T00:00:00Z"}}).deleting


FOUR_GPUS = Inventory(
    gpus=tuple(
        Gpu(uuid=GpuUuid(f"GPU-{name}"), index=index, minor=index, model="A100", memory_bytes=1 << 34)
        for index, name in enumerate("abcd")
    ),
    driver=Driver("570", (12, 8)),
    topology=Topology((0, 1, 2, 3)),
)


def test_a_cordon_names_gpus_by_uuid_or_minor() -> None:
    assert read(FULL).cordoned(FOUR_GPUS) == {"GPU-a", "GPU-b", "GPU-d"}
    assert ClusterNode("n", "u").cordoned(FOUR_GPUS) == frozenset()
    wrong = ClusterNode("n", "u", cordon=frozenset({"GPU-a", "3", "4", "gpu2"}))
    assert wrong.unmatched(FOUR_GPUS) == {"4", "gpu2"}


def test_a_node_whose_nvml_shall_be_closed_is_cordoned_as_a_whole(subtests: pytest.Subtests) -> None:
    for value, closes in [("true", True), ("", True), ("false", False), (None, False)]:
        with subtests.test(value=value):
            annotations = {} if value is None else {"tencent.com/vcuda-close-nvml": value}
            node = read({"metadata": {"name": "n1", "uid": "u-1", "annotations": annotations}})
            assert node.close_nvml is closes
            assert len(node.cordoned(FOUR_GPUS)) == (4 if closes else 0)


@given(st.lists(st.lists(st.text("ab0-", min_size=1)).map(",".join)))
def test_a_cordon_is_the_union_of_its_lists(texts: list[str]) -> None:
    assert cordon_words(*texts) == frozenset().union(*(cordon_words(text) for text in texts))


async def test_a_heartbeat_reaches_no_subscriber(server: ApiServer, client: KubeClient) -> None:
    server.store.create("nodes", node("n1") | {"status": FULL["status"]})
    heard: list[StoreChange[ClusterNode]] = []
    reflector = Reflector(client, NODES, pace=WatchTiming(watch=20.0, first_wait=0.01, most_wait=0.02))
    reflector.subscribe(heard.append)
    async with in_background(reflector.run()):
        await asyncio.wait_for(reflector.synced.wait(), 60)
        beat = {"type": "Ready", "status": "True", "lastHeartbeatTime": "2026-01-01T00:05:00Z"}
        server.store.patch("nodes", "n1", {"status": {"conditions": [beat]}}, status=True)
        server.store.patch("nodes", "n1", {"spec": {"unschedulable": True}})
        server.store.delete("nodes", "n1")
        server.store.create("nodes", node("n1"))
        await until(lambda: len(heard) == 4)
    assert [(change.kind.value, change.item.unschedulable) for change in heard] == [
        ("ADDED", False),
        ("MODIFIED", True),
        ("DELETED", True),
        ("ADDED", False),
    ]
