"""Limits that are changed while their pod runs reach the running container's limits file within a second."""

import asyncio
import time
from pathlib import Path

from deviceplugin.container.limits_file import GrantLimits
from sandbox.gpunode import GpuNode
from sandbox.limits_file import decode
from sandbox.station import Json, pod_json
from tests.agent.harness import (
    NAMESPACE,
    events,
    limits_now,
    node_with_agent,
    run,
    share,
    until_said,
)

LIMIT = "tencent.com/vcuda-core-limit"
MEMORY_LIMIT = "tencent.com/vcuda-memory-limit"


def limits_file(node: GpuNode, uid: str) -> GrantLimits:
    return decode(node.kubelet.container_view(uid, "c").host_path("/etc/vcuda/limits").read_bytes())


def soft_cores(node: GpuNode, uid: str) -> int:
    (device,) = limits_file(node, uid).devices
    return device.soft_cores


def memory_mib(node: GpuNode, uid: str) -> int:
    (device,) = limits_file(node, uid).devices
    return device.memory_bytes >> 20


async def until_mib(node: GpuNode, uid: str, mib: int) -> None:
    async def reached() -> bool:
        return memory_mib(node, uid) == mib

    await node.agent.until(reached, what=f"the limits file says {mib} MiB", deadline_s=10.0)


def annotate(node: GpuNode, pod: Json, value: str | None, name: str = LIMIT) -> None:
    change = {"metadata": {"annotations": {name: value}}}
    node.server.store.patch("pods", pod["metadata"]["name"], change, namespace=NAMESPACE)


async def until_soft(node: GpuNode, uid: str, soft: int) -> float:
    began = time.monotonic()

    async def reached() -> bool:
        return soft_cores(node, uid) == soft

    await node.agent.until(reached, what=f"the limits file says {soft}", deadline_s=10.0)
    return time.monotonic() - began


async def test_a_changed_annotation_changes_the_limits_of_the_running_container(short_tmp: Path) -> None:
    async with node_with_agent(short_tmp, flags={"allocation-check-period": "1h"}) as node:
        pod = share("p", 30, 8)
        (uid,) = await run(node, pod)
        (first,) = limits_file(node, uid).devices
        assert (first.cores, first.soft_cores, first.memory_bytes) == (30, 0, 8 << 28)
        assert first.bus_id, "as NVML writes it"
        assert limits_file(node, uid).generation == 1

        annotate(node, pod, "60")
        assert await until_soft(node, uid, 60) < 1.0
        assert limits_file(node, uid).generation == 2
        assert limits_now(node, uid).soft_cores == 60, "the file of gpu-manager's client agrees"
        row = node.kubelet.container_view(uid, "c").host_path(f"/etc/vcuda/state/{first.uuid}.activity")
        await node.server.until(lambda: row.read_bytes()[52:60] == bytes([30, 0, 0, 0, 60, 0, 0, 0]))
        await node.server.until(lambda: any("60" in event["message"] for event in events(node, "GPUConfigWritten")))

        annotate(node, pod, "much")
        assert await until_soft(node, uid, 0) < 1.0
        assert len(await until_said(node, "annotation_ignored")) == 1, "once, not at every change of the pod"


async def test_the_looks_of_the_agent_cost_the_author_no_change(short_tmp: Path) -> None:
    async with node_with_agent(short_tmp, flags={"allocation-check-period": "300ms"}) as node:
        pod = share("p", 30, 8)
        (uid,) = await run(node, pod)
        await asyncio.sleep(1.5)
        for soft in (60, 70):
            annotate(node, pod, str(soft))
            assert await until_soft(node, uid, soft) < 1.0


async def test_an_author_who_writes_nonsense_without_pause_fills_no_log(short_tmp: Path) -> None:
    """Security A-12: 93 lines a second, for as long as he liked."""
    async with node_with_agent(short_tmp) as node:
        pod, other = share("p", 30, 8), share("other", 30, 8)
        (uid, _) = await run(node, pod, other)
        for number in range(30):
            annotate(node, pod, f"x{number}")
            await node.agent.get("/healthz")
        annotate(node, other, "much")
        annotate(node, pod, "60")
        await until_soft(node, uid, 60)
        said = await until_said(node, "annotation_ignored", times=2)
        assert sorted(each["pod"] for each in said) == ["default/other", "default/p"], "each pod has its own pace"


async def test_a_limit_of_memory_is_lowered_and_raised_up_to_the_grant_while_the_container_runs(
    short_tmp: Path,
) -> None:
    """The agent was away when the pod's cores were changed, and makes that good; whole GPUs have no limits at all."""
    async with node_with_agent(short_tmp, flags={"allocation-check-period": "1h"}) as node:
        pod = share("p", 30, 8, annotations={MEMORY_LIMIT: "1900"})
        uid, whole = await run(node, pod, pod_json("whole", ("c", 200, 0)))
        assert memory_mib(node, uid) == 1900, "at its start"
        folder = node.kubelet.container_view(whole, "c").host_path("/etc/vcuda")
        assert {path.name for path in folder.iterdir()} == {"vcuda.config"}
        assert not limits_now(node, whole).enforced

        for written, mib in (("c=700", 700), ("2000", 2000), ("4096", 2048), (None, 2048), ("much", 2048)):
            annotate(node, pod, written, MEMORY_LIMIT)
            await until_mib(node, uid, mib)
            assert limits_now(node, uid).memory_bytes == mib << 20, "the file of gpu-manager's client agrees"
        said = [event["message"] for event in events(node, "GPUConfigWritten")]
        assert any("and to 700 MiB of memory" in each for each in said)
        assert len(await until_said(node, "annotation_ignored")) == 1, "once, not at every change of the pod"

        await node.agent.kill()
        annotate(node, pod, "50")
        lost = node.kubelet.container_view(uid, "c").host_path("/etc/vcuda/limits")
        lost.unlink()
        await node.start_agent()

        async def back() -> bool:
            return lost.exists() and soft_cores(node, uid) == 50

        await node.agent.until(back, what="the limits file is back", deadline_s=10.0)


async def test_who_changes_limits_without_pause_sets_no_pace(short_tmp: Path) -> None:
    """Security A-4: the newest value counts, all containers in one entry. Counted, not timed."""
    async with node_with_agent(short_tmp, flags={"allocation-check-period": "1h"}) as node:
        pod = pod_json("busy", *((f"c{number}" if number else "c", 2, 1) for number in range(10)))
        (uid,) = await run(node, pod)
        began, changes = time.monotonic(), 0
        while time.monotonic() - began < 8 or changes < 100:
            annotate(node, pod, str(30 + changes % 60))
            changes += 1
            await asyncio.sleep(0.02)
        annotate(node, pod, "95")
        await until_soft(node, uid, 95)
        lasted = time.monotonic() - began
        entries = node.journal.read_bytes().count(b"follow_limits")
        assert 2 <= entries <= 2 + lasted / 3 + 1 < changes / 4
        said = await until_said(node, "limits_changed", times=entries)
        assert len(said) == entries, "one line for a change of the pod, not for each container"
        assert {each["containers"] for each in said} == {10}


async def test_an_annotation_that_cannot_be_read_is_logged_once_a_minute(short_tmp: Path) -> None:
    """Security A-12: its author may write another one without pause."""
    async with node_with_agent(short_tmp) as node:
        pod, other = share("p"), share("q")
        (uid, _) = await run(node, pod, other)
        for number in range(3):
            annotate(node, pod, f"much-{number}")
            annotate(node, pod, f"{number + 1}x", MEMORY_LIMIT)
            await asyncio.sleep(3)
        annotate(node, pod, "60")
        await until_soft(node, uid, 60)
        assert len(node.agent.entries("annotation_ignored")) == 1
        annotate(node, other, "much")
        await until_said(node, "annotation_ignored", times=2)


async def test_a_limit_that_could_not_be_written_is_written_as_soon_as_it_can_be(short_tmp: Path) -> None:
    """The ledger and the annotation agree by then. At a start of the agent too; the log says it once a minute."""
    async with node_with_agent(short_tmp, flags={"allocation-check-period": "300ms"}) as node:
        pod = share("p", 30, 8)
        (uid,) = await run(node, pod)
        assert await is_at(node, uid, 2048)
        (folder,) = node.grants.glob("g-*")
        obstacle = folder / ".vcuda.config.new"
        for agents, mib in ((1, 1024), (2, 512)):
            obstacle.mkdir()
            annotate(node, pod, str(mib), MEMORY_LIMIT)
            if agents == 2:
                await node.agent.kill()
                await node.start_agent()
            await until_said(node, "limits_write_failed", times=agents)
            await asyncio.sleep(1.5)
            assert not await is_at(node, uid, mib)
            assert len(node.agent.entries("limits_write_failed")) == agents
            obstacle.rmdir()
            await until_mib(node, uid, mib)
            assert limits_now(node, uid).memory_bytes == mib << 20
            await until_said(node, "limits_changed", times=agents)


async def is_at(node: GpuNode, uid: str, mib: int) -> bool:
    return memory_mib(node, uid) == mib
