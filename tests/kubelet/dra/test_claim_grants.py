"""What was allocated becomes one grant for each request, exactly, or an error that says why not."""

from fractions import Fraction

import pytest

from deviceplugin.errors import ClaimError
from deviceplugin.kubelet.dra.claim_grants import claim_grants
from deviceplugin.model.claims import Claim, ClaimedDevice, ClaimRef, ClaimUid
from deviceplugin.model.gpu import GpuUuid
from deviceplugin.model.request import Request
from deviceplugin.model.units import BLOCK_BYTES
from deviceplugin.structs import replace

DRIVER, POOL = "gpu.vcuda.tencent.com", "node-a"
UUIDS = {f"gpu-{minor}": GpuUuid(f"GPU-{minor}") for minor in range(20)}
ALL = 320


def device(name: str = "gpu-0", cores: object = 20, blocks: object = 8, *, request: str = "gpu") -> ClaimedDevice:
    consumed = {"cores": Fraction(str(cores)), "memory": Fraction(str(blocks)) * BLOCK_BYTES}
    return ClaimedDevice(request, DRIVER, POOL, name, "share-1", consumed)


def claim(*devices: ClaimedDevice) -> Claim:
    return Claim(ClaimRef(ClaimUid("u"), "research", "share"), devices, frozenset({"pod-1"}))


def requests(*devices: ClaimedDevice) -> dict[str, tuple[Request, tuple[str, ...]]]:
    found = claim_grants(claim(*devices), driver=DRIVER, pool=POOL, uuids=UUIDS)
    return {each.request_name: (each.request, each.uuids) for each in found}


def test_a_share_is_what_was_consumed() -> None:
    assert requests(device()) == {"gpu": (Request(20, 8), ("GPU-0",))}


def test_100_cores_are_a_whole_gpu_whatever_memory_was_asked_for() -> None:
    for blocks in (ALL, 8):
        ((request, _),) = requests(device(cores=100, blocks=blocks)).values()
        assert (request.is_share, request.gpus) == (False, 1)


def test_several_gpus_of_one_request_are_one_grant() -> None:
    shared = requests(device("gpu-1", 30, 16), device("gpu-4", 30, 16))
    assert shared == {"gpu": (Request(60, 32, parts=2), ("GPU-1", "GPU-4"))}
    whole = requests(*(device(f"gpu-{minor}", 100, ALL) for minor in range(4)))
    assert whole == {"gpu": (Request(400, 0), ("GPU-0", "GPU-1", "GPU-2", "GPU-3"))}


def test_each_request_has_its_own_grant_also_on_the_same_gpu() -> None:
    found = requests(device(request="main"), device(cores=30, request="side"))
    assert found == {"main": (Request(20, 8), ("GPU-0",)), "side": (Request(30, 8), ("GPU-0",))}


def test_devices_of_other_drivers_are_theirs() -> None:
    other = replace(device(), driver="gpu.nvidia.com", request="other")
    assert requests(other, device()) == {"gpu": (Request(20, 8), ("GPU-0",))}


def test_parameters_of_other_drivers_are_theirs() -> None:
    given = replace(claim(device()), configured=frozenset({"gpu.nvidia.com"}))
    assert len(claim_grants(given, driver=DRIVER, pool=POOL, uuids=UUIDS)) == 1


def test_what_cannot_be_prepared_is_said(subtests: pytest.Subtests) -> None:
    cases: list[tuple[Claim, str]] = [
        (replace(claim(), devices=None), "research/share has no devices: nothing is allocated for it"),
        (replace(claim(device()), consumers=frozenset()), "research/share is reserved for no pod"),
        (claim(), "research/share has no device of gpu.vcuda.tencent.com"),
        (claim(device("gpu-99")), "this node has no device gpu-99 in pool node-a"),
        (claim(replace(device(), pool="node-b")), "this node has no device gpu-0 in pool node-b"),
        (claim(device(), device()), "it has two parts of one GPU"),
        (claim(*(device(name) for name in UUIDS)), "it has 20 GPUs; a container can have at most 16"),
        (claim(device(), device("gpu-1", 30)), "its GPUs do not have equal parts"),
        (claim(device(cores="20.5")), "41/2 cores of gpu-0 cannot be given"),
        (claim(device(blocks="0.5")), "134217728 memory of gpu-0 cannot be given"),
        (claim(device(cores=0)), "0 cores of gpu-0 cannot be given"),
        (claim(replace(device(), consumed={})), "0 cores of gpu-0 cannot be given"),
        (claim(device(cores=150)), "write 100 or 200"),
        (claim(replace(device(), is_administrative=True)), "there is no administrative access to a GPU"),
        (replace(claim(device()), configured=frozenset({DRIVER})), f"has parameters for {DRIVER}, which knows none"),
    ]
    for given, sentence in cases:
        with subtests.test(given=given):
            with pytest.raises(ClaimError) as refused:
                claim_grants(given, driver=DRIVER, pool=POOL, uuids=UUIDS)
            assert sentence in refused.value.message
