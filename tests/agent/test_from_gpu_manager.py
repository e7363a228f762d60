"""A node of gpu-manager with running pods, taken over: their clients register, and their containers start again."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from sandbox.emulated_gpus import INTERPOSERS
from sandbox.gpu_manager import LIBRARY, gpu_manager
from sandbox.gpunode import GpuNode
from sandbox.runtime import RuntimeContainer, StandInRuntime
from sandbox.station import Json, pod_json
from tests.agent.harness import (
    PATIENCE_S,
    delete,
    events,
    holders,
    node_with_agent,
    owned,
    run,
    share,
    until_event,
    until_held_by,
)
from tests.agent.test_growing_memory import CONTEXT_MIB, fill, process_in
from tests.agent.test_registering import ID, register, seen
from tests.gpu_manager.client_reader import read_limits, read_pids


@asynccontextmanager
async def taken_over(home: Path, *pods: Json, **given: Any) -> AsyncIterator[tuple[GpuNode, list[str]]]:
    """The pods run as gpu-manager started them, and vcuda's agent runs."""
    async with node_with_agent(home, started=False, **given) as node:
        async with gpu_manager(node):
            uids = await run(node, *pods)
        await node.start_agent(deadline_s=PATIENCE_S)
        assert holders(await node.agent.usage()) == set(uids)
        yield node, uids


async def test_a_client_in_a_running_container_registers_with_the_agent(short_tmp: Path) -> None:
    """gpu-manager's library ends each new process that cannot."""
    async with (
        StandInRuntime(short_tmp / "cri.sock") as runtime,
        taken_over(short_tmp, share("p", 30, 8), share("q", 20, 4)) as (node, (uid, neighbour)),
    ):
        runtime.containers.append(RuntimeContainer(ID, uid, "c"))
        await register(node, uid)
        limits = read_limits(seen(node, uid, f"{ID}/vcuda.config").read_bytes())
        assert (limits.pod_uid, limits.container, limits.cores, limits.memory_bytes) == (uid, "c", 30, 8 << 28)
        assert read_pids(seen(node, uid, f"{ID}/pids.config").read_bytes()) == ()
        assert not seen(node, neighbour, "pids.config").exists(), "the socket says whose it is"

        await node.agent.kill()
        await node.start_agent()
        await register(node, neighbour, "b2" * 32)
        assert read_limits(seen(node, neighbour, f"{'b2' * 32}/vcuda.config").read_bytes()).cores == 20

        await delete(node, {"metadata": {"name": "p"}})
        await until_held_by(node, [neighbour])

        async def gone() -> bool:
            return not (node.grants / uid).exists()

        await node.agent.until(gone, what="what gpu-manager left of the pod is gone", deadline_s=PATIENCE_S)
        assert (node.grants / neighbour).is_dir()


async def test_a_share_starts_again_with_vcudas_library_and_gpu_managers_file_and_a_whole_gpu_without(
    short_tmp: Path,
) -> None:
    pod = share("p", 30, 8, annotations={"tencent.com/vcuda-memory-limit": "1000"})
    pods = (pod, pod_json("whole", ("c", 200, 0)))
    async with taken_over(short_tmp, *pods, library=INTERPOSERS) as (node, (uid, whole)):
        for number in range(6):  # what earlier starts have registered under gpu-manager
            (node.grants / uid / f"{number:064}").mkdir()
        assert (seen_before := node.kubelet.container_view(uid, "c")).host_path(f"/usr/local/nvidia/lib64/{LIBRARY}")
        node.kubelet.exit_container(uid, "c")
        await node.kubelet.wait_running(uid, starts=2, deadline_s=PATIENCE_S)
        now = node.kubelet.container_view(uid, "c")
        libraries = now.host_path("/usr/local/nvidia/lib64")
        assert libraries != seen_before.host_path("/usr/local/nvidia/lib64")
        assert (libraries / "libvcuda.so.1").exists()
        limits = read_limits(now.files["/etc/vcuda/vcuda.config"])
        assert (limits.pod_uid, limits.container, limits.cores) == (uid, "c", 30)
        assert limits.memory_bytes == 1000 << 20
        assert "/etc/vcuda/limits" not in now.files, "it would have vcuda's library look for a region"
        with process_in(node, uid) as one, process_in(node, uid) as other:
            assert [len(fill(each)) for each in (one, other)] == [(1000 - CONTEXT_MIB) // 128] * 2, "each by itself"
        await register(node, uid)
        assert seen(node, uid, f"{ID}/vcuda.config").exists()
        node.kubelet.exit_container(whole, "c")
        await node.kubelet.wait_running(whole, starts=2, deadline_s=PATIENCE_S)
        assert not node.kubelet.container_view(whole, "c").host_path("/usr/local/nvidia/lib64/libvcuda.so.1").exists()
        assert events(node, "GPUStartFailed") == []


@pytest.mark.parametrize(
    ("containers", "flags", "why"),
    [
        ([("c", 30, 8), ("d", 20, 4)], {}, "several containers of the pod have one directory for their limits"),
        ([("c", 30, 8)], {"driver-mirror-path": "elsewhere"}, "its libraries are not vcuda's"),
    ],
    ids=["two containers", "another mirror"],
)
async def test_where_nothing_would_limit_it_the_container_is_refused_and_its_pod_deleted(
    short_tmp: Path, containers: list[tuple[str, int, int]], flags: dict[str, str], why: str
) -> None:
    absolute = {flag: short_tmp / value for flag, value in flags.items()}
    pods = [owned(pod_json("owned", *containers)), pod_json("alone", ("c", 40, 8), ("d", 41, 4))]
    async with taken_over(short_tmp, *pods, flags=absolute) as (node, (uid, alone)):
        for each in (uid, alone):
            node.kubelet.exit_container(each, "c")
        await until_held_by(node, [alone])
        said = {event["message"] for event in await until_event(node, "GPUStartFailed")}
        assert any(why in each and "delete the pod" in each for each in said), said
        assert not node.kubelet.runs(alone, "c")
