"""Whose turn it is: round by pod, within a pod by grant, and nobody twice before the others."""

import asyncio

from deviceplugin.gpu_manager.registration import NodeTurns
from deviceplugin.ledger.grant import GrantId


async def test_rounds_go_by_pod_and_then_by_grant() -> None:
    turns, had = NodeTurns(), list[str]()

    async def work(pod: str, grant: str, times: int) -> None:
        for _ in range(times):
            await turns.take(pod, GrantId(grant), pause_s=0.001)
            had.append(grant)

    await turns.take("another", GrantId("a"), pause_s=0.01)
    crowd = [work("crowd", f"c{number}", 3) for number in range(3)]
    await asyncio.gather(*crowd, work("one", "o", 3), work("two", "t", 3))
    assert had[:9] == ["c0", "o", "t", "c1", "o", "t", "c2", "o", "t"]
    assert sorted(had) == sorted(["c0", "c1", "c2", "o", "t"] * 3)


async def test_who_gives_up_takes_no_turn() -> None:
    turns = NodeTurns()
    await turns.take("one", GrantId("a"), pause_s=0.01)
    waiting = [asyncio.create_task(turns.take("one", GrantId("a"), pause_s=3600)) for _ in range(5)]
    await asyncio.sleep(0)
    for task in waiting:
        task.cancel()
    async with asyncio.timeout(60):
        await turns.take("one", GrantId("a"), pause_s=0.01)
        await turns.take("one", GrantId("a"), pause_s=0.01)
