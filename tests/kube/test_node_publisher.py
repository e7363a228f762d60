"""The node shows what the agent wants, nothing of it twice, and nothing of others is touched."""

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st

from deviceplugin.errors import TooManyGpusError
from deviceplugin.kube.client import KubeClient, NodeMetadata
from deviceplugin.kube.credentials import Credentials
from deviceplugin.kube.node_publisher import (
    NodePublisher,
    PublishTiming,
    gpu_labels,
    label_value,
    node_patch,
)
from deviceplugin.kube.transport import Transport
from deviceplugin.model.gpu import Driver, Gpu, GpuUuid, Inventory
from deviceplugin.model.node import MOST_GPUS, format_inventory, parse_inventory
from deviceplugin.model.topology import Topology
from deviceplugin.model.units import MIB, ResourceNames
from sandbox.apiserver import ApiServer, node
from tests.waiting import in_background, until

OWN = "tencent.com/vcuda-node-labels"
VALID = re.compile(r"([A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?)?")
PACE = PublishTiming(check=0.02, first_wait=0.01, most_wait=0.02)


def inventory(*models: str, mib: int = 81559) -> Inventory:
    gpus = tuple(Gpu(GpuUuid(f"G{i}"), i, i, model, (mib + i * (i > 6)) * MIB) for i, model in enumerate(models))
    return Inventory(gpus, Topology(tuple(range(len(models)))), Driver("550.54.15", (12, 4)))


def test_labels_describe_the_gpus() -> None:
    assert gpu_labels(inventory("NVIDIA A100-SXM4-80GB", "NVIDIA A100-SXM4-80GB"), domain="tencent.com", extra={}) == {
        "tencent.com/gpu-model": "NVIDIA-A100-SXM4-80GB",
        "tencent.com/gpu-count": "2",
        "tencent.com/gpu-memory": "81559",
        "tencent.com/gpu-driver": "550.54.15",
        "tencent.com/gpu-cuda": "12.4",
        "gaia.tencent.com/gpu-model": "A100-SXM4-80GB",
    }


def test_one_word_for_a_model_or_none(subtests: pytest.Subtests) -> None:
    cases: list[tuple[list[str], str, str]] = [
        (["Tesla P40", "Tesla P4"], "mixed", "P40"),
        (["GH200"], "GH200", "GH200"),
        (["NVIDIA RTX 6000 Ada Generation"], "NVIDIA-RTX-6000-Ada-Generation", "RTX"),
    ]
    for models, model, gpu_manager in cases:
        with subtests.test(models=models):
            found = gpu_labels(inventory(*models), domain="d.example", extra={})
            assert (found["d.example/gpu-model"], found["gaia.tencent.com/gpu-model"]) == (model, gpu_manager)


def test_mixed_memory_is_called_mixed() -> None:
    assert gpu_labels(inventory(*["x"] * 8), domain="d", extra={})["d/gpu-memory"] == "mixed"


def test_labels_of_the_operator_win_and_a_node_without_gpus_has_only_those() -> None:
    extra = {"pool": "a b", "d/gpu-model": "mine"}
    assert gpu_labels(inventory("x"), domain="d", extra=extra)["d/gpu-model"] == "mine"
    assert gpu_labels(inventory(), domain="d", extra=extra) == {"pool": "a-b", "d/gpu-model": "mine"}


def test_gpu_managers_label_without_a_value_asks_for_the_model() -> None:
    name = "gaia.tencent.com/gpu-model"
    assert gpu_labels(inventory("Tesla V100"), domain="d", extra={name: "", "empty": ""})[name] == "V100"
    assert gpu_labels(inventory("Tesla V100"), domain="d", extra={name: "mine"})[name] == "mine"
    assert gpu_labels(inventory(), domain="d", extra={name: "", "empty": ""}) == {"empty": ""}


@given(st.text())
def test_any_text_becomes_a_valid_label_value(text: str) -> None:
    assert VALID.fullmatch(label_value(text))
    assert label_value(label_value(text)) == label_value(text)


def test_an_agent_with_more_gpus_than_the_scheduler_reads_says_so_once() -> None:
    client = KubeClient(Transport(Credentials(None)), names=ResourceNames())
    publisher = NodePublisher(client, node="n1", names=ResourceNames(), labels={}, share_mode=True)
    with structlog.testing.capture_logs() as said:
        for mib in (1024, 2048, 4096):
            publisher.show(inventory(*["x"] * (MOST_GPUS + 1), mib=mib))
        publisher.show(inventory(*["x"] * MOST_GPUS))
    (entry,) = said
    assert (entry["event"], entry["log_level"]) == ("too_many_gpus", "error")
    assert entry["error"].startswith("this node has 65 GPUs and vcuda's scheduler reads an inventory of at most 64")
    with pytest.raises(TooManyGpusError, match="65 GPUs"):
        parse_inventory(format_inventory(inventory(*["x"] * (MOST_GPUS + 1)), share_mode=True))


texts = st.dictionaries(st.sampled_from(["a", "b", "c"]), st.sampled_from(["1", "2"]))


@given(texts, texts, texts)
def test_after_a_patch_nothing_is_left_to_do_and_labels_of_others_stay(
    others: dict[str, str], first: dict[str, str], second: dict[str, str]
) -> None:
    others = {f"other-{key}": value for key, value in others.items()}
    bare = NodeMetadata(others, {})
    for face in (NodeMetadata(first, {"x": "1"}), NodeMetadata(second, {"x": "2"})):
        patch = node_patch(bare, face, own_labels=OWN)
        left = {key: value for key, value in {**bare.labels, **patch.labels}.items() if value is not None}
        notes = {key: value for key, value in {**bare.annotations, **patch.annotations}.items() if value is not None}
        bare = NodeMetadata(left, notes)
        assert left == others | dict(face.labels)
        assert node_patch(bare, face, own_labels=OWN) == NodeMetadata({}, {})


LISTED_BY_KUBELET = ("node-restriction.kubernetes.io/quarantined", "kubernetes.io/hostname", "a.k8s.io/b", "k8s.io/c")


def test_a_label_of_kubernetes_domains_stays_whatever_the_list_says() -> None:
    """Security B-9: kubelet may write the list, and may not remove these labels."""
    there = dict.fromkeys((*LISTED_BY_KUBELET, "notkubernetes.io/a", "old"), "1")
    node = NodeMetadata(there, {OWN: ",".join(there)})
    patch = node_patch(node, NodeMetadata({"mine": "1"}, {}), own_labels=OWN)
    assert patch == NodeMetadata({"notkubernetes.io/a": None, "old": None, "mine": "1"}, {OWN: "mine"})
    kept = NodeMetadata(dict.fromkeys(LISTED_BY_KUBELET, "2"), {})
    assert node_patch(node, kept, own_labels=OWN).labels.items() >= kept.labels.items(), "those of --node-labels"


@asynccontextmanager
async def publishing(client: KubeClient, **labels: str) -> AsyncIterator[NodePublisher]:
    names = ResourceNames()
    publisher = NodePublisher(client, node="n1", names=names, labels=labels, share_mode=True, pace=PACE)
    async with in_background(publisher.run()):
        yield publisher


def labels(server: ApiServer) -> dict[str, str]:
    found: dict[str, str] = server.store.get("nodes", "n1")["metadata"]["labels"]
    return found


def annotations(server: ApiServer) -> dict[str, str]:
    found: dict[str, str] = server.store.get("nodes", "n1")["metadata"].get("annotations", {})
    return found


def shown(server: ApiServer) -> Inventory | None:
    text = annotations(server).get("tencent.com/vcuda-inventory")
    return None if text is None else parse_inventory(text)[0]


async def test_the_node_is_patched_once_for_each_change(server: ApiServer, client: KubeClient) -> None:
    server.store.create("nodes", node("n1"))
    one, two = inventory("Tesla P4"), inventory("Tesla P4", "Tesla P4")
    async with publishing(client, pool="night") as publisher:
        publisher.show(one)
        await until(lambda: shown(server) == one, seen=lambda: shown(server))
        publisher.show(two)
        publisher.show(two)
        await until(lambda: shown(server) == two, seen=lambda: shown(server))
        looks = len(server.requests)
        await until(lambda: len(server.requests) >= looks + 3)
        assert [method for method, _path in server.requests].count("PATCH") == 2
    assert labels(server) == {"kubernetes.io/hostname": "n1", "pool": "night"} | gpu_labels(
        two, domain="tencent.com", extra={}
    )


async def test_what_others_remove_comes_back(server: ApiServer, client: KubeClient) -> None:
    server.store.create("nodes", node("n1"))
    async with publishing(client, a="1") as publisher:
        publisher.show(inventory("Tesla P4"))
        await until(lambda: "a" in labels(server))
        server.store.patch("nodes", "n1", {"metadata": {"labels": {"a": None}}})
        await until(lambda: "a" in labels(server))


async def test_labels_of_an_earlier_run_with_other_flags_are_removed(server: ApiServer, client: KubeClient) -> None:
    server.store.create("nodes", node("n1"))
    server.store.patch("nodes", "n1", {"metadata": {"labels": {"old": "1"}, "annotations": {OWN: "old,gone"}}})
    async with publishing(client, new="1") as publisher:
        publisher.show(inventory())
        await until(lambda: "new" in labels(server))
    assert labels(server) == {"kubernetes.io/hostname": "n1", "new": "1"}
    assert annotations(server)[OWN] == "new"


async def test_a_server_that_fails_is_tried_again_with_the_latest_inventory(
    server: ApiServer, client: KubeClient
) -> None:
    async with publishing(client) as publisher:
        publisher.show(inventory("Tesla P4"))
        await until(lambda: len(server.requests) >= 2)  # there is no node yet
        latest = inventory("Tesla P4", "Tesla P4")
        publisher.show(latest)
        server.faults.fail(500, times=2)
        server.store.create("nodes", node("n1"))
        await until(lambda: shown(server) == latest, seen=lambda: shown(server))
