"""How often kubelet is asked whose a call is, and that who is not asked about is not taken for another.

Kubelet prefers and allocates for one container in a row, first the one resource and then the other.
"""

import asyncio
import itertools
import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest

from deviceplugin.errors import KubeletError, VcudaError
from deviceplugin.kube.pods import PodListReader
from deviceplugin.kubelet.allocate_answer import Answer
from deviceplugin.kubelet.identity_sources import PodsSource
from deviceplugin.ledger.grant import Source
from deviceplugin.model.pod import Pod
from deviceplugin.model.units import Resource
from sandbox.station import Station, pod_json, station
from tests.kubelet.makers import fresh, grant, inventory
from tests.kubelet.test_flow import SOURCES, check_books, check_container
from tests.waiting import until


def counted_lists(node: Station) -> list[None]:
    """Grows with each list of its pods that kubelet is asked for."""
    (source,) = (each for each in node.context.identity._exact if each.source is Source.PODS)
    assert isinstance(source, PodsSource)
    fetch, made = source._fetch, list[None]()

    async def counted() -> Sequence[Pod]:
        made.append(None)
        return await fetch()

    source._fetch = counted
    return made


async def test_kubelet_is_asked_for_its_pods_once_for_a_container(short_tmp: Path) -> None:
    async with station(short_tmp, inventory(2), sources=(Source.PODS,)) as node:
        lists = counted_lists(node)
        pod = pod_json("p", ("one", 20, 4), ("two", 20, 4))
        node.know(pod)
        verdict = await node.kubelet.admit(pod)
        await node.kubelet.wait_running(verdict.uid)
        for name in ("one", "two"):
            check_container(node, verdict.uid, name, 20, 4)
        assert len(lists) == 2


async def test_kubelet_is_asked_again_where_it_may_have_done_something_else(
    short_tmp: Path, subtests: pytest.Subtests
) -> None:
    async def new_stream(node: Station) -> None:
        node.allocator.connected()

    async def failed_call(node: Station) -> None:
        with pytest.raises(VcudaError, match="not one of this node's"):
            await node.allocator.allocate(Resource.MEMORY, ["nonsense"])

    async def time_passed(_node: Station) -> None:
        await asyncio.sleep(0.15)

    for between in (new_stream, failed_call, time_passed):
        with subtests.test(between=between.__name__):
            async with station(fresh(short_tmp), inventory(1), sources=(Source.PODS,)) as node:
                lists: list[None] = []
                ids = {resource: sorted(node.feed.catalog.issued[resource]) for resource in Resource}
                (source,) = node.context.identity._exact
                assert isinstance(source, PodsSource)
                (pod,) = PodListReader().read(json.dumps({"items": [pod_json("p", ("c", 20, 4))]}).encode())

                async def shown(lists: list[None] = lists, pod: Pod = pod) -> Sequence[Pod]:
                    lists.append(None)
                    return (pod,)

                source._fetch = shown
                await node.allocator.allocate(Resource.CORE, ids[Resource.CORE][:20])
                assert len(lists) == 1
                await between(node)
                await node.allocator.allocate(Resource.MEMORY, ids[Resource.MEMORY][:4])
                assert len(lists) == 2
                (grant,) = node.ledger.grants()
                assert grant.answered == frozenset(Resource)


async def test_whose_the_preferred_ids_are_is_asked_once(short_tmp: Path, subtests: pytest.Subtests) -> None:
    """And again for other IDs, after a change of the ledger, and for a kubelet that may be another one."""

    def nothing(_node: Station) -> None:
        pass

    def ledger_changes(node: Station) -> None:
        (other,) = PodListReader().read(json.dumps({"items": [pod_json("other", ("c", 10, 1))]}).encode())
        node.ledger.grant(grant(other.containers[0], (0, 10, 1)), node.feed.catalog.inventory)

    def new_stream(node: Station) -> None:
        node.allocator.connected()

    cases = [(nothing, 0, 1), (nothing, 1, 2), (ledger_changes, 0, 2), (new_stream, 0, 2)]
    for between, moved, expected in cases:
        with subtests.test(between=between.__name__, moved=moved):
            async with station(fresh(short_tmp), inventory(1), sources=(Source.PODS,)) as node:
                lists: list[None] = []
                (source,) = node.context.identity._exact
                assert isinstance(source, PodsSource)
                source._fetch = partial(known_pods, node, lists)
                ids = sorted(node.feed.catalog.issued[Resource.CORE])
                node.know(pod_json("p", ("c", 20, 4)))
                chosen = await node.allocator.prefer(Resource.CORE, ids, [], 20)
                await until(lambda lists=lists: bool(lists))  # type: ignore[misc]
                between(node)
                await node.allocator.allocate(Resource.CORE, sorted(set(ids) - set(chosen))[:20] if moved else chosen)
                assert len(lists) == expected


async def test_a_stream_that_opens_while_a_hint_is_made_does_not_fail_the_hint(short_tmp: Path) -> None:
    """Kubelet takes the two resources one after the other, and may admit a pod between."""
    async with station(short_tmp, inventory(1), sources=(Source.PODS,)) as node:
        (source,) = node.context.identity._exact
        assert isinstance(source, PodsSource)
        fetch, asked = source._fetch, asyncio.Event()

        async def slowly() -> Sequence[Pod]:
            asked.set()
            await asyncio.sleep(0.1)
            return await fetch()

        source._fetch = slowly
        uid = node.kubelet.submit(pod_json("p", ("c", 20, 4)))
        await asked.wait()
        node.allocator.connected()
        assert (await node.kubelet.verdict(uid)).admitted
        await node.kubelet.wait_running(uid)
        check_container(node, uid, "c", 20, 4)


async def known_pods(node: Station, lists: list[None]) -> Sequence[Pod]:
    lists.append(None)
    return node.known


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("sources", SOURCES)
async def test_a_pod_that_kubelet_gives_up_between_its_calls_takes_nothing_of_the_next_one(
    short_tmp: Path, sources: Sequence[Source], seed: int
) -> None:
    """The next pod wants as much, and is asked for at once."""
    async with station(short_tmp, inventory(2), sources=sources, seed=seed, retry_s=0.1) as node:
        given_up, living = pod_json("given-up", ("c", 20, 4)), pod_json("living", ("c", 20, 4))
        node.know(given_up, living)
        allocate, calls = node.allocator.allocate, itertools.count(1)

        async def cut_off(resource: Resource, ids: Sequence[str]) -> Answer:
            if next(calls) == 2:
                raise KubeletError("the connection was cut")
            return await allocate(resource, ids)

        node.allocator.allocate = cut_off  # type: ignore[method-assign]
        first, second = node.kubelet.submit(given_up), node.kubelet.submit(living)
        assert not (await node.kubelet.verdict(first)).admitted
        assert (await node.kubelet.verdict(second)).admitted
        await node.kubelet.wait_running(second)
        check_container(node, second, "c", 20, 4)
        check_books(node)
