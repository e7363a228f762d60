"""The synthetic cluster is consistent, and the figures are what their names say."""

from collections import Counter

import pytest

from benchmarks.cluster import fleet
from benchmarks.cluster.load import percentile, sampled
from deviceplugin.model.annotation_names import AnnotationNames
from deviceplugin.model.annotations import parse_allocation
from deviceplugin.model.node import parse_inventory
from deviceplugin.model.units import CORES_PER_GPU, ResourceNames

NAMES, RESOURCES = AnnotationNames(), ResourceNames()


def test_running_pods_hold_no_more_than_their_gpus_have() -> None:
    nodes, cores, blocks = 40, Counter[str](), Counter[str]()
    has: dict[str, int] = {gpu.uuid: gpu.blocks for number in range(nodes) for gpu in fleet.inventory_of(number).gpus}
    for pod in fleet.running_pods(nodes, nodes * 4):
        written = parse_allocation(pod["metadata"]["annotations"][NAMES.allocation])
        assert written.pod == pod["metadata"]["uid"]
        (share,) = written.containers["main"]
        limits = pod["spec"]["containers"][0]["resources"]["limits"]
        assert (int(limits[RESOURCES.core]), int(limits[RESOURCES.memory])) == (share.cores, share.blocks)
        assert fleet.inventory_of(_number(pod["spec"]["nodeName"])).gpu(share.uuid)
        cores[share.uuid] += share.cores
        blocks[share.uuid] += share.blocks
    assert max(cores.values()) <= CORES_PER_GPU
    assert all(count <= has[uuid] for uuid, count in blocks.items())


def test_a_node_offers_what_its_inventory_has() -> None:
    node = fleet.node(7)
    inventory, share_mode = parse_inventory(node["metadata"]["annotations"][NAMES.inventory])
    offered = node["status"]["allocatable"]
    assert share_mode
    assert int(offered[RESOURCES.core]) == CORES_PER_GPU * len(inventory.gpus)
    assert int(offered[RESOURCES.memory]) == sum(gpu.blocks for gpu in inventory.gpus)


def test_as_many_names_are_sent_as_kube_scheduler_samples() -> None:
    samples = {50: 50, 100: 100, 300: 144, 1_000: 420, 3_000: 780, 5_000: 500, 10_000: 500}
    assert {nodes: sampled(nodes) for nodes in samples} == samples


def test_a_percentile_is_an_answer_that_came() -> None:
    hundred = [each / 1000 for each in range(1, 101)]
    asked = (([0.001], 99), ([0.001, 0.002], 50), (hundred, 99), ([0.005, 0.001], 99))
    assert [percentile(seconds, percent) for seconds, percent in asked] == pytest.approx([1, 1, 99, 5])


def _number(node: str) -> int:
    return int(node.removeprefix("gpu-node-").split(".")[0])
