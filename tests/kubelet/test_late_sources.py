"""Exact sources that are late, fail for single calls, or stay silent: who gets which GPU then."""

import asyncio
import json
import random
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from deviceplugin.errors import KubeletError, OwnershipError
from deviceplugin.kubelet.devices import catalog
from deviceplugin.kubelet.identity import IdentifiedContainer, Question
from deviceplugin.ledger.grant import Source
from deviceplugin.model.pod import Pod
from deviceplugin.model.units import Resource
from sandbox.kubelet import ContainerView
from sandbox.station import NAMES, Json, Station, pod_json, station
from tests.kubelet.makers import fresh, inventory
from tests.kubelet.test_flow import check_books, check_container

Fetch = Callable[[], Awaitable[Sequence[Pod]]]


def wrapped(node: Station, wrap: Callable[[Fetch], Fetch]) -> None:
    """Kubelet's list of pods is asked through `wrap`."""
    (source,) = (each for each in node.context.identity._exact if each.source is Source.PODS)
    source._fetch = wrap(source._fetch)  # type: ignore[attr-defined]


@pytest.mark.parametrize(("seed", "late_s"), [(seed, late_s) for seed in range(3) for late_s in (None, 0.1)])
async def test_the_second_call_belongs_to_the_container_of_the_first(
    short_tmp: Path, seed: int, late_s: float | None
) -> None:
    """Faults D1: the only exact source misses the second hint and the second Allocate of a container."""
    sources = (Source.PODS, Source.APISERVER)
    async with station(short_tmp, inventory(2), sources=sources, budget_s=0.03, seed=seed, retry_s=0.1) as node:
        older = pod_json("older", ("c", 20, 4), annotations={"tencent.com/predicate-time": "1000"})
        now = pod_json("now", ("c", 20, 4), annotations={"tencent.com/predicate-time": "2000"})
        node.know(older, now)
        missed = 0

        def missing(fetch: Fetch) -> Fetch:
            async def fetched() -> Sequence[Pod]:
                nonlocal missed
                if missed < 2 and any(len(grant.answered) == 1 for grant in node.ledger.grants()):
                    missed += 1
                    if late_s is None:
                        raise KubeletError("kubelet answered 500")
                    await asyncio.sleep(late_s)
                return await fetch()

            return fetched

        wrapped(node, missing)
        first = node.kubelet.submit(now)
        await node.kubelet.verdict(first)
        second = node.kubelet.submit(older)
        for uid in (first, second):
            await node.kubelet.wait_running(uid)
            check_container(node, uid, "c", 20, 4)
        assert node.reports.start_failures == []
        check_books(node)


async def test_a_late_source_is_waited_for_and_nothing_is_guessed(short_tmp: Path) -> None:
    """Every answer of the only exact source comes long after its budget."""
    sources = (Source.PODS, Source.APISERVER)
    async with station(short_tmp, inventory(4), sources=sources, budget_s=0.005) as node:

        def late(fetch: Fetch) -> Fetch:
            async def fetched() -> Sequence[Pod]:
                await asyncio.sleep(0.05)
                return await fetch()

            return fetched

        wrapped(node, late)
        pods = [pod_json(f"p{number}", ("c", 20, 4)) for number in range(6)]
        node.know(*reversed(pods))
        for uid in [node.kubelet.submit(pod) for pod in pods]:
            await node.kubelet.wait_running(uid)
            check_container(node, uid, "c", 20, 4)
        assert all(asking.certain for asking, _ in node.reports.granted_)
        assert {grant.source for _, grant in node.reports.granted_} == {Source.PODS}
        check_books(node)


@pytest.mark.parametrize(("seed", "often"), [(0, 0.4), (1, 0.4), (4, 1.0)])
async def test_if_calls_fail_every_container_runs_with_its_own_limits_or_waits_for_a_new_pod(
    short_tmp: Path, seed: int, often: float
) -> None:
    """Faults D1: also if all of them fail, and only the API server shows pods."""
    chance = random.Random(seed)
    sources = (Source.PODS, Source.APISERVER)
    async with station(short_tmp, inventory(8), sources=sources, seed=seed, retry_s=0.1) as node:

        def failing(fetch: Fetch) -> Fetch:
            async def fetched() -> Sequence[Pod]:
                if chance.random() < often:
                    raise KubeletError("kubelet answered 500")
                return await fetch()

            return fetched

        wrapped(node, failing)
        sizes = [(20, 4), (10, 4), (20, 8)]
        initial = [("first", 10, 4)]
        pods = [
            pod_json(f"p{number}", ("one", *sizes[number % 3]), ("two", 5, 2), init=initial if number % 4 == 0 else [])
            for number in range(20)
        ]
        chance.shuffle(pods)
        node.know(*pods)
        chance.shuffle(pods)
        uids = {node.kubelet.submit(pod): pod for pod in pods}
        refused = set()
        for uid in uids:
            if not (await node.kubelet.verdict(uid)).admitted:
                refused.add(uid)
        started = 0
        for uid in uids.keys() - refused:
            for container in ("one", "two"):
                view = await started_or_given_up(node, uid, uids[uid]["metadata"]["name"], container)
                if view is None:
                    continue
                started += 1
                limits = next(each for each in uids[uid]["spec"]["containers"] if each["name"] == container)
                asked = limits["resources"]["limits"]
                assert "/etc/vcuda/vcuda.config" in view.files
                check_container(
                    node, uid, container, int(asked["tencent.com/vcuda-core"]), int(asked["tencent.com/vcuda-memory"])
                )
        assert started > 20
        check_books(node)


async def started_or_given_up(node: Station, uid: str, name: str, container: str) -> ContainerView | None:
    """None if a sentence says that a container of the pod cannot start."""
    async with asyncio.timeout(60):
        while True:
            with suppress(LookupError):
                return node.kubelet.container_view(uid, container)
            if any(uid in said or name in said for said in node.reports.start_failures):
                return None
            await asyncio.sleep(0.05)


@pytest.mark.parametrize("error", [None, RuntimeError("a bug")], ids=["late", "fails"])
async def test_a_hint_that_takes_too_long_or_fails_is_an_answer_without_preference(
    short_tmp: Path, error: Exception | None
) -> None:
    """Faults D11: kubelet refuses the pod for good if the call for a hint fails."""
    async with station(short_tmp, inventory(2), sources=(Source.PODS,)) as node:
        hints = 0

        def slow(fetch: Fetch) -> Fetch:
            async def fetched() -> Sequence[Pod]:
                nonlocal hints
                hints += 1
                if hints == 1 and error is not None:
                    raise error
                if hints == 1:
                    await asyncio.sleep(3)
                return await fetch()

            return fetched

        wrapped(node, slow)
        verdict = await node.kubelet.admit(pod_json("p", ("c", 20, 4)), deadline_s=30)
        assert verdict.admitted
        await node.kubelet.wait_running(verdict.uid)
        check_container(node, verdict.uid, "c", 20, 4)


def without_answers(node: Station, *, keep: int) -> None:
    """Kubelet's checkpoint loses the answers of its entries from the given one on."""
    document = json.loads(node.kubelet.checkpoint_path.read_text())
    for entry in document["Data"]["PodDeviceEntries"][keep:]:
        entry["AllocResp"] = ""
    node.kubelet.checkpoint_path.write_text(json.dumps(document))


async def test_a_container_for_which_kubelet_recorded_no_answer_is_refused_and_given_back(
    short_tmp: Path, subtests: pytest.Subtests
) -> None:
    """Faults D1: it ran without devices and without limits, because the ledger held a grant of its name."""
    for resource in Resource:
        with subtests.test(resource=resource):
            async with station(fresh(short_tmp), inventory(2), image_pull_s=6000.0) as node:
                verdict = await node.kubelet.admit(pod_json("p", ("c", 20, 4)))
                ids = sorted(node.kubelet.devices_of(verdict.uid, "c")[NAMES.of(resource)])
                without_answers(node, keep=0)
                with pytest.raises(OwnershipError, match="would start without its GPU"):
                    await node.pre_start.start(resource, ids)
                assert node.unstartable_ == ["default/p/c"]
                assert (node.reports.started_, node.reports.written_) == (0, [])


async def test_an_entry_of_a_pod_that_nobody_shows_starts_nothing(short_tmp: Path) -> None:
    """Faults D7: a checkpoint that kubelet no longer writes matched the IDs with a pod that was gone."""
    async with station(short_tmp, inventory(2), image_pull_s=6000.0) as node:
        verdict = await node.kubelet.admit(pod_json("p", ("c", 20, 4)))
        ids = sorted(node.kubelet.devices_of(verdict.uid, "c")[NAMES.core])
        node.ledger.release([node.grant_of(verdict.uid, "c").id], why="test")
        checkpoint = node.kubelet.checkpoint_path.read_text()
        node.kubelet.checkpoint_path.write_text(checkpoint.replace(verdict.uid, "gone"))
        with pytest.raises(KubeletError, match="which neither kubelet nor the API server shows"):
            await node.pre_start.start(Resource.CORE, ids)
        assert (node.ledger.grants(), node.unstartable_) == ((), [])


async def test_an_entry_of_a_pod_that_ended_starts_nothing(short_tmp: Path, subtests: pytest.Subtests) -> None:
    """Faults D7: limits were written for the pod that had ended, and the container started without any."""
    for is_released in [False, True]:
        with subtests.test(is_released=is_released):
            async with station(fresh(short_tmp), inventory(2), image_pull_s=6000.0) as node:
                pod = pod_json("p", ("c", 20, 4))
                verdict = await node.kubelet.admit(pod)
                ids = sorted(node.kubelet.devices_of(verdict.uid, "c")[NAMES.core])
                if is_released:
                    node.ledger.release([node.grant_of(verdict.uid, "c").id], why="its pod ended")
                node.know({**pod, "status": {"phase": "Succeeded"}})
                with pytest.raises(KubeletError, match="its checkpoint does not list"):
                    await node.pre_start.start(Resource.CORE, ids)
                assert (node.reports.started_, node.reports.written_, node.unstartable_) == (0, [], [])


async def test_a_guess_that_does_not_fit_is_made_for_another_container(
    short_tmp: Path, subtests: pytest.Subtests
) -> None:
    """Faults D2: only the API server's order is known, and its first pod does not fit any more."""
    for seed in range(4):
        with subtests.test(seed=seed):
            async with station(fresh(short_tmp), inventory(1), sources=(Source.APISERVER,), seed=seed) as node:
                filler = pod_json("filler", ("c", 80, 4))
                node.know(filler)
                assert (await node.kubelet.admit(filler)).admitted
                large = pod_json("large", ("c", 20, 62), annotations={"tencent.com/predicate-time": "1000"})
                small = pod_json("small", ("c", 20, 4), annotations={"tencent.com/predicate-time": "2000"})
                node.know(large, small)
                verdict = await node.kubelet.admit(small)
                assert verdict.admitted, verdict.message
                await node.kubelet.wait_running(verdict.uid)
                check_container(node, verdict.uid, "c", 20, 4)


async def test_static_pods_are_admitted_while_nobody_shows_their_uid(
    short_tmp: Path, subtests: pytest.Subtests
) -> None:
    """Faults D3: the API server is away, so kubelet refuses the agent's token, and PodResources shows names only."""
    for seed in range(4):
        with subtests.test(seed=seed):
            async with station(fresh(short_tmp), inventory(4), seed=seed) as node:
                before = await node.kubelet.admit(pod_json("before", ("c", 30, 8)))
                node.pods_refused = node.api_is_away = True
                pods = [
                    pod_json("one", ("c", 20, 4)),
                    pod_json("two", ("plain", 0, 0), ("c", 80, 40)),
                    pod_json("whole", ("c", 100, 0)),
                    pod_json("three", ("c", 50, 20)),
                ]
                for pod in pods:
                    verdict = await node.kubelet.admit(pod)
                    assert verdict.admitted, verdict.message
                    await node.kubelet.wait_running(verdict.uid)
                    limits = pod["spec"]["containers"][-1]["resources"]["limits"]
                    cores, blocks = (int(limits.get(name, 0)) for name in (NAMES.core, NAMES.memory))
                    request = node.grant_of(verdict.uid, "c").allocation.request
                    assert (request.cores, request.blocks) == (cores, blocks)
                    if cores < 100:
                        check_container(node, verdict.uid, "c", cores, blocks)
                assert node.grant_of(before.uid, "c").allocation.request.cores == 30
                assert node.reports.start_failures == []
                check_books(node)


async def test_static_pods_that_nobody_shows_are_told_apart_before_the_first_one_starts(
    short_tmp: Path, subtests: pytest.Subtests
) -> None:
    """Faults D3: every container without the resource may be the one that kubelet asks for, those without GPUs too."""
    for seed in range(4):
        with subtests.test(seed=seed):
            async with station(fresh(short_tmp), inventory(4), seed=seed, image_pull_s=20.0) as node:
                assert (await node.kubelet.admit(pod_json("plain", ("c", 0, 0)))).admitted
                node.pods_refused = node.api_is_away = True
                sizes = {"one": 20, "two": 30, "three": 20}
                uids = {name: node.kubelet.submit(pod_json(name, ("c", cores, 4))) for name, cores in sizes.items()}
                for uid in uids.values():
                    verdict = await node.kubelet.verdict(uid)
                    assert verdict.admitted, verdict.message
                for name, uid in uids.items():
                    await node.kubelet.wait_running(uid)
                    check_container(node, uid, "c", sizes[name], 4)
                assert len({node.grant_of(uid, "c").id for uid in uids.values()}) == len(sizes)
                assert node.reports.start_failures == []
                check_books(node)


async def check_both_start(node: Station, large: Json, small: Json) -> None:
    """Pods of 60 and of 4 blocks; the large one is admitted first."""
    for pod, blocks in ((large, 60), (small, 4)):
        verdict = await node.kubelet.admit(pod)
        assert verdict.admitted, verdict.message
        await node.kubelet.wait_running(verdict.uid)
        check_container(node, verdict.uid, "c", 20, blocks)
    check_books(node)


async def test_a_guess_leaves_room_for_the_others_whatever_a_scheduler_chose_for_it(
    short_tmp: Path, subtests: pytest.Subtests
) -> None:
    """Lineage D8: kubelet admits `large` first, and the guess followed the GPU that was chosen for `small`."""
    for seed in range(4):
        with subtests.test(seed=seed):
            async with station(fresh(short_tmp), inventory(2), sources=(Source.APISERVER,), seed=seed) as node:
                filler = pod_json("filler", ("c", 20, 48), annotations={"tencent.com/predicate-gpu-idx-0": "0"})
                small = pod_json(
                    "small",
                    ("c", 20, 4),
                    annotations={"tencent.com/predicate-time": "1000", "tencent.com/predicate-gpu-idx-0": "0"},
                )
                large = pod_json(
                    "large",
                    ("c", 20, 60),
                    annotations={"tencent.com/predicate-time": "2000", "tencent.com/predicate-gpu-idx-0": "1"},
                )
                node.know(filler)
                await node.kubelet.wait_running((await node.kubelet.admit(filler)).uid)
                node.know(small, large)
                await check_both_start(node, large, small)


async def test_a_guess_leaves_room_for_the_others_where_no_gpu_is_cordoned(
    short_tmp: Path, subtests: pytest.Subtests
) -> None:
    """The fullest GPU with room for both is cordoned: the guess fell on one that has room for the smaller only."""
    for seed in range(4):
        with subtests.test(seed=seed):
            async with station(fresh(short_tmp), inventory(3), sources=(Source.APISERVER,), seed=seed) as node:
                for at, (name, blocks) in enumerate((("one", 2), ("filler", 48))):
                    before = pod_json(name, ("c", 20, blocks), annotations={"tencent.com/predicate-gpu-idx-0": str(at)})
                    node.know(before)
                    await node.kubelet.wait_running((await node.kubelet.admit(before)).uid)
                node.cordon = frozenset({inventory(3).gpus[0].uuid})
                small = pod_json("small", ("c", 20, 4), annotations={"tencent.com/predicate-time": "1000"})
                large = pod_json("large", ("c", 20, 60), annotations={"tencent.com/predicate-time": "2000"})
                node.know(small, large)
                await check_both_start(node, large, small)


@pytest.mark.parametrize("lost", [(), (0,)], ids=["healthy", "lost"])
async def test_a_guess_takes_nothing_from_a_container_that_was_started(short_tmp: Path, lost: tuple[int, ...]) -> None:
    """Kubelet lost its checkpoint, and no status shows yet that the container runs. Its GPU may be lost too."""
    async with station(short_tmp, inventory(2)) as node:
        runs, waits = pod_json("runs", ("c", 20, 4)), pod_json("waits", ("c", 20, 4))
        node.know(runs, waits)
        first = node.kubelet.submit(runs)
        await node.kubelet.wait_running(first)
        grant = node.grant_of(first, "c")
        node.feed.publish(catalog(inventory(2, unhealthy=lost)))
        right, wrong = ((pod, pod.containers[0]) for pod in sorted(node.known, key=lambda pod: pod.ref.uid == first))

        async def guessed(question: Question) -> IdentifiedContainer:
            return IdentifiedContainer(*wrong, Source.PODRESOURCES, certain=False, others=(right,))

        node.context.identity.identify = guessed  # type: ignore[method-assign]
        second = node.kubelet.submit(waits)
        await node.kubelet.wait_running(second)
        assert node.grant_of(first, "c") == grant
        assert node.grant_of(second, "c").id != grant.id
        check_container(node, first, "c", 20, 4)
        check_container(node, second, "c", 20, 4)


async def test_a_container_that_ended_while_its_status_says_running_gets_its_grant_again(short_tmp: Path) -> None:
    """Kubelet has lost its checkpoint, and the API server has not heard of the end: kubelet was away."""
    async with station(short_tmp, inventory(2), sources=(Source.PODRESOURCES,), retry_s=0.1) as node:
        pod = pod_json("p", ("c", 20, 4))
        running = {"name": "c", "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}}}
        node.know({**pod, "status": {"phase": "Running", "containerStatuses": [running]}})
        verdict = await node.kubelet.admit(pod)
        await node.kubelet.wait_running(verdict.uid)
        before = node.grant_of(verdict.uid, "c")
        node.kubelet.exit_container(verdict.uid, "c")
        await node.kubelet.restart(forget_checkpoint=True, after=(NAMES.core, NAMES.memory))
        await node.kubelet.wait_running(verdict.uid, starts=2)
        assert node.grant_of(verdict.uid, "c").id == before.id
        assert node.reports.refused_ == []


async def test_a_container_of_gpu_managers_time_cannot_start_again_and_is_given_back(
    short_tmp: Path, subtests: pytest.Subtests
) -> None:
    """Kubelet repeats the IDs that gpu-manager issued; without this it tried for ever and said nothing of the pod.

    Here the rest of the answer is not gpu-manager's.
    """
    for resource in Resource:
        with subtests.test(resource=resource):
            async with station(fresh(short_tmp), inventory(2), image_pull_s=6000.0) as node:
                verdict = await node.kubelet.admit(pod_json("p", ("c", 20, 4)))
                theirs = []
                text = node.kubelet.checkpoint_path.read_text()
                for number, ours in enumerate(sorted(node.kubelet.devices_of(verdict.uid, "c")[NAMES.of(resource)])):
                    theirs.append(f"{NAMES.of(resource)}-{number + 283}")
                    text = text.replace(f'"{ours}"', f'"{theirs[-1]}"')
                node.kubelet.checkpoint_path.write_text(text)
                with pytest.raises(OwnershipError, match=r"admitted by gpu-manager.*delete the pod"):
                    await node.pre_start.start(resource, theirs)
                assert node.unstartable_ == ["default/p/c"]
                assert (node.reports.started_, node.reports.written_) == (0, [])
                with pytest.raises(KubeletError, match="its checkpoint does not list"):
                    await node.pre_start.start(resource, ["tencent.com/vcuda-core-1"])
