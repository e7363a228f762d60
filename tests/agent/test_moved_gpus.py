"""The node is not any more what kubelet wrote down: GPUs under other numbers, other GPUs, device nodes that came late.

The driver numbers GPUs in the order in which it finds them, so /dev/nvidiaN of a UUID may be another one after a boot
or a reload of the driver (dra-driver-nvidia-gpu#428, nvidia-docker#1432). Kubelet repeats an answer for the whole life
of a pod, and a runtime a CDI file.
"""

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from deviceplugin.model.units import Resource
from sandbox.claims import ClaimCallError
from sandbox.emulated_gpus import PROFILES
from sandbox.emulator_profile import write_profile
from sandbox.gpunode import GpuNode
from tests.agent.harness import (
    PATIENCE_S,
    check_consistency,
    create,
    minors,
    node_with_agent,
    owned,
    phase,
    run,
    settled,
    share,
    until_event,
)
from tests.agent.test_claims import ClaimNode, claim_node, name_of

FLAGS = {"allocation-check-period": "2s"}


def gpus(home: Path, letters: str, numbers: Sequence[int] = (0, 1)) -> Path:
    """Two GPUs: UUIDs by letters, and their numbers in /dev."""
    found = json.loads((PROFILES / "pcie-mixed.json").read_text())
    found["gpus"] = found["gpus"][:2]
    for key in ("nvlink", "processes", "topology"):
        found.pop(key, None)
    for gpu, letter, minor in zip(found["gpus"], letters, numbers, strict=True):
        gpu["uuid"], gpu["minor"] = f"GPU-{letter * 8}-1111-2222-3333-444444444444", minor
    path = home / "profile.json"
    write_profile(found, path)
    return path


async def changed(node: GpuNode, home: Path, letters: str, numbers: Sequence[int], *, boot: bool) -> None:
    """The machine boots; or the driver is loaded again under a kubelet that goes on, and all containers end."""
    await node.agent.kill()
    gpus(home, letters, numbers)
    node.gpus.state.unlink(missing_ok=True)
    if boot:
        names = [node.names.of(resource) for resource in Resource]
        booting = asyncio.create_task(node.kubelet.reboot(after=names))
        await node.start_agent(deadline_s=PATIENCE_S)
        await booting
    else:
        await node.start_agent(deadline_s=PATIENCE_S)


def uid_of(node: GpuNode, name: str) -> str:
    return str(node.server.store.get("pods", name, namespace="default")["metadata"]["uid"])


async def until_gone(node: GpuNode, name: str) -> None:
    await node.server.until(lambda: phase(node, name) == "", seconds=PATIENCE_S)


async def until_waiting(node: GpuNode, uid: str, words: str) -> None:
    await node.server.until(lambda: words in node.kubelet.waiting(uid, "c"), seconds=PATIENCE_S)


def advice(node: GpuNode) -> list[str]:
    return [each["message"] for each in node.server.store.objects("events") if each["reason"] == "GPUStartFailed"]


@pytest.mark.parametrize("boot", [True, False], ids=["boot", "reload"])
async def test_no_container_starts_on_a_gpu_that_has_the_number_of_its_own(short_tmp: Path, boot: bool) -> None:
    async with node_with_agent(short_tmp, profile=gpus(short_tmp, "ab"), flags=FLAGS) as node:
        bare, made_again = await run(node, share("bare", 60, 8), owned(share("owned", 60, 8)))
        before = {uid: minors(node, uid) for uid in (bare, made_again)}
        assert sorted(before.values()) == [[0], [1]]
        await changed(node, short_tmp, "ab", (1, 0), boot=boot)
        if not boot:
            for uid in before:
                node.kubelet.exit_container(uid, "c")
        await until_gone(node, "owned")
        await until_waiting(node, bare, "and kubelet recorded /dev/nvidia")
        assert not node.kubelet.runs(bare, "c")
        assert any("run `kubectl delete pod -n default bare`" in said for said in advice(node))
        create(node, share("again", 60, 8))
        await settled(node, "again")
        again = uid_of(node, "again")
        await node.kubelet.wait_running(again, deadline_s=PATIENCE_S)
        (entry,) = (each for each in (await node.agent.usage()).containers if each.uid == again)
        number = {"GPU-aaaa": 1, "GPU-bbbb": 0}[entry.gpus[0].uuid[:8]]
        assert minors(node, again) == [number]
        node.server.store.delete("pods", "bare", namespace="default")
        await until_gone(node, "bare")
        await check_consistency(node)


async def test_pods_of_gpus_that_were_exchanged_are_given_back(short_tmp: Path) -> None:
    """A card was exchanged, or an instance of a cloud has moved; kubelet went on, and then a program ends."""
    async with node_with_agent(short_tmp, profile=gpus(short_tmp, "ab"), flags=FLAGS) as node:
        bare, made_again = await run(node, share("bare", 30, 8), owned(share("owned", 30, 8)))
        await changed(node, short_tmp, "cd", (0, 1), boot=False)
        for uid in (bare, made_again):
            node.kubelet.exit_container(uid, "c")
        await until_gone(node, "owned")
        await until_waiting(node, bare, "delete the pod, so that it is admitted again")
        assert any("run `kubectl delete pod -n default bare`" in said for said in advice(node))
        node.server.store.delete("pods", "bare", namespace="default")
        await until_gone(node, "bare")
        create(node, share("w0", 100, 0), share("w1", 100, 0))
        for name in ("w0", "w1"):
            await settled(node, name)
            assert phase(node, name) == "Running"


async def test_no_pod_is_let_in_before_unified_memory_has_its_device_node(short_tmp: Path) -> None:
    """After a boot nobody makes it before a program of the node uses CUDA, and kubelet would repeat what lacks it."""
    async with node_with_agent(short_tmp, profile=gpus(short_tmp, "ab"), flags=FLAGS, started=False) as node:
        uvm = short_tmp / "host/dev/nvidia-uvm"
        uvm.unlink()
        await node.agent.start()
        await node.agent.wait_ready(deadline_s=PATIENCE_S)
        graph = await node.agent.graph()
        assert "/dev/nvidia-uvm is missing" in graph
        assert node.kubelet.allocatable(node.names.core) == 0
        uvm.touch()
        await node.server.until(lambda: node.kubelet.allocatable(node.names.core) == 200, seconds=PATIENCE_S)
        (uid,) = await run(node, share("first", 20, 8))
        assert "/dev/nvidia-uvm" in {each.container_path for each in node.kubelet.container_view(uid, "c").devices}


async def test_an_extra_device_that_comes_later_is_not_left_out_for_ever(short_tmp: Path) -> None:
    (config := short_tmp / "extra.json").write_text('{"default": {"devices": ["/dev/late"]}}')
    flags = {**FLAGS, "extra-config": config}
    async with node_with_agent(short_tmp, profile=gpus(short_tmp, "ab"), flags=flags) as node:
        bare, made_again = await run(node, share("bare", 20, 8), owned(share("owned", 20, 8)))
        assert any(each.get("msg") == "extra_devices_missing" for each in node.agent.entries())
        (short_tmp / "host/dev/late").touch()
        for uid in (bare, made_again):
            node.kubelet.exit_container(uid, "c")
        await until_gone(node, "owned")
        await until_waiting(node, bare, "device node /dev/late was missing on the node when it was admitted")


async def test_a_claims_gpu_keeps_its_name_and_the_cdi_file_has_its_device_node_of_now(short_tmp: Path) -> None:
    """A claim is allocated by a device's name; a container of it starts again by the CDI file alone."""
    async with claim_node(short_tmp, profile=gpus(short_tmp, "ab")) as found:
        uid = found.allocate("one", "gpu-0")
        name = name_of(await found.prepare("one", uid))
        await found.node.agent.kill()
        gpus(short_tmp, "ab", (1, 0))
        found.node.gpus.state.unlink(missing_ok=True)
        await found.start()
        await found.node.server.until(lambda: "/dev/nvidia1" in device_nodes(found, name), seconds=PATIENCE_S)
        assert name_of(await found.prepare("one", uid)) == name
        assert device_nodes(found, name) == {"/dev/nvidia1", "/dev/nvidiactl", "/dev/nvidia-uvm"}
        wanted = {("gpu-0", "GPU-aaaa", 1), ("gpu-1", "GPU-bbbb", 0)}
        await found.node.server.until(lambda: offered_devices(found) == wanted, seconds=PATIENCE_S)
        two = name_of(await found.prepare("two", found.allocate("two", "gpu-1", cores=100, memory="20Gi")))
        assert device_nodes(found, two) == {"/dev/nvidia0", "/dev/nvidiactl", "/dev/nvidia-uvm"}


async def test_a_claim_of_a_gpu_that_was_exchanged_starts_nothing_and_is_given_back(short_tmp: Path) -> None:
    async with claim_node(short_tmp, profile=gpus(short_tmp, "ab")) as found:
        uid = found.allocate("one", "gpu-0")
        await found.prepare("one", uid)
        await found.node.agent.kill()
        gpus(short_tmp, "cd")
        found.node.gpus.state.unlink(missing_ok=True)
        await found.start()
        await found.node.server.until(lambda: not found.cdi(), seconds=PATIENCE_S)  # the runtime finds no such device
        with pytest.raises(ClaimCallError) as failed:
            await found.prepare("one", uid)
        why = "claim research/one, request gpu: this node has no device gpu-0 in pool node-1; delete its pods"
        assert str(failed.value) == f"NodePrepareResources failed for ResourceClaim one: {why}"
        (told,) = await until_event(found.node, "GPUStartFailed")
        assert "run `kubectl delete pod -n research pod-one` and create the pod again" in told["message"]


def offered_devices(found: ClaimNode) -> set[tuple[str, str, int]]:
    offered = [each["attributes"] | {"name": each["name"]} for each in found.slices()[0]["spec"]["devices"]]
    return {(each["name"], each["uuid"]["string"][:8], each["minor"]["int"]) for each in offered}


def device_nodes(found: ClaimNode, name: str) -> set[str]:
    spec = json.loads((found.node.home / "cdi" / f"vcuda-{name.partition('=')[2]}.json").read_text())
    return {each["path"] for each in spec["devices"][0]["containerEdits"]["deviceNodes"]}
