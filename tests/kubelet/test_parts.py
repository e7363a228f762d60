"""Shares over several GPUs, and the preferences of a pod that no vcuda scheduler has placed, as kubelet meets them."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from deviceplugin.ledger.grant import Grant, Source
from deviceplugin.model.allocation import GpuShare, PodUid
from deviceplugin.model.annotations import PodAllocation, format_allocation
from deviceplugin.model.gpu import GpuUuid, gpu_keys, key_of
from deviceplugin.model.units import Resource
from deviceplugin.placement.fit import GpuAmount
from deviceplugin.placement.snapshot import occupied
from sandbox.limits_file import decode
from sandbox.station import ALL, NAMES, Json, Station, pod_json, station
from tests.gpu_manager.client_reader import read_limits
from tests.kubelet.makers import fresh, inventory

GPUS = "tencent.com/vcuda-gpus"
GIB = 1 << 30


def check_parts(node: Station, uid: str, container: str, cores: int, blocks: int, gpus: int) -> Grant:
    """`cores` and `blocks` are those of one part: the grant, what the container sees, and both limits files."""
    grant = node.grant_of(uid, container)
    assert [(share.cores, share.blocks) for share in grant.allocation.shares] == [(cores, blocks)] * gpus
    assert len(grant.allocation.uuids) == gpus
    view = node.kubelet.container_view(uid, container)
    assert view.env["NVIDIA_VISIBLE_DEVICES"].split(",") == sorted(grant.allocation.uuids)
    assert {f"/dev/nvidia{minor}" for minor in node.minors(uid, container)} <= {
        each.container_path for each in view.devices
    }
    limits = decode(view.files["/etc/vcuda/limits"])
    assert {(each.uuid, each.cores, each.memory_bytes) for each in limits.devices} == {
        (each, cores, blocks << 28) for each in grant.allocation.uuids
    }
    legacy = read_limits(view.files["/etc/vcuda/vcuda.config"])
    assert (legacy.cores, legacy.memory_bytes, legacy.enforced) == (cores, blocks << 28, True)
    assert view.host_path("/usr/local/nvidia").name == "nvidia"
    assert grant.proved
    return grant


def parted(name: str, cores: int, blocks: int, gpus: int, *, time: int = 1000) -> Json:
    annotations = {GPUS: str(gpus), "tencent.com/predicate-time": str(time)}
    return pod_json(name, ("c", cores, blocks), annotations=annotations)


async def test_each_gpu_of_a_share_gives_an_even_part_and_holds_it_to_its_own_limit(short_tmp: Path) -> None:
    async with station(short_tmp, inventory(4)) as node:
        verdict = await node.kubelet.admit(parted("p", 150, 16, 2))
        assert verdict.admitted, verdict.message
        await node.kubelet.wait_running(verdict.uid)
        grant = check_parts(node, verdict.uid, "c", 75, 8, 2)
        assert occupied(node.ledger.allocations()) == dict.fromkeys(grant.allocation.uuids, GpuAmount(75, 8))
        assert node.reports.refused_ == node.reports.start_failures == []


async def test_two_containers_of_a_pod_each_have_their_own_number_of_gpus(short_tmp: Path) -> None:
    async with station(short_tmp, inventory(4)) as node:
        pod = pod_json("p", ("main", 60, 16), ("side", 30, 6), annotations={GPUS: "main=2,side=3"})
        verdict = await node.kubelet.admit(pod)
        assert verdict.admitted, verdict.message
        await node.kubelet.wait_running(verdict.uid)
        main = check_parts(node, verdict.uid, "main", 30, 8, 2)
        side = check_parts(node, verdict.uid, "side", 10, 2, 3)
        held = occupied(node.ledger.allocations())
        assert sum(each.cores for each in held.values()) == 90
        assert all(held[uuid].cores == 40 for uuid in main.allocation.uuids & side.allocation.uuids)


async def test_kubelet_is_steered_to_even_parts_of_each_gpu(short_tmp: Path) -> None:
    async with station(short_tmp, inventory(4)) as node:
        verdict = await node.kubelet.admit(parted("p", 60, 16, 2))
        held = node.kubelet.devices_of(verdict.uid, "c")
        keys = gpu_keys(gpu.uuid for gpu in inventory(4).gpus)
        for resource, part in ((Resource.CORE, 30), (Resource.MEMORY, 8)):
            uuids = node.grant_of(verdict.uid, "c").allocation.uuids
            assert Counter(map(key_of, held[NAMES.of(resource)])) == {keys[uuid]: part for uuid in uuids}


async def test_a_lost_journal_brings_the_parts_back_from_kubelets_checkpoint(short_tmp: Path) -> None:
    async with station(short_tmp, inventory(4), retry_s=0.1) as node:
        verdict = await node.kubelet.admit(parted("p", 60, 16, 2))
        await node.kubelet.wait_running(verdict.uid)
        before = node.grant_of(verdict.uid, "c")
        node.ledger.release([before.id], why="the journal was lost")
        node.kubelet.exit_container(verdict.uid, "c")
        await node.kubelet.wait_running(verdict.uid, starts=2)
        after = check_parts(node, verdict.uid, "c", 30, 8, 2)
        assert (after.id, after.allocation) == (before.id, before.allocation)


async def test_a_kubelet_that_lost_its_checkpoint_gets_the_same_parts_again(short_tmp: Path) -> None:
    async with station(short_tmp, inventory(4), retry_s=0.1) as node:
        verdict = await node.kubelet.admit(parted("p", 60, 16, 2))
        await node.kubelet.wait_running(verdict.uid)
        before = node.grant_of(verdict.uid, "c")
        node.kubelet.exit_container(verdict.uid, "c")
        await node.kubelet.restart(forget_checkpoint=True)
        await node.kubelet.wait_running(verdict.uid, starts=2, deadline_s=60)
        after = node.grant_of(verdict.uid, "c")
        assert (after.id, after.allocation) == (before.id, before.allocation)


async def test_a_wrong_guess_between_shares_over_several_gpus_is_put_right(
    short_tmp: Path, subtests: pytest.Subtests
) -> None:
    """Only the API server is asked, and it shows the pods in another order than kubelet admits them."""
    cases: list[Sequence[tuple[int, int]]] = [[(60, 16), (60, 16)], [(60, 16), (80, 16)], [(60, 16), (60, 8)]]
    for sizes in cases:
        with subtests.test(sizes=sizes):
            async with station(fresh(short_tmp), inventory(4), sources=(Source.APISERVER,)) as node:
                pods = [parted(f"p{number}", *size, 2, time=2000 - number) for number, size in enumerate(sizes)]
                node.know(*pods)
                uids = [node.kubelet.submit(pod) for pod in pods]
                for uid, (cores, blocks) in zip(uids, sizes, strict=True):
                    await node.kubelet.wait_running(uid)
                    check_parts(node, uid, "c", cores // 2, blocks // 2, 2)
                assert len({node.grant_of(uid, "c").id for uid in uids}) == len(uids)


async def test_the_number_of_gpus_is_known_from_every_source(short_tmp: Path, subtests: pytest.Subtests) -> None:
    cases: list[tuple[Source, ...]] = [ALL, (Source.PODRESOURCES,), (Source.APISERVER,)]
    for sources in cases:
        with subtests.test(sources=sources):
            async with station(fresh(short_tmp), inventory(4), sources=sources) as node:
                pod = parted("p", 60, 16, 2)
                node.know(pod)
                verdict = await node.kubelet.admit(pod)
                assert verdict.admitted, verdict.message
                await node.kubelet.wait_running(verdict.uid)
                check_parts(node, verdict.uid, "c", 30, 8, 2)


async def test_parts_that_cannot_be_are_refused_with_one_sentence(short_tmp: Path, subtests: pytest.Subtests) -> None:
    for cores, blocks, gpus, said in [
        (50, 15, "2", "15 cannot be divided evenly over 2 GPUs; write 14 or 16"),
        (250, 16, "2", "250 over 2 GPUs is more than 2 GPUs have"),
        (60, 16, "two", "annotation tencent.com/vcuda-gpus holds 'two'"),
        (60, 15, "5", "12 cores and 768 MiB of each of 5 GPUs asked, but only GPUs 0-2 are free"),
        (34, 17, "17", "write a number of GPUs from 1 to 16"),
    ]:
        with subtests.test(cores=cores):
            async with station(fresh(short_tmp), inventory(3)) as node:
                verdict = await node.kubelet.admit(pod_json("p", ("c", cores, blocks), annotations={GPUS: gpus}))
                assert not verdict.admitted
                assert said in verdict.message
                assert node.ledger.grants() == ()


async def test_the_agent_obeys_the_pod_where_it_chooses_itself(short_tmp: Path, subtests: pytest.Subtests) -> None:
    cases: list[tuple[dict[str, str], list[int]]] = [
        ({}, [0]),
        ({"tencent.com/vcuda-gpu-policy": "spread"}, [1]),
        ({"tencent.com/vcuda-use-gpus": "GPU-2,GPU-3"}, [2]),
        ({"tencent.com/vcuda-avoid-gpus": "GPU-0,GPU-1"}, [2]),
        ({"tencent.com/vcuda-gpu-policy": "spread", "tencent.com/predicate-gpu-idx-0": "0"}, [0]),
        ({GPUS: "2", "tencent.com/vcuda-numa": "true"}, [0, 1]),
    ]
    for annotations, minors in cases:
        with subtests.test(annotations=annotations):
            async with station(fresh(short_tmp), inventory(4)) as node:
                assert (await node.kubelet.admit(pod_json("first", ("c", 10, 4)))).admitted
                verdict = await node.kubelet.admit(pod_json("p", ("c", 20, 4), annotations=annotations))
                assert verdict.admitted, verdict.message
                assert node.minors(verdict.uid, "c") == minors


async def test_the_schedulers_choice_of_parts_is_carried_out(short_tmp: Path) -> None:
    async with station(short_tmp, inventory(4)) as node:
        pod = parted("p", 60, 16, 2)
        uid = pod["metadata"]["uid"]
        shares = tuple(GpuShare(GpuUuid(f"GPU-{minor}"), 30, 8) for minor in (1, 3))
        chosen = format_allocation(PodAllocation(PodUid(uid), {"c": shares}))
        pod["metadata"]["annotations"]["tencent.com/vcuda-allocation"] = chosen
        verdict = await node.kubelet.admit(pod)
        assert verdict.admitted, verdict.message
        assert node.grant_of(uid, "c").allocation.shares == shares


async def test_a_model_that_the_node_does_not_have_is_refused_and_says_so(short_tmp: Path) -> None:
    async with station(short_tmp, inventory(2)) as node:
        pod = pod_json("p", ("c", 20, 4), annotations={"tencent.com/vcuda-use-models": "H100"})
        verdict = await node.kubelet.admit(pod)
        assert not verdict.admitted
        assert "GPUs 0 and 1 are of a model that the pod does not want" in verdict.message


async def test_a_gpu_that_fits_no_part_is_left_out(short_tmp: Path) -> None:
    async with station(short_tmp, inventory(3)) as node:
        full = await node.kubelet.admit(pod_json("full", ("c", 90, 4)))
        verdict = await node.kubelet.admit(parted("p", 60, 16, 2))
        held = node.grant_of(full.uid, "c").allocation.uuids
        assert node.grant_of(verdict.uid, "c").allocation.uuids == {
            GpuUuid(f"GPU-{minor}") for minor in range(3)
        }.difference(held)
