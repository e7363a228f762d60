"""GPUs as devices: every attribute on each, one fixed order, taints for what takes no pods."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kubernetes_validate import validate

from deviceplugin.kube.resource_slices import slice_spec
from deviceplugin.kubelet.dra.slice_publisher import nvlink_domains, published_devices, version_of
from deviceplugin.model.claims import ClaimNames
from deviceplugin.model.gpu import ComputeMode, Driver, Gpu, GpuUuid, Health, Inventory
from deviceplugin.model.topology import Level, Link, Topology
from deviceplugin.model.units import BLOCK_BYTES
from deviceplugin.structs import replace

NAMES = ClaimNames("tencent.com")
H100 = "NVIDIA H100 80GB HBM3"


def gpu(minor: int, *, blocks: int = 318, index: int | None = None, **more: object) -> Gpu:
    at = minor if index is None else index
    bus_id = f"00000000:{16 + minor:02X}:00.0"
    made = Gpu(GpuUuid(f"GPU-{minor}"), at, minor, H100, blocks * BLOCK_BYTES, bus_id, numa=minor // 2)
    return replace(made, **more)  # type: ignore[arg-type]


def inventory(*gpus: Gpu, links: dict[tuple[int, int], Link] | None = None, **more: object) -> Inventory:
    topology = Topology(tuple(each.minor for each in gpus), links or {})
    return replace(Inventory(gpus, topology, Driver("550.54.05", (12, 4))), **more)  # type: ignore[arg-type]


def test_a_gpu_has_every_attribute() -> None:
    (found,) = published_devices(inventory(gpu(3)), NAMES, pcie_roots={GpuUuid("GPU-3"): "pci0000:00"})
    assert found.name == "gpu-3"
    assert (found.cores, found.blocks, found.taints) == (100, 318, ())
    assert found.attributes == {
        "uuid": "GPU-3",
        "productName": H100,
        "minor": 3,
        "driverVersion": (550, 54, 5),
        "cudaVersion": (12, 4, 0),
        "numaNode": 1,
        "nvlinkDomain": "",
        "inUse": False,
        "resource.kubernetes.io/pcieRoot": "pci0000:00",
        "resource.kubernetes.io/pciBusID": "0000:13:00.0",
    }


def test_attributes_are_there_with_the_same_type_where_nothing_is_known() -> None:
    known, unknown = published_devices(inventory(gpu(0), gpu(1, numa=None, bus_id="")), NAMES)
    assert known.attributes.keys() == unknown.attributes.keys()
    types = [[type(value) for value in each.attributes.values()] for each in (known, unknown)]
    assert types[0] == types[1]


def test_the_order_is_that_of_the_minors_whatever_is_used() -> None:
    shuffled = inventory(gpu(2, index=0), gpu(0, index=1), gpu(1, index=2))
    for used in ((), ("GPU-1",), ("GPU-2", "GPU-0")):
        found = published_devices(shuffled, NAMES, used=[GpuUuid(each) for each in used])
        assert [each.name for each in found] == ["gpu-0", "gpu-1", "gpu-2"]
        assert [each.attributes["inUse"] for each in found] == [f"GPU-{minor}" in used for minor in range(3)]


def test_what_takes_no_pods_has_a_taint_that_says_why() -> None:
    ill = {GpuUuid("GPU-0"): Health(healthy=False, reason="Xid 79: fallen off the bus (see dmesg)")}
    shown = inventory(gpu(0), gpu(1, compute_mode=ComputeMode.PROHIBITED), gpu(2), gpu(3), health=ill)
    found = published_devices(shown, NAMES, cordoned=[GpuUuid("GPU-2")])
    assert [[(taint.key, taint.value) for taint in each.taints] for each in found] == [
        [("vcuda.tencent.com/unhealthy", "Xid-79-fallen-off-the-bus-see-dmesg")],
        [("vcuda.tencent.com/unhealthy", "compute-mode-prohibited")],
        [("vcuda.tencent.com/cordoned", "")],
        [],
    ]


def test_gpus_that_cannot_be_shared_are_left_out() -> None:
    shown = inventory(gpu(0, mig_enabled=True), gpu(1, blocks=1), gpu(2))
    assert [each.name for each in published_devices(shown, NAMES)] == ["gpu-2"]


def test_gpus_joined_by_nvlinks_share_a_domain() -> None:
    pairs = {
        (0, 1): Link(Level.PIX, 4),
        (1, 2): Link(Level.PIX, 4),
        (4, 5): Link(Level.PIX, 2),
        (2, 3): Link(Level.PIX),
    }
    found = nvlink_domains(Topology(tuple(range(6)), pairs))
    assert found == {0: "nvlink-0", 1: "nvlink-0", 2: "nvlink-0", 4: "nvlink-4", 5: "nvlink-4"}


def test_versions_have_three_numbers(subtests: pytest.Subtests) -> None:
    cases: list[tuple[str, tuple[int, int, int]]] = [
        ("550.54.15", (550, 54, 15)),
        ("570.86", (570, 86, 0)),
        ("550.54.05", (550, 54, 5)),
        ("?", (0, 0, 0)),
    ]
    for text, version in cases:
        with subtests.test(text=text):
            assert version_of(text) == version


@given(
    model=st.text(max_size=100),
    reason=st.text(max_size=300),
    blocks=st.integers(2, 1 << 16),
    minors=st.lists(st.integers(0, 200), min_size=1, max_size=16, unique=True),
)
def test_a_slice_is_valid_by_kubernetes_schema(model: str, reason: str, blocks: int, minors: list[int]) -> None:
    ill = {GpuUuid(f"GPU-{minors[0]}"): Health(healthy=False, reason=reason)}
    shown = inventory(*(gpu(minor, model=model, blocks=blocks) for minor in minors), health=ill)
    spec = slice_spec(NAMES.driver, "node-a", published_devices(shown, NAMES), 1)
    metadata = {"name": "node-a-vcuda-x"}
    document = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": metadata, "spec": spec}
    validate(document, "1.36", strict=True)
