"""Allocate and PreStartContainer as kubelet calls them: who gets which GPU, and what the container then sees."""

import asyncio
import itertools
import random
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import get_args

import pytest

from deviceplugin.kubelet import pre_start
from deviceplugin.kubelet.allocate_answer import Answer
from deviceplugin.ledger.grant import Grant, Source
from deviceplugin.model.gpu import GpuUuid, key_of
from deviceplugin.model.pod import PodLimits
from deviceplugin.model.units import Resource
from deviceplugin.placement.snapshot import occupied
from sandbox.kubelet.options import PodResourcesForm
from sandbox.station import ALL, NAMES, Station, pod_json, station
from tests.gpu_manager.client_reader import read_limits
from tests.kubelet.makers import fresh, inventory

SOURCES = [(Source.PODS,), (Source.PODRESOURCES,), (Source.APISERVER,), ALL]


def check_books(node: Station) -> None:
    """No GPU holds more than it has."""
    for uuid, held in occupied(node.ledger.allocations()).items():
        gpu = node.feed.catalog.inventory.gpu(uuid)
        assert gpu is not None
        assert held.cores <= 100
        assert held.blocks <= gpu.blocks


def check_container(node: Station, uid: str, container: str, cores: int, blocks: int) -> None:
    """The running container sees its own grant, limits and GPU, and kubelet's books agree where they can."""
    view = node.kubelet.container_view(uid, container)
    grant = node.grant_of(uid, container)
    limits = read_limits(view.files["/etc/vcuda/vcuda.config"])
    assert (limits.pod_uid, limits.container, limits.cores, limits.memory_bytes) == (
        uid,
        container,
        cores,
        blocks << 28,
    )
    assert view.host_path("/etc/vcuda").name == grant.id
    assert view.env["NVIDIA_VISIBLE_DEVICES"].split(",") == sorted(grant.allocation.uuids)
    minors = node.minors(uid, container)
    assert [each.container_path for each in view.devices][: len(minors)] == [f"/dev/nvidia{minor}" for minor in minors]
    assert grant.proved


async def test_every_container_of_a_burst_gets_its_own(short_tmp: Path, subtests: pytest.Subtests) -> None:
    for sources in SOURCES:
        with subtests.test(sources=sources):
            async with station(fresh(short_tmp), inventory(4), sources=sources) as node:
                sizes = itertools.cycle([(10, 4), (20, 8), (35, 16), (15, 4)])
                pods = []
                for number in range(8):
                    (a, b), (c, d) = next(sizes), next(sizes)
                    extra = [("two", c, d)] if number % 2 else []
                    pods.append(pod_json(f"p{number}", ("one", a, b), *extra))
                node.know(*pods)
                uids = [node.kubelet.submit(pod) for pod in pods]
                for uid, pod in zip(uids, pods, strict=True):
                    verdict = await node.kubelet.verdict(uid)
                    assert verdict.admitted, verdict.message
                    await node.kubelet.wait_running(uid)
                    for container in pod["spec"]["containers"]:
                        limits = container["resources"]["limits"]
                        check_container(
                            node, uid, container["name"], int(limits[NAMES.core]), int(limits[NAMES.memory])
                        )
                check_books(node)
                assert node.reports.refused_ == []
                if sources != (Source.APISERVER,):
                    assert node.reports.repaired_ == []


async def test_kubelet_is_steered_to_the_ids_of_the_gpu(short_tmp: Path) -> None:
    async with station(short_tmp, inventory(4)) as node:
        for name, cores in (("a", 60), ("b", 60), ("c", 30)):
            verdict = await node.kubelet.admit(pod_json(name, ("c", cores, 4)))
            assert verdict.admitted
            held = node.kubelet.devices_of(verdict.uid, "c")
            (share,) = node.grant_of(verdict.uid, "c").allocation.shares
            for resource in Resource:
                keys = {key_of(one) for one in held[NAMES.of(resource)]}
                assert keys == {node.feed.catalog.keys[share.uuid]}


async def test_the_watch_is_enough_for_a_hint_and_a_late_watch_does_no_harm(short_tmp: Path) -> None:
    """The watch shows another pod of the same size only: the IDs are a hint, the grant is kubelet's pod's."""
    async with station(short_tmp, inventory(2), sources=(Source.PODS,)) as node:
        seen = pod_json("seen", ("c", 20, 4), annotations={"tencent.com/predicate-gpu-idx-0": "1"})
        node.know(seen)
        unseen = await node.kubelet.admit(pod_json("unseen", ("c", 20, 4)))
        await node.kubelet.wait_running(unseen.uid)
        check_container(node, unseen.uid, "c", 20, 4)
        assert node.minors(unseen.uid, "c") == [0]
        verdict = await node.kubelet.admit(seen)
        await node.kubelet.wait_running(verdict.uid)
        check_container(node, verdict.uid, "c", 20, 4)
        held = node.kubelet.devices_of(verdict.uid, "c")[NAMES.core]
        assert {key_of(one) for one in held} == {node.feed.catalog.keys[GpuUuid("GPU-1")]}


async def test_whole_and_linked_gpus_need_no_memory_count(short_tmp: Path) -> None:
    async with station(short_tmp, inventory(4)) as node:
        whole = await node.kubelet.admit(pod_json("whole", ("c", 100, 0)))
        pair = await node.kubelet.admit(pod_json("pair", ("c", 200, 2)))
        assert (whole.admitted, pair.admitted) == (True, True)
        await node.kubelet.wait_running(pair.uid)
        assert len(node.minors(pair.uid, "c")) == 2
        check_container(node, pair.uid, "c", 200, 2)
        assert node.kubelet.container_view(whole.uid, "c").host_path("/usr/local/nvidia").name == "origin"
        check_books(node)


async def test_what_cannot_be_served_is_refused_with_one_sentence(short_tmp: Path, subtests: pytest.Subtests) -> None:
    cases: list[tuple[list[tuple[str, int, int]], str]] = [
        ([("c", 20, 0)], "a share needs both, so add tencent.com/vcuda-memory"),
        ([("c", 0, 4)], "add tencent.com/vcuda-core"),
        ([("c", 150, 4)], "write 100 or 200"),
        ([("c", 20, 65)], "16.25 GiB"),
    ]
    for containers, said in cases:
        with subtests.test(containers=containers):
            async with station(fresh(short_tmp), inventory(2)) as node:
                verdict = await node.kubelet.admit(pod_json("bad", *containers))
                assert (verdict.admitted, verdict.reason) == (False, "UnexpectedAdmissionError")
                assert said in verdict.message
                assert "Traceback" not in verdict.message
                assert node.ledger.grants() == ()


async def test_a_full_node_says_what_is_free(short_tmp: Path) -> None:
    async with station(short_tmp, inventory(2)) as node:
        for name in ("a", "b"):
            assert (await node.kubelet.admit(pod_json(name, ("c", 60, 4)))).admitted
        verdict = await node.kubelet.admit(pod_json("c", ("c", 50, 4)))
        assert not verdict.admitted
        assert "50 cores" in verdict.message
        assert "40" in verdict.message


async def test_the_room_of_a_pod_that_just_ended_is_given_again_at_once(short_tmp: Path) -> None:
    async with station(short_tmp, inventory(1)) as node:
        first = await node.kubelet.admit(pod_json("first", ("c", 90, 60)))
        await node.kubelet.wait_running(first.uid)
        await node.kubelet.remove(first.uid)
        second = await node.kubelet.admit(pod_json("second", ("c", 90, 60)))
        assert second.admitted, second.message
        assert [grant.allocation.owner.pod.name for grant in node.ledger.grants()] == ["second"]


async def test_init_containers_share_the_room_of_their_pod(short_tmp: Path) -> None:
    async with station(short_tmp, inventory(1)) as node:
        pod = pod_json("p", ("app", 60, 32), init=[("setup", 90, 60), ("proxy", 10, 2)], sidecars=["proxy"])
        verdict = await node.kubelet.admit(pod)
        assert verdict.admitted, verdict.message
        await node.kubelet.wait_running(verdict.uid)
        for name, cores, blocks in (("setup", 90, 60), ("proxy", 10, 2), ("app", 60, 32)):
            check_container(node, verdict.uid, name, cores, blocks)
        check_books(node)


async def test_an_init_container_leaves_its_room_to_a_later_sidecar(short_tmp: Path) -> None:
    async with station(short_tmp, inventory(1)) as node:
        pod = pod_json("p", ("app", 60, 8), init=[("setup", 80, 8), ("proxy", 30, 8)], sidecars=["proxy"])
        verdict = await node.kubelet.admit(pod)
        assert verdict.admitted, verdict.message
        await node.kubelet.wait_running(verdict.uid)
        for name, cores, index in (("setup", 80, 0), ("proxy", 30, 1), ("app", 60, 0)):
            check_container(node, verdict.uid, name, cores, 8)
            assert node.grant_of(verdict.uid, name).allocation.index == index
        (held,) = occupied(node.ledger.allocations()).values()
        assert (held.cores, held.blocks) == (90, 16)
        assert (await node.kubelet.admit(pod_json("beside", ("c", 10, 4)))).admitted
        assert not (await node.kubelet.admit(pod_json("late", ("c", 1, 1)))).admitted


async def test_an_init_container_runs_beside_an_earlier_sidecar(short_tmp: Path) -> None:
    """The same containers in the other order need 110 cores at once."""
    async with station(short_tmp, inventory(2)) as node:
        pod = pod_json("p", ("app", 60, 8), init=[("proxy", 30, 8), ("setup", 80, 8)], sidecars=["proxy"])
        verdict = await node.kubelet.admit(pod)
        assert verdict.admitted, verdict.message
        await node.kubelet.wait_running(verdict.uid)
        for name, cores in (("proxy", 30), ("setup", 80), ("app", 60)):
            check_container(node, verdict.uid, name, cores, 8)
        assert node.minors(verdict.uid, "proxy") != node.minors(verdict.uid, "setup")
        check_books(node)


async def test_a_restarted_container_keeps_its_grant(short_tmp: Path) -> None:
    async with station(short_tmp, inventory(2), retry_s=0.1) as node:
        verdict = await node.kubelet.admit(pod_json("p", ("c", 20, 4)))
        await node.kubelet.wait_running(verdict.uid)
        before = node.grant_of(verdict.uid, "c")
        node.kubelet.exit_container(verdict.uid, "c")
        await node.kubelet.wait_running(verdict.uid, starts=2)
        assert node.grant_of(verdict.uid, "c") == before
        check_container(node, verdict.uid, "c", 20, 4)


async def test_a_wrong_guess_is_repaired_before_the_container_starts(short_tmp: Path) -> None:
    """Only the API server is asked, and it shows the pods in another order than kubelet admits them."""
    async with station(short_tmp, inventory(2), sources=(Source.APISERVER,)) as node:
        pods = [
            pod_json(f"p{number}", ("c", 20, 4), annotations={"tencent.com/predicate-time": str(900 - number)})
            for number in range(3)
        ]
        node.know(*pods)
        uids = [node.kubelet.submit(pod) for pod in pods]
        for uid in uids:
            await node.kubelet.wait_running(uid)
            check_container(node, uid, "c", 20, 4)
        assert node.reports.repaired_
        assert len({node.grant_of(uid, "c").id for uid in uids}) == 3
        check_books(node)


async def test_a_guess_of_the_wrong_size_is_resized_on_its_gpu(short_tmp: Path) -> None:
    """Equal cores, other memory: the second call's count already shows that the first was for the other pod."""
    async with station(short_tmp, inventory(2), sources=(Source.APISERVER,)) as node:
        first = pod_json("first", ("c", 20, 4), annotations={"tencent.com/predicate-time": "2000"})
        second = pod_json("second", ("c", 20, 8), annotations={"tencent.com/predicate-time": "1000"})
        node.know(first, second)
        uids = [node.kubelet.submit(pod) for pod in (first, second)]
        for uid, blocks in zip(uids, (4, 8), strict=True):
            await node.kubelet.wait_running(uid)
            check_container(node, uid, "c", 20, blocks)
        check_books(node)


async def test_a_burst_known_by_guesses_alone_ends_right(short_tmp: Path, subtests: pytest.Subtests) -> None:
    """Many pods of equal cores or equal memory, predicted in another order than kubelet admits them."""
    for seed in range(2):
        with subtests.test(seed=seed):
            sizes = [(cores, blocks) for cores in (10, 20, 30) for blocks in (2, 4, 8)] * 2
            order = random.Random(seed).sample(range(len(sizes)), len(sizes))
            async with station(
                fresh(short_tmp), inventory(8), sources=(Source.APISERVER,), seed=seed, retry_s=1.0
            ) as node:
                pods = [
                    pod_json(
                        f"p{number}",
                        ("c", *size),
                        annotations={"tencent.com/predicate-time": str(10**18 + order[number])},
                    )
                    for number, size in enumerate(sizes)
                ]
                node.know(*pods)
                uids = [node.kubelet.submit(pod) for pod in pods]
                for uid, (cores, blocks) in zip(uids, sizes, strict=True):
                    await node.kubelet.wait_running(uid)
                    check_container(node, uid, "c", cores, blocks)
                assert node.reports.refused_ == []
                assert len(node.ledger.grants()) == len(pods)
                check_books(node)


async def test_a_watch_that_lags_is_filled_in_by_kubelet(short_tmp: Path) -> None:
    async with station(short_tmp, inventory(2), sources=(Source.PODRESOURCES,)) as node:
        verdict = await node.kubelet.admit(pod_json("unseen", ("c", 20, 4)))
        assert verdict.admitted, verdict.message
        await node.kubelet.wait_running(verdict.uid)
        check_container(node, verdict.uid, "c", 20, 4)


@pytest.mark.parametrize("form", get_args(PodResourcesForm))
@pytest.mark.parametrize("watched", [True, False])
async def test_a_refused_pod_gets_nothing_of_the_next_one(
    short_tmp: Path, form: PodResourcesForm, watched: bool
) -> None:
    """Its status is late, so the watch shows it as pending; before 1.36 `Get` shows it too, and before 1.34 `List`."""
    async with station(
        short_tmp, inventory(2), sources=(Source.PODRESOURCES,), podresources_form=form, status_lag_s=1e6
    ) as node:
        refused, meant = pod_json("refused", ("c", 20, 4)), pod_json("meant", ("c", 20, 4))
        refused["spec"]["securityContext"] = {"sysctls": [{"name": "kernel.msgmax", "value": "1"}]}
        node.know(*((refused, meant) if watched else (refused,)))
        assert (await node.kubelet.admit(refused)).reason == "SysctlForbidden"
        verdict = await node.kubelet.admit(meant)
        assert verdict.admitted, verdict.message
        await node.kubelet.wait_running(verdict.uid)
        check_container(node, verdict.uid, "c", 20, 4)
        assert [grant.allocation.owner.pod.name for grant in node.ledger.grants()] == ["meant"]
        if form == "1.36":
            assert node.reports.repaired_ == []


async def test_when_nothing_answers_the_pod_is_refused_and_nothing_is_held(short_tmp: Path) -> None:
    async with station(short_tmp, inventory(2), sources=(Source.PODS, Source.APISERVER)) as node:
        node.pods_refused = True
        verdict = await node.kubelet.admit(pod_json("nobody", ("c", 20, 4)))
        assert not verdict.admitted
        assert "no pod of this node wants that many" in verdict.message
        assert "kubelet refuses this agent (403)" in verdict.message
        assert node.ledger.grants() == ()


async def test_the_scheduler_s_choice_is_carried_out(short_tmp: Path) -> None:
    async with station(short_tmp, inventory(4)) as node:
        verdict = await node.kubelet.admit(
            pod_json("p", ("c", 20, 4), annotations={"tencent.com/predicate-gpu-idx-0": "3"})
        )
        assert verdict.admitted
        assert node.minors(verdict.uid, "c") == [3]


async def test_an_annotated_gpu_that_cannot_be_read_or_met_is_no_reason_to_fail(
    short_tmp: Path, subtests: pytest.Subtests
) -> None:
    for wanted in ["17", "a,b", "", "1,1"]:
        with subtests.test(wanted=wanted):
            async with station(fresh(short_tmp), inventory(2)) as node:
                verdict = await node.kubelet.admit(
                    pod_json("p", ("c", 20, 4), annotations={"tencent.com/predicate-gpu-idx-0": wanted})
                )
                assert verdict.admitted
                assert node.minors(verdict.uid, "c") == [0]


def has_asked(node: Station, calls: int) -> bool:
    return len(node.kubelet.calls.of("Allocate")) >= calls


async def test_kubelet_killed_between_two_containers_of_equal_size_asks_again(
    short_tmp: Path, subtests: pytest.Subtests
) -> None:
    for calls, sources in [
        (calls, (source,)) for calls in (1, 2, 3, 4) for source in (Source.PODS, Source.PODRESOURCES)
    ]:
        with subtests.test(calls=calls):
            async with station(fresh(short_tmp), inventory(2), sources=sources, retry_s=0.2) as node:
                pod = pod_json("p", ("main", 20, 4), ("side", 20, 4), init=[("first", 20, 4)])
                node.know(pod)
                uid = node.kubelet.submit(pod)
                asked = partial(has_asked, node, calls)
                await node.kubelet.changes.until(asked, what="some were asked for", deadline_s=60)
                await node.kubelet.restart(after=(NAMES.core, NAMES.memory))
                await node.kubelet.wait_running(uid, deadline_s=60)
                for name in ("first", "main", "side"):
                    check_container(node, uid, name, 20, 4)
                assert len({node.grant_of(uid, name).id for name in ("first", "main", "side")}) == 3
                check_books(node)


@pytest.mark.parametrize("sources", SOURCES)
async def test_a_pod_that_was_deleted_before_kubelet_saw_it_takes_nothing_of_the_next_one(
    short_tmp: Path, sources: Sequence[Source]
) -> None:
    """Kubelet asks for it all the same, and then ends it."""
    async with station(short_tmp, inventory(2), sources=sources) as node:
        dying, living = pod_json("dying", ("c", 20, 4)), pod_json("living", ("c", 20, 4))
        await node.kubelet.kill()
        gone, uid = node.kubelet.submit(dying), node.kubelet.submit(living)
        node.kubelet.delete(gone)
        node.know(dying, living)
        await node.kubelet.start(after=(NAMES.core, NAMES.memory))
        await node.kubelet.wait_running(uid)
        await node.kubelet.wait_gone(gone)
        assert len(node.kubelet.calls.of("Allocate", uid=gone)) == len(node.kubelet.calls.of("Allocate", uid=uid)) == 2
        check_container(node, uid, "c", 20, 4)
        if sources != (Source.APISERVER,):
            assert [each.pod.ref.name for each, _ in node.reports.granted_] == ["dying", "living"]
            assert node.reports.repaired_ == []
        check_books(node)


async def test_a_lost_kubelet_checkpoint_leads_to_the_same_grants(short_tmp: Path, subtests: pytest.Subtests) -> None:
    """Kubelet starts with nothing, and writes the file again when the agent has registered."""
    for damage in [None, b"", bytes(100), b'{"Data":{"PodDev']:
        with subtests.test(damage=damage):
            async with station(fresh(short_tmp), inventory(2), retry_s=0.1) as node:
                verdict = await node.kubelet.admit(pod_json("p", ("c", 20, 4)))
                await node.kubelet.wait_running(verdict.uid)
                before = node.grant_of(verdict.uid, "c")
                node.kubelet.exit_container(verdict.uid, "c")
                if damage is not None:
                    node.kubelet.checkpoint_path.write_bytes(damage)
                await node.kubelet.restart(forget_checkpoint=damage is None)
                await node.kubelet.wait_running(verdict.uid, starts=2, deadline_s=60)
                after = node.grant_of(verdict.uid, "c")
                assert (after.id, after.allocation) == (before.id, before.allocation)
                assert len(node.ledger.grants()) == 1


async def test_a_lost_journal_is_made_good_at_the_next_start(short_tmp: Path) -> None:
    async with station(short_tmp, inventory(2), retry_s=0.1) as node:
        verdict = await node.kubelet.admit(pod_json("p", ("c", 20, 4)))
        await node.kubelet.wait_running(verdict.uid)
        before = node.grant_of(verdict.uid, "c")
        node.ledger.release([before.id], why="the journal was lost")
        node.kubelet.exit_container(verdict.uid, "c")
        await node.kubelet.wait_running(verdict.uid, starts=2)
        after = node.grant_of(verdict.uid, "c")
        assert (after.id, after.allocation, after.proved) == (before.id, before.allocation, True)


async def test_ids_that_were_never_issued_are_refused(short_tmp: Path) -> None:
    async with station(short_tmp, inventory(1)) as node:
        known = sorted(node.feed.catalog.issued[Resource.CORE])
        for ids in ([], ["nonsense"], [known[0], known[0]], ["c0000000zz"]):
            with pytest.raises(Exception, match=r"no device ID|not one of this node's|twice"):
                await node.allocator.allocate(Resource.CORE, ids)
            with pytest.raises(Exception, match=r"no device ID|not one of this node's|twice"):
                await node.pre_start.start(Resource.CORE, ids)
        assert node.ledger.grants() == ()


async def test_a_start_that_kubelet_has_not_recorded_is_tried_again(short_tmp: Path) -> None:
    async with station(short_tmp, inventory(1)) as node:
        (one, *_) = sorted(node.feed.catalog.issued[Resource.CORE])
        with pytest.raises(Exception, match="its checkpoint does not list"):
            await node.pre_start.start(Resource.CORE, [one])


async def test_an_unhealthy_gpu_gets_nothing_new_and_comes_back(short_tmp: Path) -> None:
    from deviceplugin.kubelet.devices import catalog

    async with station(short_tmp, inventory(2)) as node:
        node.feed.publish(catalog(inventory(2, unhealthy=(0,))))
        await node.kubelet.wait_allocatable(NAMES.core, 100)
        assert node.kubelet.capacity(NAMES.core) == 200
        verdict = await node.kubelet.admit(pod_json("p", ("c", 20, 4)))
        assert node.minors(verdict.uid, "c") == [1]
        node.feed.publish(catalog(inventory(2)))
        await node.kubelet.wait_allocatable(NAMES.core, 200)


async def test_a_slow_source_costs_its_budget_and_not_the_node(short_tmp: Path) -> None:
    async with station(short_tmp, inventory(1), budget_s=0.1) as node:

        async def hang() -> tuple[()]:
            await asyncio.sleep(30)
            return ()

        node.context.identity._exact[0]._fetch = hang  # type: ignore[attr-defined]
        pod = pod_json("p", ("c", 20, 4))
        node.know(pod)
        verdict = await node.kubelet.admit(pod, deadline_s=60)
        assert verdict.admitted
        assert node.grant_of(verdict.uid, "c").source is Source.PODRESOURCES


async def test_one_of_the_two_calls_of_each_start_makes_the_container_ready(
    short_tmp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kubelet may begin again between them, with either; the container starts after both."""
    async with station(short_tmp, inventory(1), retry_s=0.1) as node:
        filled: list[str] = []
        fill = node.context.files.fill

        def counted(grant: Grant) -> bool:
            filled.append(grant.id)
            return fill(grant)

        monkeypatch.setattr(node.context.files, "fill", counted)
        verdict = await node.kubelet.admit(pod_json("p", ("c", 20, 4)))
        await node.kubelet.wait_running(verdict.uid)
        assert len(filled) == 1
        node.kubelet.exit_container(verdict.uid, "c")
        await node.kubelet.wait_running(verdict.uid, starts=2)
        assert len(filled) == 2
        held = node.kubelet.devices_of(verdict.uid, "c")
        core, memory = Resource.CORE, Resource.MEMORY

        async def fills(*calls: Resource) -> list[bool]:
            found = []
            for resource in calls:
                before = len(filled)
                await node.pre_start.start(resource, sorted(held[NAMES.of(resource)]))
                found.append(len(filled) > before)
            return found

        assert await fills(core, core, memory) == [True, True, False]
        assert await fills(memory, memory, core) == [True, True, False]
        assert await fills(core, core, memory, core) == [True, True, False, True]
        assert await fills(memory, core) == [False, True]  # of the start before, and the one that counts now
        node.ledger.set_limits(node.grant_of(verdict.uid, "c").id, PodLimits(soft_cores=30))
        assert await fills(memory) == [True]
        monkeypatch.setattr(pre_start, "_IN_A_ROW_S", 0.0)
        assert await fills(core, core, memory, core) == [False, True, True, True]


async def test_containers_are_counted_and_not_calls(short_tmp: Path) -> None:
    """Kubelet calls twice for a container with cores and memory, and once for a whole GPU."""
    async with station(short_tmp, inventory(2)) as node:
        verdict = await node.kubelet.admit(pod_json("p", ("one", 20, 4), ("two", 100, 0)))
        assert verdict.admitted, verdict.message
        await node.kubelet.wait_running(verdict.uid)
        assert (len(node.reports.granted_), node.reports.started_) == (2, 2)


async def test_a_call_that_ended_without_a_decision_is_a_refusal(
    short_tmp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pod failed, and no metric said so."""

    async def fail(resource: Resource, ids: Sequence[str]) -> Answer:
        raise ZeroDivisionError

    async with station(short_tmp, inventory(2)) as node:
        monkeypatch.setattr(node.allocator, "allocate", fail)
        verdict = await node.kubelet.admit(pod_json("p", ("one", 20, 4)))
        assert "vcuda internal error" in verdict.message
        assert (node.reports.unanswered.refused_, node.reports.refused_) == (["internal"], [])
