"""Whole pods at the stand-in kubelet: placed at the first Allocate, carried out in the following ones."""

from pathlib import Path

from deviceplugin.model.allocation import GpuShare, PodUid
from deviceplugin.model.annotations import PodAllocation, format_allocation
from deviceplugin.model.gpu import GpuUuid, key_of
from deviceplugin.model.units import Resource
from sandbox.station import NAMES, Json, Station, pod_json, station
from tests.kubelet.makers import inventory


def chosen(pod: Json, **minors: int) -> Json:
    """By vcuda's scheduler, in that pod's sizes."""
    shares = {}
    for each in pod["spec"]["containers"]:
        limits = each["resources"]["limits"]
        size = (int(limits[NAMES.core]), int(limits[NAMES.memory]))
        shares[each["name"]] = (GpuShare(GpuUuid(f"GPU-{minors[each['name']]}"), *size),)
    text = format_allocation(PodAllocation(PodUid(pod["metadata"]["uid"]), shares))
    pod["metadata"]["annotations"] = {"tencent.com/vcuda-allocation": text}
    return pod


async def take(node: Station, minor: int, cores: int, blocks: int) -> str:
    """Some of a GPU is taken."""
    name = f"taker-{minor}-{cores}-{blocks}"
    verdict = await node.kubelet.admit(chosen(pod_json(name, ("c", cores, blocks)), c=minor))
    assert verdict.admitted, verdict.message
    assert node.minors(verdict.uid, "c") == [minor]
    return verdict.uid


async def test_a_pod_is_placed_so_that_all_its_containers_find_room(short_tmp: Path) -> None:
    """What GetPreferredAllocation says and what Allocate does are one plan, for each container of the pod."""
    async with station(short_tmp, inventory(2)) as node:
        await take(node, 0, 50, 60)
        await take(node, 1, 60, 1)
        verdict = await node.kubelet.admit(pod_json("p", ("main", 20, 2), ("side", 40, 8)))
        assert verdict.admitted, verdict.message
        await node.kubelet.wait_running(verdict.uid)
        for name, minor in (("main", 0), ("side", 1)):
            assert node.minors(verdict.uid, name) == [minor]
            held = node.kubelet.devices_of(verdict.uid, name)
            for resource in Resource:
                keys = {key_of(one) for one in held[NAMES.of(resource)]}
                assert keys == {node.feed.catalog.keys[GpuUuid(f"GPU-{minor}")]}, "kubelet is steered by the plan"


async def test_a_pod_that_does_not_fit_as_a_whole_is_refused_before_anything_is_given(short_tmp: Path) -> None:
    async with station(short_tmp, inventory(1)) as node:
        verdict = await node.kubelet.admit(pod_json("p", ("main", 60, 2), ("side", 60, 2)))
        assert (verdict.admitted, verdict.reason) == (False, "UnexpectedAdmissionError")
        assert "container side, beside the others of its pod" in verdict.message
        assert node.ledger.grants() == ()
        assert len(node.kubelet.calls.of("Allocate")) == 1


async def test_a_mistake_in_a_later_container_refuses_the_pod_at_its_first(short_tmp: Path) -> None:
    async with station(short_tmp, inventory(4)) as node:
        verdict = await node.kubelet.admit(pod_json("p", ("main", 60, 2), ("side", 150, 2)))
        assert not verdict.admitted
        assert "container side: " in verdict.message
        assert "150 is not possible" in verdict.message
        assert node.ledger.grants() == ()


async def test_a_cordoned_gpu_gets_no_new_work_but_what_was_chosen_before(short_tmp: Path) -> None:
    async with station(short_tmp, inventory(2)) as node:
        node.cordon = frozenset({GpuUuid("GPU-0")})
        adopted = await node.kubelet.admit(pod_json("adopted", ("c", 20, 2)))
        assert node.minors(adopted.uid, "c") == [1]
        bound = await node.kubelet.admit(chosen(pod_json("bound", ("c", 20, 2)), c=0))
        assert node.minors(bound.uid, "c") == [0]
        large = await node.kubelet.admit(pod_json("large", ("c", 90, 2)))
        assert not large.admitted
        assert "GPU 0 is cordoned" in large.message
        assert "cordon" in large.message.partition("; ")[2] or "wait until" in large.message


async def test_where_the_chosen_gpu_is_taken_the_pod_goes_elsewhere_on_the_node(short_tmp: Path) -> None:
    """The extender's Binding and an adoption cross: B came first to GPU 0, which A was bound for."""
    async with station(short_tmp, inventory(2)) as node:
        adopted = await node.kubelet.admit(pod_json("b", ("c", 60, 2)))
        assert node.minors(adopted.uid, "c") == [0]
        verdict = await node.kubelet.admit(chosen(pod_json("a", ("c", 60, 2)), c=0))
        assert verdict.admitted, verdict.message
        assert node.minors(verdict.uid, "c") == [1]
        assert node.ledger.over_commitments(inventory(2)) == ()


async def test_where_the_whole_node_is_taken_the_pod_is_refused_and_the_sentence_names_the_choice(
    short_tmp: Path,
) -> None:
    async with station(short_tmp, inventory(1)) as node:
        assert (await node.kubelet.admit(pod_json("b", ("c", 60, 2)))).admitted
        verdict = await node.kubelet.admit(chosen(pod_json("a", ("c", 60, 2)), c=0))
        assert (verdict.admitted, verdict.reason) == (False, "UnexpectedAdmissionError")
        assert "GPU 0 had been chosen by its scheduler" in verdict.message
        assert len(node.ledger.grants()) == 1


async def test_a_pod_whose_annotations_were_too_long_to_be_kept_is_refused_and_not_placed_without_them(
    short_tmp: Path,
) -> None:
    """Where neither webhook nor scheduler looked at it. What a scheduler chose for it is carried out."""
    async with station(short_tmp, inventory(2)) as node:
        long = {f"tencent.com/vcuda-{name}-gpus": ",".join(["GPU-7"] * 2000) for name in ("use", "avoid")}
        pod = pod_json("p", ("main", 20, 2))
        pod["metadata"]["annotations"] = long
        verdict = await node.kubelet.admit(pod)
        assert not verdict.admitted
        assert "the pod's annotations for vcuda have 24052 bytes and it reads 20480" in verdict.message
        placed = chosen(pod_json("q", ("main", 20, 2)), main=1)
        placed["metadata"]["annotations"] |= long
        assert (await node.kubelet.admit(placed)).admitted
