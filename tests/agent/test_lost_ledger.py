"""Books that are lost or damaged: the agent's journal while it is down, kubelet's checkpoint while it runs."""

import json
from collections.abc import Callable
from pathlib import Path

from sandbox.gpunode import GpuNode
from sandbox.kubelet import checkpoint
from sandbox.kubelet.devices import DeviceStore
from sandbox.station import Json, pod_json
from tests.agent.harness import (
    PATIENCE_S,
    Grants,
    annotations,
    check_consistency,
    delete,
    grant_directories,
    grants,
    limits_now,
    node_with_agent,
    run,
    share,
    start_unsynced,
    until_held_by,
    until_said,
    until_usage,
)

Harm = Callable[[Path], None]
SOFT = {"tencent.com/vcuda-core-limit": "60", "tencent.com/vcuda-memory-limit": "900"}
QUICK = {"allocation-check-period": "200ms"}


def company() -> list[Json]:
    return [
        share("soft", 30, 16, annotations=SOFT),
        pod_json("two", ("c", 10, 4), ("d", 15, 8), init=[("setup", 40, 8)]),
        pod_json("whole", ("c", 200, 0)),
    ]


def remove(file: Path) -> None:
    file.unlink()


def spoil_the_middle(journal: Path) -> None:
    data = bytearray(journal.read_bytes())
    first, last = len(data) // 5, 4 * len(data) // 5
    data[first:last] = (b"\x00garbage\n" * len(data))[: last - first]
    journal.write_bytes(data)


def spoil_everything(journal: Path) -> None:
    journal.write_bytes(b"\xff" * 4096)


async def lose_the_journal(node: GpuNode, harm: Harm) -> Grants:
    """The agent dies, and the journal is harmed; what the pods held."""
    before = grants(await check_consistency(node))
    await node.agent.kill()
    harm(node.journal)
    return before


async def check_all_is_back(node: GpuNode, uids: list[str], before: Grants, harm: Harm) -> None:
    """Kubelet may ask from here on; running containers must not have noticed; the log must say what happened."""
    assert grants(await node.agent.usage()) == before
    assert grant_directories(node) == {held[0] for held in before.values()}
    for uid in uids:
        assert limits_now(node, uid).pod_uid == uid
    if harm is not remove:
        (said,) = await until_said(node, "journal_damaged")
        assert "what is missing is rebuilt from kubelet's checkpoint" in said["error"]
    said_of = await until_said(node, "grant_rebuilt")
    assert len(said_of) == len(before) or harm is spoil_the_middle


async def test_a_journal_that_was_lost_is_made_good_from_kubelets_checkpoint(short_tmp: Path) -> None:
    async with node_with_agent(short_tmp, retry_s=1.0) as node:
        uids = await run(node, *company())
        for harm in (spoil_the_middle, spoil_everything):
            before = await lose_the_journal(node, harm)
            node.agent.command.log.unlink()
            await node.start_agent()
            await check_all_is_back(node, uids, before, harm)
            await until_usage(node, lambda usage: all(entry.pod for entry in usage.containers), what="all are named")
            await check_consistency(node)

        node.kubelet.exit_container(uids[0], "c")
        await node.kubelet.wait_running(uids[0], starts=2, deadline_s=PATIENCE_S)
        now = limits_now(node, uids[0])
        assert (now.soft_cores, now.memory_bytes) == (60, 900 << 20), "limits of annotations are in no checkpoint"


async def test_it_is_repaired_even_if_the_live_pods_are_unknown(short_tmp: Path) -> None:
    async with node_with_agent(short_tmp, flags=QUICK) as node:
        uids = await run(node, *company())
        before = await lose_the_journal(node, remove)
        node.kubelet.pods_faults.status = 403
        async with node.server.refuse():
            await start_unsynced(node)
            await check_all_is_back(node, uids, before, remove)
        node.kubelet.pods_faults.status = 0

        usage = await until_usage(node, lambda usage: all(one.pod for one in usage.containers), what="all are named")
        assert {(entry.pod, entry.container, entry.role) for entry in usage.containers} == {
            ("soft", "c", "app"),
            ("two", "setup", "init"),
            ("two", "c", "app"),
            ("two", "d", "app"),
            ("whole", "c", "app"),
        }
        await check_consistency(node)
        await delete(node, *company()[1:])
        await until_held_by(node, uids[:1])


async def test_pods_that_ended_are_accused_of_nothing_and_get_no_files(short_tmp: Path) -> None:
    """Faults D5: kubelet's checkpoint names ended pods until its next Allocate."""
    async with node_with_agent(short_tmp, flags={**QUICK, "vcuda-socket": "true"}) as node:
        ended = [pod_json(f"ended-{number}", ("c", 60, 8), init=[("setup", 60, 8)]) for number in range(2)]
        await run(node, *ended)
        await delete(node, *ended)
        await until_held_by(node, [])
        await node.agent.kill()
        remove(node.journal)
        before = len(node.agent.entries())
        node.kubelet.pods_faults.status = 403
        async with node.server.refuse():
            await start_unsynced(node)
            assert len(await until_said(node, "grant_rebuilt", times=4)) == 4, "nobody shows the pods"
            await until_usage(node, lambda usage: len(usage.containers) == 4, what="they count")
        seen = await directories_until_released(node)
        assert seen == set()
        said = node.agent.entries()[before:]
        assert {each["msg"] for each in said if each["level"] in ("warning", "error")} <= {
            "grant_rebuilt",
            "watch_failed",
            "node_update_failed",
            "cordon_unknown",
        }


async def directories_until_released(node: GpuNode) -> set[str]:
    seen: set[str] = set()
    while (await node.agent.usage()).containers:
        seen |= grant_directories(node)
    return seen


async def test_pods_that_hold_too_much_are_named_when_all_pods_are_known(short_tmp: Path) -> None:
    async with node_with_agent(short_tmp, flags=QUICK) as node:
        uids = await run(node, share("p", 60, 8), share("q", 60, 8))
        first, second = (next(iter(held[3])) for held in grants(await check_consistency(node)).values())
        assert first != second
        await node.agent.kill()
        await node.kubelet.kill()
        remove(node.journal)
        books = DeviceStore()
        checkpoint.read(node.kubelet.checkpoint_path, books)
        for held in books.held.values():
            held.response.envs["NVIDIA_VISIBLE_DEVICES"] = first
        checkpoint.write(node.kubelet.checkpoint_path, books, form="numa")
        await node.kubelet.start()
        await node.start_agent()
        (said,) = await until_said(node, "gpu_overcommitted")
        assert (said["level"], said["gpu"]) == ("error", first)
        assert sorted(said["pods"]) == ["default/p", "default/q"], uids


def halve(checkpoint: Path) -> None:
    checkpoint.write_bytes(checkpoint.read_bytes()[:300])


def garble(checkpoint: Path) -> None:
    checkpoint.write_text(json.dumps({"Data": {"PodDeviceEntries": [{"PodUID": 7}]}}))


async def test_a_checkpoint_that_was_lost_releases_nothing_and_stops_nothing(short_tmp: Path) -> None:
    """After losing the journal too, nothing is granted before kubelet reports: it remembers, and writes its checkpoint
    again when the agent registers.
    """
    async with node_with_agent(short_tmp, flags=QUICK) as node:
        pods = company()
        await run(node, *pods)
        for number, harm in enumerate((remove, halve, garble)):
            before = grants(await check_consistency(node))
            harm(node.kubelet.checkpoint_path)
            for _ in range(3):
                await reconciler_goes_on(node, pods[0])
            assert grants(await node.agent.usage()) == before
            assert grant_directories(node) == {held[0] for held in before.values()}
            said = node.agent.entries("checkpoint_unreadable")
            assert len(said) == number, "one line for each time that it is unreadable"
            await run(node, share(f"new-{number}"))  # kubelet writes the file again

        before = await lose_the_journal(node, remove)
        remove(node.kubelet.checkpoint_path)
        await node.start_agent()
        await run(node, share("new", 60, 8))
        after = grants(await check_consistency(node))
        assert {key: held for key, held in after.items() if key in before} == before


async def reconciler_goes_on(node: GpuNode, pod: Json) -> None:
    """A whole round has passed: what was tampered with is corrected."""
    wrong = {"metadata": {"annotations": {"tencent.com/gpu-assigned": "tampered"}}}
    node.server.store.patch("pods", pod["metadata"]["name"], wrong, namespace="default")
    await node.server.until(lambda: annotations(node, pod)["tencent.com/gpu-assigned"] == "true", seconds=PATIENCE_S)
