"""Hundreds of changes in one read are delivered in time slices; other tasks run in between."""

import asyncio
import json
from itertools import pairwise

from deviceplugin.kube.client import KubeClient
from deviceplugin.kube.pods import pods_of_node
from deviceplugin.kube.reflector import Reflector, StoreChange, WatchTiming
from deviceplugin.model.allocation import PodUid
from deviceplugin.model.pod import Pod
from sandbox.apiserver import ApiServer, Harm, pod
from tests.kube.counting import lists
from tests.waiting import in_background, until

PACE = WatchTiming(watch=20.0, first_wait=0.01, most_wait=0.02)
BURST = 400


class SlowReader:
    """For whom each change takes a millisecond of the reflector's clock."""

    def __init__(self) -> None:
        self.now = 0.0
        self.heard: list[str] = []

    def __call__(self, change: StoreChange[Pod]) -> None:
        self.now += 0.001
        self.heard.append(change.item.ref.name)

    def clock(self) -> float:
        return self.now


def reflector_of(client: KubeClient, reader: SlowReader) -> Reflector[PodUid, Pod]:
    reflector = Reflector(client, pods_of_node("n1"), pace=PACE, clock=reader.clock)
    reflector.subscribe(reader)
    return reflector


def burst(server: ApiServer) -> list[str]:
    """The first watch says all of them at once."""
    lines = []
    for number in range(BURST):
        item = pod(f"p{number}", node="n1")
        item["metadata"] |= {"uid": f"u-{number}", "resourceVersion": str(server.store.version)}
        lines.append(json.dumps({"type": "ADDED", "object": item}, separators=(",", ":")).encode() + b"\n")
    server.faults.add(Harm.SLOW, path="/pods")
    server.faults.add(Harm.BODY, path="/pods", body=b"".join(lines))
    return [f"p{number}" for number in range(BURST)]


async def test_others_have_their_turn_within_one_read(server: ApiServer, client: KubeClient) -> None:
    reader = SlowReader()
    expected = burst(server)
    seen = [0]
    async with in_background(reflector_of(client, reader).run()):
        while seen[-1] < BURST:
            await asyncio.sleep(0)
            seen.append(len(reader.heard))
    assert reader.heard == expected, "each is delivered once, in order"
    assert max(after - before for before, after in pairwise(seen)) <= 3


async def test_changes_that_take_no_time_are_delivered_in_one_slice(server: ApiServer, client: KubeClient) -> None:
    reader = SlowReader()
    expected = burst(server)
    reflector = Reflector(client, pods_of_node("n1"), pace=PACE, clock=lambda: 0.0)
    reflector.subscribe(reader)
    turns = 0
    async with in_background(reflector.run()):
        while len(reader.heard) < BURST:
            before = len(reader.heard)
            await asyncio.sleep(0)
            turns += len(reader.heard) > before
    assert reader.heard == expected
    assert turns < BURST / 8, "a turn of the loop for each change would cost more than the change"


async def test_who_is_cancelled_between_two_turns_goes_on_where_it_ended(server: ApiServer, client: KubeClient) -> None:
    reader = SlowReader()
    reflector = reflector_of(client, reader)
    first = asyncio.create_task(reflector.run())

    def end_it(_: StoreChange[Pod]) -> None:
        if len(reader.heard) == 5:
            first.cancel()

    reflector.subscribe(end_it)
    await until(lambda: server.open_watches == 1)
    expected = [f"p{number}" for number in range(40)]
    for name in expected:
        server.store.create("pods", pod(name, node="n1"))
    await asyncio.wait([first])
    assert first.cancelled()
    assert reader.heard == expected[: len(reader.heard)]
    assert 5 <= len(reader.heard) < len(expected)
    assert {found.ref.name for found in reflector.items.values()} == set(reader.heard)
    async with in_background(reflector.run()):
        await until(lambda: len(reader.heard) == len(expected))
    assert reader.heard == expected
    assert lists(server) == 1
