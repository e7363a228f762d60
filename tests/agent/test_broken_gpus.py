"""GPUs that break while the agent runs: kubelet offers less, pods avoid them, events report them, they come back."""

import json
from collections.abc import Callable
from pathlib import Path

from deviceplugin.observe.usage import GpuUsage
from sandbox.emulator_profile import write_profile
from sandbox.gpunode import EIGHT_GPUS, GpuNode
from sandbox.station import pod_json
from tests.agent.harness import (
    PATIENCE_S,
    check_consistency,
    delete,
    events,
    grants,
    minors,
    node_with_agent,
    refused,
    run,
    share,
    until_event,
    until_usage,
)
from tests.offered import blocks_of_each

FLAGS = {"health-recovery": "1s", "sample-period": "200ms"}
GPUS = 8


async def until_gpu(node: GpuNode, minor: int, holds: Callable[[GpuUsage], bool], *, what: str) -> GpuUsage:
    usage = await until_usage(node, lambda usage: holds(gpu_of(usage.gpus, minor)), what=what)
    return gpu_of(usage.gpus, minor)


def gpu_of(gpus: tuple[GpuUsage, ...], minor: int) -> GpuUsage:
    return next(gpu for gpu in gpus if gpu.minor == minor)


async def offered(node: GpuNode, gpus: int) -> None:
    """Kubelet and the API server's node show this many GPUs as allocatable, and all of them as capacity."""
    wanted = {node.names.core: gpus * 100, node.names.memory: gpus * blocks_of_each(node.gpus.profile)[0]}
    for resource, count in wanted.items():
        await node.kubelet.wait_allocatable(resource, count, deadline_s=PATIENCE_S)
        assert node.kubelet.capacity(resource) == count // gpus * GPUS
    texts = {resource: str(count) for resource, count in wanted.items()}
    await node.server.until(lambda: texts.items() <= shown(node).items(), seconds=PATIENCE_S)


def shown(node: GpuNode) -> dict[str, str]:
    """Allocatable, as the scheduler sees it."""
    found: dict[str, str] = node.server.store.get("nodes", "node-1")["status"]["allocatable"]
    return found


def look_at_once(node: GpuNode) -> None:
    """Modes are looked at every ten seconds, and soon after any event."""
    node.gpus.command("xid", 0, 43)


async def test_who_holds_a_gpu_that_was_exchanged_is_told_to_go(short_tmp: Path) -> None:
    """Faults D9: the container still reaches the device node, and the ledger knows GPUs by UUID."""
    profile = short_tmp / "profile.json"
    document = json.loads(EIGHT_GPUS.read_text())
    write_profile(document, profile)
    async with node_with_agent(short_tmp, profile=profile) as node:
        await run(node, share("old", 40, 8))
        await node.agent.kill()
        for number, gpu in enumerate(document["gpus"]):
            gpu["uuid"] = f"GPU-00000000-0000-4000-8000-{number:012}"
        write_profile(document, profile)
        node.gpus.state.unlink()
        await node.start_agent()
        (event,) = await until_event(node, "GPUGone")
        assert event["involvedObject"]["name"] == "old"
        assert "not on this node any more" in event["message"]
        await run(node, share("new", 100, 0))
        assert len(node.agent.entries("gpu_gone")) == 1


async def test_a_gpu_that_falls_off_the_bus_gets_nothing_new_and_comes_back(short_tmp: Path) -> None:
    """One in MIG mode, and one in compute mode prohibited, are not offered either."""
    async with node_with_agent(short_tmp, flags=FLAGS) as node:
        (uid,) = await run(node, share("on-it"))
        (lost,) = minors(node, uid)
        before = grants(await check_consistency(node))

        node.gpus.lose(lost)
        await offered(node, GPUS - 1)
        (event,) = await until_event(node, "GPUUnhealthy")
        assert event["involvedObject"]["kind"] == "Node"
        assert (event["involvedObject"]["name"], event["type"]) == ("node-1", "Warning")
        assert f"GPU {lost} " in event["message"]
        gpu = await until_gpu(node, lost, lambda gpu: not gpu.healthy, what="/usage shows it")
        assert gpu.reason

        pods = [share(f"new-{number}", 60, 8) for number in range(GPUS - 1)]
        new = await run(node, *pods)
        assert sorted(minor for uid in new for minor in minors(node, uid)) == [
            minor for minor in range(GPUS) if minor != lost
        ]
        said = await refused(node, share("too-much", 60, 8))
        assert "Traceback" not in said
        after = grants(await check_consistency(node))
        assert after[uid, "c"] == before[uid, "c"], "the pod on it keeps its grant"

        node.gpus.command("recover", lost)
        await offered(node, GPUS)
        (event,) = await until_event(node, "GPURecovered")
        assert f"GPU {lost} " in event["message"]
        (again,) = await run(node, share("again", 60, 8))
        assert minors(node, again) == [lost]
        await delete(node, *pods)
        before = grants(await check_consistency(node))

        taken = (lost + 2) % GPUS, (lost + 6) % GPUS
        node.gpus.command("mig", taken[0], "on")
        node.gpus.command("compute-mode", taken[1], "prohibited")
        look_at_once(node)
        await offered(node, GPUS - 2)
        (many,) = await run(node, pod_json("many", ("c", 500, 0)))
        assert set(minors(node, many)) == set(range(GPUS)) - {lost, *taken}
        assert grants(await check_consistency(node)).items() >= before.items()
        node.gpus.command("mig", taken[0], "off")
        node.gpus.command("compute-mode", taken[1], "default")
        look_at_once(node)
        await offered(node, GPUS)


async def test_only_the_errors_that_are_not_the_applications_take_a_gpu_out(short_tmp: Path) -> None:
    async with node_with_agent(short_tmp, flags={**FLAGS, "health-recovery": "10m"}) as node:
        await run(node, share("somebody"))
        node.gpus.command("xid", 3, 31)
        node.gpus.command("xid", 3, 13)
        node.gpus.command("xid", 5, 79)
        await offered(node, GPUS - 1)
        usage = await node.agent.usage()
        assert [gpu.minor for gpu in usage.gpus if not gpu.healthy] == [5]
        assert "XID 79" in gpu_of(usage.gpus, 5).reason
        await until_event(node, "GPUUnhealthy")
        assert ["GPU 5 " in event["message"] for event in events(node, "GPUUnhealthy")] == [True]

        await node.agent.kill()
        await node.start_agent()
        await offered(node, GPUS - 1)
        (whole,) = await run(node, pod_json("whole", ("c", 600, 0)))
        assert 5 not in minors(node, whole), "a restart forgets no error"
