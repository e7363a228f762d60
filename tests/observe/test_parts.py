"""A share over several GPUs in the views: each GPU with its part, the container with all of them."""

import pytest
from prometheus_client.parser import text_string_to_metric_families

from deviceplugin.gpu_manager.views import metrics_text, usages
from deviceplugin.ledger.grant import Grant
from deviceplugin.model.gpu import ContainerUse, GpuUse
from deviceplugin.model.pod import PodLimits
from deviceplugin.model.request import Request
from deviceplugin.observe.graph import draw
from deviceplugin.observe.usage import usage_of
from deviceplugin.structs import replace
from tests.observe.pictures import grant, pcie, uuid

NAMES = {"pod_name", "namespace", "node", "container_name"}


def parted() -> Grant:
    """60 cores and 16 blocks over GPUs 1 and 2."""
    one = grant("ml/infer/main", 1, 2, cores=30, blocks=8)
    return replace(one, allocation=replace(one.allocation, request=Request(60, 16, parts=2)))


def test_usage_shows_the_container_once_and_its_part_of_each_gpu() -> None:
    found = usage_of(pcie(4, parted()))
    (container,) = found.containers
    assert (container.cores, container.blocks, container.evaluator) == (60, 16, "share")
    assert [(each.uuid, each.cores, each.blocks) for each in container.gpus] == [(uuid(1), 30, 8), (uuid(2), 30, 8)]
    assert [(each.cores_allocated, each.blocks_allocated) for each in found.gpus] == [(0, 0), (30, 8), (30, 8), (0, 0)]


def test_gpu_managers_view_shows_the_sum_and_both_devices() -> None:
    stat = usages(pcie(4, parted())).usage["uid-ml-infer"]
    assert stat.spec["main"].gpu == pytest.approx(0.6)
    assert stat.spec["main"].mem == 16 * 256
    assert [device.card_idx for device in stat.stat["main"].dev] == ["1", "2"]


def test_gpu_managers_metrics_have_both_gpus_and_their_sum() -> None:
    used = ContainerUse((GpuUse(uuid(1), 1 << 30, cores=20.0), GpuUse(uuid(2), 2 << 30, cores=12.5)), processes=2)
    picture = pcie(4, parted())
    picture = replace(picture, uses={picture.grants[0].id: used})
    found = {
        (sample.name, next(value for key, value in sample.labels.items() if key not in NAMES)): sample.value
        for family in text_string_to_metric_families(metrics_text(picture).decode())
        for sample in family.samples
    }
    assert found == {
        ("container_gpu_utilization", "gpu1"): 20,
        ("container_gpu_utilization", "gpu2"): 12.5,
        ("container_gpu_utilization", "total"): 32.5,
        ("container_gpu_memory_total", "gpu1"): 1024,
        ("container_gpu_memory_total", "gpu2"): 2048,
        ("container_gpu_memory_total", "total"): 3072,
        ("container_request_gpu_utilization", "total"): 0.6,
        ("container_request_gpu_memory", "total"): 16 * 256,
    }


def test_a_limit_below_the_grant_is_what_is_shown() -> None:
    limited = replace(parted(), limits=PodLimits(memory_mib=1900))
    assert usages(pcie(4, limited)).usage["uid-ml-infer"].spec["main"].mem == 2 * 1900


def test_the_picture_has_the_part_at_each_gpu() -> None:
    lines = [line for line in draw(pcie(4, parted())).splitlines() if "ml/infer/main" in line]
    assert len(lines) == 2
    assert all(" 30" in line for line in lines)
