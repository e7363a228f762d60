"""Admission asks the plugin in kubelet's order, one pod at a time, and refuses in kubelet's words."""

import asyncio
import itertools
import json
from dataclasses import replace
from pathlib import Path

import grpc
import pytest

from deviceplugin.wire import deviceplugin_pb2 as pb
from deviceplugin.wire import podresources_pb2, podresources_pb2_grpc
from sandbox.apiserver import container, pod
from sandbox.barenode import CORE, MEMORY, BareNode, bare_node, fast
from sandbox.kubelet import KubeletOptions

pytestmark = pytest.mark.thorough


async def listed(options: KubeletOptions) -> dict[str, dict[str, int]]:
    """What PodResources shows: device counts by pod and container."""
    async with grpc.aio.insecure_channel(f"unix:{options.podresources_socket}") as channel:
        stub = podresources_pb2_grpc.PodResourcesListerStub(channel)
        answer = await stub.List(podresources_pb2.ListPodResourcesRequest(), timeout=5)
    return {item.name: {one.name: len(one.devices) for one in item.containers} for item in answer.pod_resources}


def order(node: BareNode, uid: str) -> list[tuple[str, str]]:
    """Allocate calls for a pod as (container, resource)."""
    return [(call.container, call.resource) for call in node.kubelet.calls.of("Allocate", uid=uid)]


async def test_each_container_asks_for_both_resources_in_either_order(short_tmp: Path) -> None:
    async with bare_node(fast(short_tmp)) as node:
        firsts = set()
        for number in range(12):
            name = f"p{number}"
            verdict = await node.kubelet.admit(pod(name, container("a", cores=1, blocks=1), container("b", cores=1)))
            calls = order(node, verdict.uid)
            assert [call[0] for call in calls] == ["a", "a", "b"]
            assert {call[1] for call in calls[:2]} == {CORE, MEMORY}
            firsts.add(calls[0][1])
    assert firsts == {CORE, MEMORY}


async def test_pods_of_a_burst_are_admitted_strictly_one_after_the_other(node: BareNode) -> None:
    uids = [node.kubelet.submit(pod(f"p{number}", container(cores=2, blocks=1))) for number in range(20)]
    for uid in uids:
        assert (await node.kubelet.verdict(uid)).admitted
    calls = node.kubelet.calls.of("Allocate")
    assert [call.uid for call in calls[::2]] == uids
    assert all(first.ended <= second.started for first, second in itertools.pairwise(calls))
    taken = [device for call in calls for device in call.request.container_requests[0].devices_ids]
    assert len(taken) == len(set(taken)) == 60


async def test_a_pod_is_visible_without_devices_while_its_first_allocate_is_open(node: BareNode) -> None:
    gate = asyncio.Event()
    node.core.gates["Allocate"] = gate
    uid = node.kubelet.submit(pod("a", container("g", cores=5), container("h", cores=5)))
    behind = node.kubelet.submit(pod("b", container("g", cores=5)))
    await node.kubelet.changes.until(
        lambda: any(item["metadata"]["uid"] == uid for item in node.kubelet.pod_list()),
        what="the pod is visible",
        deadline_s=60,
    )
    assert await listed(node.kubelet.options) == {"a": {"g": 0, "h": 0}}
    assert len(node.kubelet.pod_list()) == 1, "the next pod is added only after this one is decided"
    gate.set()
    assert (await node.kubelet.verdict(behind)).admitted
    assert await listed(node.kubelet.options) == {"a": {"g": 5, "h": 5}, "b": {"g": 5}}


async def test_an_app_container_reuses_its_init_containers_devices_without_being_asked(node: BareNode) -> None:
    spec = pod("a", container("app", cores=4), init=(container("init", cores=6),))
    verdict = await node.kubelet.admit(spec)
    init, app = (node.kubelet.devices_of(verdict.uid, name)[CORE] for name in ("init", "app"))
    assert app < init
    assert len(app) == 4
    assert [call.container for call in node.kubelet.calls.of("GetPreferredAllocation")] == ["init"]
    assert order(node, verdict.uid) == [("init", CORE), ("app", CORE)]


async def test_needing_more_than_init_had_asks_with_must_include(node: BareNode) -> None:
    verdict = await node.kubelet.admit(pod("a", container("app", cores=9), init=(container("init", cores=3),)))
    init = node.kubelet.devices_of(verdict.uid, "init")[CORE]
    asked = node.kubelet.calls.of("GetPreferredAllocation")[-1].request.container_requests[0]
    assert set(asked.must_include_deviceIDs) == init
    assert asked.allocation_size == 9
    assert init < set(asked.available_deviceIDs)
    assert init < node.kubelet.devices_of(verdict.uid, "app")[CORE]


async def test_a_sidecar_keeps_its_devices(node: BareNode) -> None:
    init = (container("init", cores=6), container("side", cores=2, sidecar=True))
    verdict = await node.kubelet.admit(pod("a", container("app", cores=4), init=init))
    held = {name: node.kubelet.devices_of(verdict.uid, name)[CORE] for name in ("init", "side", "app")}
    assert held["side"] < held["init"]
    assert held["app"] == held["init"] - held["side"]


async def test_a_short_preferred_answer_is_filled_up(node: BareNode) -> None:
    node.core.prefer = lambda asked: ["c007", "never-issued"]
    verdict = await node.kubelet.admit(pod("a", container(cores=3)))
    devices = node.kubelet.devices_of(verdict.uid, "main")[CORE]
    assert "c007" in devices
    assert len(devices) == 3
    assert devices <= set(node.core.devices)


async def test_devices_of_one_numa_node_are_taken_when_aligned(short_tmp: Path) -> None:
    async with bare_node(replace(fast(short_tmp), numa_alignment=True), cores=20) as node:
        await node.core.change(devices={f"c{number:03}": number % 2 for number in range(24)})
        await node.kubelet.wait_allocatable(CORE, 24)
        verdict = await node.kubelet.admit(pod("a", container(cores=8)))
        parities = {int(device[1:]) % 2 for device in node.kubelet.devices_of(verdict.uid, "main")[CORE]}
        assert len(parities) == 1
        asked = node.kubelet.calls.of("GetPreferredAllocation", uid=verdict.uid)[-1].request.container_requests[0]
        assert {int(device[1:]) % 2 for device in asked.available_deviceIDs} == parities


def checkpoint_after(node: BareNode) -> str:
    """The checkpoint's text; it is written at each message of ListAndWatch."""
    return node.kubelet.checkpoint_path.read_text()


async def test_too_many_devices_are_refused_without_a_call(short_tmp: Path) -> None:
    async with bare_node(fast(short_tmp), blocks=4) as node:
        verdict = await node.kubelet.admit(pod("a", container(blocks=5)))
        assert (verdict.admitted, verdict.reason) == (False, "UnexpectedAdmissionError")
        assert verdict.message == (
            "Allocate failed due to requested number of devices unavailable for tencent.com/vcuda-memory. "
            "Requested: 5, Available: 4, which is unexpected"
        )
        assert not node.kubelet.calls.of("Allocate")


async def test_an_allocate_error_fails_the_pod_with_the_plugins_sentence(node: BareNode) -> None:
    node.core.fail["Allocate"] = "no GPU has 30 free cores"
    verdict = await node.kubelet.admit(pod("a", container(cores=30)))
    text = "rpc error: code = FailedPrecondition desc = no GPU has 30 free cores"
    assert verdict.message == f"Allocate failed due to {text}, which is unexpected"
    await node.kubelet.wait_phase(verdict.uid, "Failed")
    status = node.kubelet.pod_list()[0]["status"]
    assert status["message"] == f"Pod was rejected: {verdict.message}"
    node.core.fail.clear()
    assert (await node.kubelet.admit(pod("b", container(cores=200)))).admitted, "its reservation is forgotten"


async def test_a_plugin_that_dies_in_allocate_fails_that_pod_and_kubelet_goes_on(node: BareNode) -> None:
    node.core.gates["Allocate"] = asyncio.Event()
    uids = [node.kubelet.submit(pod(f"p{number}", container(cores=3))) for number in range(3)]
    await node.kubelet.changes.until(
        lambda: bool(node.kubelet.calls.open("Allocate")), what="Allocate is open", deadline_s=60
    )
    await node.core.stop()
    first, *others = [await node.kubelet.verdict(uid) for uid in uids]
    assert first.message.startswith("Allocate failed due to rpc error: code = ")
    assert not any(verdict.admitted for verdict in others)
    await node.kubelet.wait_allocatable(CORE, 0)
    last = await node.kubelet.admit(pod("last", container(cores=3)))
    assert "no healthy devices present" in last.message


async def test_a_preferred_error_and_an_empty_answer_fail_the_pod(node: BareNode) -> None:
    node.core.fail["GetPreferredAllocation"] = "broken"
    verdict = await node.kubelet.admit(pod("a", container(cores=3)))
    assert "GetPreferredAllocation rpc failed with err: rpc error" in verdict.message


async def test_the_node_fit_check_comes_after_allocate_and_its_devices_are_freed_lazily(node: BareNode) -> None:
    heavy = container(cores=150, blocks=2)
    heavy["resources"]["limits"]["cpu"] = "500"
    verdict = await node.kubelet.admit(pod("a", heavy))
    assert (verdict.admitted, verdict.reason) == (False, "OutOfcpu")
    assert len(order(node, verdict.uid)) == 2
    assert verdict.uid in checkpoint_after(node)
    assert (await node.kubelet.admit(pod("b", container(cores=150)))).admitted
    assert verdict.uid not in checkpoint_after(node)


async def test_a_forbidden_sysctl_is_refused_before_the_plugin_hears_of_the_pod(node: BareNode) -> None:
    spec = pod("a", container(cores=1))
    spec["spec"]["securityContext"] = {"sysctls": [{"name": "kernel.msgmax", "value": "1"}]}
    verdict = await node.kubelet.admit(spec)
    assert verdict.reason == "SysctlForbidden"
    assert not node.kubelet.calls.of("Allocate")
    spec = pod("b", container(cores=1))
    spec["spec"]["securityContext"] = {"sysctls": [{"name": "net.ipv4.ip_unprivileged_port_start", "value": "0"}]}
    assert (await node.kubelet.admit(spec)).admitted


async def test_the_checkpoint_is_written_once_per_container_in_kubelets_form(node: BareNode) -> None:
    seen: list[str] = []

    def answer(ids: list[str]) -> pb.ContainerAllocateResponse:
        seen.append(checkpoint_after(node))
        return pb.ContainerAllocateResponse(envs={"N": str(len(ids))})

    node.core.answer = node.memory.answer = answer
    verdict = await node.kubelet.admit(pod("a", container(cores=2, blocks=1)))
    assert all(verdict.uid not in text for text in seen), "between the two calls nothing is written"
    document = json.loads(checkpoint_after(node))
    entries = {entry["ResourceName"]: entry for entry in document["Data"]["PodDeviceEntries"]}
    assert set(entries) == {CORE, MEMORY}
    assert entries[CORE]["DeviceIDs"].keys() == {"-1"}
    assert len(entries[CORE]["DeviceIDs"]["-1"]) == 2
    assert document["Data"]["RegisteredDevices"].keys() == {CORE, MEMORY}
    assert node.kubelet.checkpoint_path.stat().st_mode & 0o777 == 0o600


async def test_an_ended_pods_devices_are_freed_at_the_next_admission(node: BareNode) -> None:
    first = await node.kubelet.admit(pod("a", container(cores=150)))
    await node.kubelet.remove(first.uid)
    assert first.uid in checkpoint_after(node)
    second = await node.kubelet.admit(pod("b", container(cores=150)))
    assert second.admitted
    assert first.uid not in checkpoint_after(node)


async def test_a_terminating_pod_holds_its_devices(short_tmp: Path) -> None:
    async with bare_node(replace(fast(short_tmp), termination_s=1000.0)) as node:
        first = await node.kubelet.admit(pod("a", container(cores=150)))
        node.kubelet.delete(first.uid)
        second = await node.kubelet.admit(pod("b", container(cores=150)))
        assert "Available: 50" in second.message
