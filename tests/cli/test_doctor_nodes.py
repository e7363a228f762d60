"""What doctor concludes from a node's resources and labels, by the names that plugins in use give them."""

import json

import msgspec
import pytest

from deviceplugin.cli.doctor.findings import CheckOutcome
from deviceplugin.cli.doctor.nodes import (
    NodeFacts,
    node_facts,
    other_drivers,
    other_plugins,
    without_agent,
)
from deviceplugin.kube.resource_slices import AnyOffer
from deviceplugin.kube.structs import ClusterNodeObject
from deviceplugin.model.units import ResourceNames
from tests.scheduler.scene import gpu_node

OURS = {"tencent.com/vcuda-core": "800", "tencent.com/vcuda-memory": "2544"}
TWICE = {
    "nvidia.com/gpu": "NVIDIA's device plugin",
    "nvidia.com/gpu.shared": "the same, time-slicing with renaming",
    "nvidia.com/mig-1g.5gb": "the same, MIG",
    "nvidia.com/gpumem": "HAMi",
    "volcano.sh/vgpu-number": "volcano-vgpu-device-plugin",
    "volcano.sh/gpu-memory": "Volcano's device plugin",
    "aliyun.com/gpu-mem": "gpushare-device-plugin",
    "k8s.amazonaws.com/vgpu": "AWS' virtual GPU device plugin",
    "tke.cloud.tencent.com/qgpu-core": "qGPU",
    "example.org/vcuda-core": "vcuda or gpu-manager with another domain",
}
ONCE = {
    "nvidia.com/hostdev": "network cards of the network operator",
    "nvidia.com/mlnxnics": "the same, SR-IOV",
    "nvidia.com/sriov_rdma": "functions of a network card",
    "nvidia.com/bf_sf": "functions of a BlueField",
    "nvidia.com/GA102GL_A10": "a GPU behind vfio-pci, KubeVirt's plugin",
    "rdma/hca_shared": "RDMA",
    "amd.com/gpu": "another maker",
    "gpu.intel.com/i915": "another maker",
    "iluvatar.com/gpu": "another maker",
    "memory": "no device",
}


def facts(allocatable: dict[str, str], labels: dict[str, str] | None = None) -> NodeFacts:
    node = {"metadata": {"name": "n", "labels": labels or {}}, "status": {"allocatable": allocatable}}
    return node_facts(msgspec.json.decode(json.dumps(node).encode(), type=ClusterNodeObject), ResourceNames())


def test_who_gives_away_gpus_a_second_time_and_who_does_not(subtests: pytest.Subtests) -> None:
    for name, what in (TWICE | ONCE).items():
        with subtests.test(resource=name, what=what):
            said = other_plugins([facts({**OURS, name: "8"})])
            assert (said.outcome is CheckOutcome.OK) == (name in ONCE), said.message
            assert other_plugins([facts({**OURS, name: "0"})]).outcome is CheckOutcome.OK, "offered no more"


def test_labels_that_say_that_a_node_has_gpus() -> None:
    feature = "feature.node.kubernetes.io"
    says = {
        "nvidia.com/gpu.present": True,
        f"{feature}/pci-10de.present": True,
        f"{feature}/pci-0302_10de.present": True,
        f"{feature}/pci-0300_10de.present": True,
        f"{feature}/pci-0680_10de.present": False,  # an NVSwitch
        f"{feature}/pci-0200_15b3.present": False,
        "nvidia.com/gpu.deploy.driver": False,
    }
    assert {label: bool(without_agent([facts({}, {label: "true"})], ())) for label in says} == says
    assert without_agent([facts({}, {"nvidia.com/gpu.present": "false"})], ()) == []


def offered(driver: str, node: str | None, **attributes: str) -> set[tuple[str, str]]:
    said = {name.replace("__", "/"): {"string": value} for name, value in attributes.items()}
    spec = {"driver": driver, "nodeName": node, "devices": [{"name": "d"}, {"name": "e", "attributes": said}]}
    item = {"metadata": {"name": "s"}, "spec": spec}
    found = msgspec.json.decode(json.dumps(item).encode(), type=AnyOffer)
    return {(found.driver, text) for text in found.texts}


def test_drivers_that_offer_a_gpu_of_the_inventory_to_claims(subtests: pytest.Subtests) -> None:
    """Attributes as NVIDIA's driver has them (its MigDeviceInfo and GpuInfo), and qualified by a domain."""
    ours = node_facts(msgspec.json.decode(json.dumps(gpu_node("n")).encode(), type=ClusterNodeObject), ResourceNames())
    says = {
        "NVIDIA's": (offered("gpu.nvidia.com", "n", uuid="GPU-n-0"), True),
        "its part of a GPU": (offered("gpu.nvidia.com", "n", uuid="MIG-1", parentUUID="GPU-n-1"), True),
        "a pool of no node": (offered("gpu.example.org", None, example__uuid="GPU-n-1"), True),
        "vcuda of another domain": (offered("gpu.vcuda.example.org", "n", uuid="GPU-n-0"), True),
        "our own": (offered("gpu.vcuda.tencent.com", "n", uuid="GPU-n-0"), False),
        "another GPU": (offered("gpu.nvidia.com", "n", uuid="GPU-other"), False),
        "a network card": (offered("dra.networking", "n", type="nic"), False),
    }
    for what, (texts, twice) in says.items():
        with subtests.test(what=what):
            said = other_drivers([ours], texts, "gpu.vcuda.tencent.com")
            assert (said.outcome is CheckOutcome.FAILED) == twice
            [driver] = {each for each, _ in texts}
            assert (f"{driver}: n; a GPU can be given away twice" in said.message) == twice
