"""SIGKILL of the agent at any moment of a burst: no device ID lost, none given twice, nothing kept without a pod."""

import asyncio
import contextlib
import itertools
import random
import time
from pathlib import Path

from sandbox.gpunode import GpuNode
from sandbox.station import Json, pod_json
from tests.agent.harness import (
    NAMESPACE,
    PATIENCE_S,
    check_consistency,
    create,
    grants,
    node_with_agent,
    phase,
    settled,
)

ROUNDS_S = 8.0
LEAST_ROUNDS = 4
BURST = 7
STEP = 9  # of calls from kubelet, between the moments of two rounds
CALLS = 60  # about what a burst makes


def burst(number: int, rng: random.Random) -> list[Json]:
    """Shares of many sizes, pods of two containers, pods with an init container, and a whole GPU."""
    pods = []
    for place in range(BURST):
        first, second, setup = ((rng.randint(1, 30), rng.randint(1, 40)) for _ in range(3))
        containers = [("c", 100, 0)] if place == 5 else [("c", *first)]
        containers += [("two", *second)] if place % 3 == 1 else []
        init = [("setup", *setup)] if place % 4 == 2 else []
        pods.append(pod_json(f"r{number}-{place}", *containers, init=init))
    return pods


async def strike(node: GpuNode, pods: list[Json], leaving: list[str], *, after_calls: int, rng: random.Random) -> None:
    """Pods come and go, and the agent dies somewhere in it."""
    calls, names = node.kubelet.calls, [pod["metadata"]["name"] for pod in pods]
    made = len(calls.all) + after_calls
    uids = create(node, *pods)
    for name in leaving:
        node.server.store.delete("pods", name, namespace=NAMESPACE)

    def is_time() -> bool:
        return len(calls.all) >= made or all(phase(node, name) in ("Running", "Failed") for name in names)

    with contextlib.suppress(TimeoutError):
        await node.kubelet.changes.until(is_time, what="it is time", deadline_s=5.0)
    await asyncio.sleep(rng.uniform(0.0, 0.01))
    await node.agent.kill()
    for uid in uids:
        await node.kubelet.verdict(uid, deadline_s=PATIENCE_S)
    await node.server.until(lambda: not any(phase(node, name) for name in leaving), seconds=PATIENCE_S)


async def test_whatever_the_moment_nothing_is_lost_and_nothing_is_given_twice(short_tmp: Path) -> None:
    rng = random.Random(random.getrandbits(32))
    admitted = refused = 0
    async with node_with_agent(short_tmp, retry_s=4.0) as node:
        ends = time.monotonic() + ROUNDS_S
        alive: list[str] = []
        for number in itertools.count():
            before = grants(await check_consistency(node))
            leaving = [alive.pop(rng.randrange(len(alive))) for _ in range(len(alive) // 2)]
            pods = burst(number, rng)
            moment = (number * STEP + rng.randrange(STEP)) % CALLS
            await strike(node, pods, leaving, after_calls=moment, rng=rng)
            await node.start_agent(deadline_s=PATIENCE_S)
            for pod in pods:
                await settled(node, pod["metadata"]["name"])
            after = grants(await check_consistency(node))
            changed = [key for key, held in before.items() if after.get(key, held) != held]
            assert not changed, f"round {number}, killed after {moment} calls"
            running = [name for pod in pods if phase(node, name := pod["metadata"]["name"]) == "Running"]
            alive += running
            admitted, refused = admitted + len(running), refused + len(pods) - len(running)
            if time.monotonic() > ends and number >= LEAST_ROUNDS:
                break
    assert admitted > BURST, "some were killed late"
    assert refused > BURST, "some were killed early"
