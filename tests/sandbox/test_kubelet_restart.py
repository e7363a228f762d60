"""What kubelet keeps and loses when it is killed and comes back."""

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import pytest

from sandbox.apiserver import container, pod
from sandbox.barenode import CORE, MEMORY, BareNode, bare_node, fast

pytestmark = pytest.mark.thorough


async def running_pod(node: BareNode, name: str = "a", cores: int = 5) -> str:
    verdict = await node.kubelet.admit(pod(name, container(cores=cores, blocks=1)))
    await node.kubelet.wait_running(verdict.uid)
    return verdict.uid


async def test_a_running_pod_survives_although_its_plugin_is_not_back(node: BareNode) -> None:
    uid = await running_pod(node)
    before = node.kubelet.devices_of(uid, "main")
    await node.core.stop()
    await node.memory.stop()
    await node.kubelet.restart()
    assert node.kubelet.allocatable(CORE) == 0
    assert (await node.kubelet.verdict(uid)).admitted
    assert node.kubelet.devices_of(uid, "main") == before
    assert len(node.kubelet.calls.of("Allocate")) == 2


async def test_a_container_that_does_not_run_fails_its_pod_if_the_plugin_is_not_back(short_tmp: Path) -> None:
    async with bare_node(replace(fast(short_tmp), retry_s=1e6)) as node:
        uid = await running_pod(node)
        node.core.fail["PreStartContainer"] = "broken"
        node.kubelet.exit_container(uid, "main")
        await node.kubelet.wait_waiting(uid, "main")
        await node.kubelet.restart()
        verdict = await node.kubelet.verdict(uid)
        assert "no healthy devices present; cannot allocate unhealthy devices" in verdict.message


async def test_a_pod_with_a_finished_init_container_loses_its_app_unless_the_plugin_is_back(node: BareNode) -> None:
    spec = pod("a", container("app", cores=1), init=(container("init", cores=2),))
    verdict = await node.kubelet.admit(spec)
    await node.kubelet.wait_running(verdict.uid)
    await node.kubelet.restart(after=(CORE, MEMORY))
    await node.register()
    assert (await node.kubelet.verdict(verdict.uid)).admitted
    await node.kubelet.restart()
    assert not (await node.kubelet.verdict(verdict.uid)).admitted
    assert not node.kubelet.runs(verdict.uid, "app")


async def test_sockets_of_a_killed_kubelet_stay_and_are_replaced(node: BareNode) -> None:
    path = node.kubelet.options.kubelet_socket
    await node.kubelet.kill()
    old = path.stat().st_ctime_ns  # a new socket may get the inode number of the removed one
    assert node.core.socket.exists()
    assert path.is_socket()
    await node.kubelet.start()
    assert path.stat().st_ctime_ns > old
    assert not node.core.socket.exists()


async def test_a_lost_checkpoint_gives_the_same_devices_out_again(short_tmp: Path) -> None:
    async with bare_node(fast(short_tmp), cores=5) as node:
        first = await running_pod(node)
        await node.kubelet.restart(forget_checkpoint=True)
        assert (await node.kubelet.verdict(first)).admitted
        await node.register()
        second = await running_pod(node, "b")
        given = [
            set(call.request.container_requests[0].devices_ids)
            for call in node.kubelet.calls.of("Allocate")
            if call.resource == CORE
        ]
        assert given[0] == given[1]
        assert not node.kubelet.devices_of(first, "main")
        assert node.kubelet.runs(second, "main")


@pytest.mark.parametrize(
    "damage", ["", "{", '{"Data": {"PodDeviceEntries": null, "RegisteredDevices": {}}, "Checksum": 1}']
)
async def test_a_damaged_checkpoint_is_an_empty_one(node: BareNode, damage: str) -> None:
    uid = await running_pod(node)
    await node.kubelet.kill()
    node.kubelet.checkpoint_path.write_text(damage)
    await node.kubelet.start()
    await node.kubelet.verdict(uid)
    assert not node.kubelet.devices_of(uid, "main")


async def test_the_flat_form_of_old_kubelets_is_written_and_read(short_tmp: Path) -> None:
    async with bare_node(replace(fast(short_tmp), checkpoint_form="flat")) as node:
        uid = await running_pod(node)
        before = node.kubelet.devices_of(uid, "main")
        entries = json.loads(node.kubelet.checkpoint_path.read_text())["Data"]["PodDeviceEntries"]
        assert {type(entry["DeviceIDs"]) for entry in entries} == {list}
        await node.kubelet.restart()
        await node.kubelet.verdict(uid)
        assert node.kubelet.devices_of(uid, "main") == before


async def test_a_kill_in_the_middle_of_an_admission_forgets_it_and_asks_again(node: BareNode) -> None:
    node.core.gates["Allocate"] = node.memory.gates["Allocate"] = asyncio.Event()
    uid = node.kubelet.submit(pod("a", container(cores=5)))
    await node.kubelet.changes.until(
        lambda: bool(node.kubelet.pod_list()), what="the pod is being admitted", deadline_s=60
    )
    await node.kubelet.kill()
    node.core.gates.clear()
    node.memory.gates.clear()
    await node.kubelet.start(after=(CORE, MEMORY))
    await node.register()
    assert (await node.kubelet.verdict(uid)).admitted
    await node.kubelet.wait_running(uid)


async def test_a_reboot_starts_the_containers_again_with_the_same_devices(node: BareNode) -> None:
    init = (container("init", cores=1),)
    uid = (await node.kubelet.admit(pod("a", container(cores=5, blocks=1), init=init))).uid
    await node.kubelet.wait_running(uid)
    before = node.kubelet.devices_of(uid, "main")
    await node.kubelet.reboot(after=(CORE, MEMORY))
    await node.register()
    await node.kubelet.wait_running(uid, starts=2)
    assert node.kubelet.devices_of(uid, "main") == before
    assert [call.container for call in node.kubelet.calls.of("PreStartContainer")].count("init") == 2
    assert {call.resource for call in node.kubelet.calls.of("PreStartContainer")} == {CORE, MEMORY}


async def seen_and_gone(node: BareNode, uid: str) -> None:
    """A kubelet that has just started knows no pod yet."""
    await node.kubelet.verdict(uid)
    await node.kubelet.wait_gone(uid)


async def test_a_pod_that_was_deleted_before_kubelet_saw_it_is_admitted_and_then_ends(node: BareNode) -> None:
    """Only a terminal phase keeps kubelet from asking (`HandlePodAdditions`); no container of it starts."""
    await node.kubelet.kill()
    uid = node.kubelet.submit(pod("a", container(cores=5, blocks=1)))
    node.kubelet.delete(uid)
    await node.kubelet.start(after=(CORE, MEMORY))
    await node.register()
    await seen_and_gone(node, uid)
    assert {call.resource for call in node.kubelet.calls.of("Allocate", uid=uid)} == {CORE, MEMORY}
    assert len(node.kubelet.calls.of("GetPreferredAllocation", uid=uid)) == 2
    assert not node.kubelet.started(uid, "main")
    assert (await node.kubelet.admit(pod("b", container(cores=5)))).admitted


async def test_a_deleted_pod_is_refused_like_any_other_if_its_plugin_is_not_back(node: BareNode) -> None:
    uid = await running_pod(node)
    node.kubelet.exit_container(uid, "main")
    await node.kubelet.kill()
    node.kubelet.delete(uid)
    await node.kubelet.start()
    assert "no healthy devices present" in (await node.kubelet.verdict(uid)).message
    await node.kubelet.wait_gone(uid)


async def test_a_running_pod_that_is_deleted_while_kubelet_is_away_is_stopped_and_not_asked_for(node: BareNode) -> None:
    uid = await running_pod(node)
    await node.kubelet.kill()
    node.kubelet.delete(uid)
    await node.kubelet.start()
    await seen_and_gone(node, uid)
    assert not node.kubelet.runs(uid, "main")
    assert len(node.kubelet.calls.of("Allocate", uid=uid)) == 2
