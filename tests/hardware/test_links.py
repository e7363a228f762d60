"""NVLinks between each pair, as drivers report them: direct ones, through switches, and incomplete ones."""

from deviceplugin.hardware.discovery import discover
from deviceplugin.hardware.nvml import Nvml, NvmlLibrary
from deviceplugin.model.gpu import Inventory
from deviceplugin.model.topology import Level, Link, Topology
from deviceplugin.structs import replace
from tests.hardware.conftest import Stub

GPU, SWITCH, UNTOLD = 0, 2, -1
SWITCHES = ("00000000:C4:00.0", "00000000:C5:00.0")
OTHERS = ("00000000:D4:00.0", "00000000:D5:00.0")


def gpu_at(index: int) -> str:
    return f"00000000:{index + 1:02X}:00.0"


def wire(stub: Stub, gpu: int, *ends: tuple[str, int]) -> None:
    stub.order(f"nvlink.{gpu}", "".join(f"{bus_id} {kind}\n" for bus_id, kind in ends))


def inventory(stub: Stub, *, known: Inventory | None = None) -> Inventory:
    nvml = Nvml(NvmlLibrary(path=stub.library))
    nvml.open()
    found = discover(nvml, known=known, sys_root=stub.orders / "sys")
    return Inventory(found.gpus, found.topology, found.driver)


def topology(stub: Stub) -> Topology:
    return inventory(stub).topology


def nvlinks(stub: Stub) -> dict[tuple[int, int], int]:
    return {pair: link.nvlinks for pair, link in topology(stub).links.items() if link.nvlinks}


def test_direct_links_join_the_two_they_lead_to(stub: Stub) -> None:
    stub.order("gpus", 3)
    wire(stub, 0, (gpu_at(1), GPU), (gpu_at(1), GPU), (gpu_at(2), GPU))
    wire(stub, 1, (gpu_at(0), GPU), (gpu_at(0), GPU))
    wire(stub, 2, (gpu_at(0), GPU))
    assert nvlinks(stub) == {(0, 1): 2, (0, 2): 1}


def test_links_into_switches_join_every_gpu_on_them(stub: Stub) -> None:
    stub.order("gpus", 4)
    for order in ("gpus", "p2p"):
        stub.order(order, 4 if order == "gpus" else 0)
        for kind in (SWITCH, UNTOLD):
            for gpu in range(3):
                wire(stub, gpu, *((switch, kind) for switch in SWITCHES * 3))
            assert nvlinks(stub) == {(0, 1): 6, (0, 2): 6, (1, 2): 6}, (order, kind)


def test_the_gpu_with_fewer_links_into_the_switches_decides(stub: Stub) -> None:
    wire(stub, 0, *((switch, SWITCH) for switch in SWITCHES * 3))
    wire(stub, 1, *((switch, SWITCH) for switch in SWITCHES * 2))
    assert nvlinks(stub) == {(0, 1): 4}


def test_a_fabric_without_traffic_connects_no_gpus(stub: Stub) -> None:
    for gpu in range(2):
        wire(stub, gpu, *((switch, SWITCH) for switch in SWITCHES))
    stub.order("p2p", 5)
    assert topology(stub).links == {(0, 1): Link(Level.PIX)}


def test_boards_whose_switches_are_joined_by_trunks_are_joined(stub: Stub) -> None:
    wire(stub, 0, *((switch, SWITCH) for switch in SWITCHES * 3))
    wire(stub, 1, *((switch, SWITCH) for switch in OTHERS * 3))
    stub.order("p2p", 0)
    assert nvlinks(stub) == {(0, 1): 6}


def test_a_link_to_a_processor_joins_no_gpus(stub: Stub) -> None:
    for gpu in range(2):
        wire(stub, gpu, ("00000004:04:00.0", 1))
    assert nvlinks(stub) == {}


def test_a_question_that_fails_costs_its_own_answer_only(stub: Stub) -> None:
    stub.order("gpus", 3)
    for gpu in range(3):
        wire(stub, gpu, *((gpu_at(other), GPU) for other in range(3) if other != gpu))
    stub.order("nvmlDeviceGetTopologyCommonAncestor.0", 999)
    stub.order("nvmlDeviceGetNvLinkState.2", 999)
    assert dict(topology(stub).links) == {
        (0, 1): Link(None, nvlinks=1),
        (0, 2): Link(None, nvlinks=1),
        (1, 2): Link(Level.PIX, nvlinks=1),
    }


def test_what_a_gpu_does_not_say_now_stays_as_it_is_known(stub: Stub) -> None:
    """NVML D2: links are read again and again, so a question that fails once must not take them down."""
    for gpu in range(2):
        wire(stub, gpu, *((switch, SWITCH) for switch in SWITCHES))
    stub.order("p2p", 0)
    known = inventory(stub)
    assert known.topology.links == {(0, 1): Link(Level.PIX, nvlinks=2)}
    for question in ("nvmlDeviceGetTopologyCommonAncestor", "nvmlDeviceGetNvLinkState", "nvmlDeviceGetP2PStatus"):
        stub.order(f"{question}.0", 999)
        assert inventory(stub, known=known).topology == known.topology
        stub.withdraw(f"{question}.0")


def test_what_is_known_of_a_pair_is_found_also_under_other_minor_numbers(stub: Stub) -> None:
    """A driver that is loaded again numbers the GPUs as it finds them."""
    stub.order("gpus", 3)
    wire(stub, 0, (gpu_at(1), GPU))
    wire(stub, 1, (gpu_at(0), GPU))
    now = inventory(stub)
    assert {pair for pair, link in now.topology.links.items() if link.nvlinks} == {(0, 1)}
    other = {0: 2, 1: 0, 2: 1}
    before = Inventory(
        tuple(replace(gpu, minor=other[gpu.minor]) for gpu in now.gpus),
        Topology((0, 1, 2), {(other[a], other[b]): link for (a, b), link in now.topology.links.items()}),
        now.driver,
    )
    for question in ("nvmlDeviceGetTopologyCommonAncestor", "nvmlDeviceGetNvLinkState"):
        stub.order(question, 999)
    assert inventory(stub, known=before).topology == now.topology


def test_a_fabric_that_failed_a_question_is_not_taken_for_ready(stub: Stub) -> None:
    for gpu in range(2):
        wire(stub, gpu, *((switch, SWITCH) for switch in SWITCHES))
    stub.order("p2p", 5)
    known = inventory(stub)
    stub.order("nvmlDeviceGetP2PStatus", 999)
    assert inventory(stub, known=known).topology.links == {(0, 1): Link(Level.PIX)}
