"""Container starts: PreStartContainer, what the container sees, restarts, ends."""

import asyncio
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from deviceplugin.wire import deviceplugin_pb2 as pb
from sandbox.apiserver import container, pod
from sandbox.barenode import CORE, FAST, MEMORY, BareNode, bare_node, fast
from sandbox.kubelet.waiting import Clock
from sandbox.kubelet.worker import IDLE_S

pytestmark = pytest.mark.thorough


def starts(node: BareNode, uid: str, name: str) -> list[str]:
    """Resources of the PreStartContainer calls for one container, in order."""
    return [call.resource for call in node.kubelet.calls.of("PreStartContainer", uid=uid) if call.container == name]


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What kubelet's parts wait for, in seconds of its clock; a worker with nothing to do waits for an hour."""
    asked: list[float] = []
    sleep = Clock.sleep

    async def record(clock: Clock, seconds: float) -> None:
        if seconds < IDLE_S:
            asked.append(seconds)
        await sleep(clock, seconds)

    monkeypatch.setattr(Clock, "sleep", record)
    return asked


async def test_every_start_and_restart_calls_prestart_for_each_resource_with_its_devices(node: BareNode) -> None:
    verdict = await node.kubelet.admit(pod("a", container(cores=3, blocks=2)))
    await node.kubelet.wait_running(verdict.uid)
    node.kubelet.exit_container(verdict.uid, "main")
    await node.kubelet.wait_running(verdict.uid, starts=2)
    assert sorted(starts(node, verdict.uid, "main")) == [CORE, CORE, MEMORY, MEMORY]
    held = node.kubelet.devices_of(verdict.uid, "main")
    for call in node.kubelet.calls.of("PreStartContainer", uid=verdict.uid):
        assert set(call.request.devices_ids) == held[call.resource]
    assert len(node.kubelet.calls.of("Allocate", uid=verdict.uid)) == 2, "the answers are replayed"


async def test_a_prestart_error_holds_the_container_and_is_tried_again(node: BareNode) -> None:
    node.core.fail["PreStartContainer"] = "waiting for the truth"
    verdict = await node.kubelet.admit(pod("a", container(cores=3)))
    why = await node.kubelet.wait_waiting(verdict.uid, "main")
    assert why == (
        "CreateContainerConfigError: device plugin PreStartContainer rpc failed with err: "
        "rpc error: code = FailedPrecondition desc = waiting for the truth"
    )
    with pytest.raises(LookupError, match="has not been started: CreateContainerConfigError"):
        node.kubelet.container_view(verdict.uid, "main")
    node.core.fail.clear()
    await node.kubelet.wait_running(verdict.uid)


async def test_a_pod_is_pending_until_every_container_has_started_once(node: BareNode) -> None:
    """kubelet's `getPhase`: a container that waits and never ran makes the pod Pending; one that ran does not."""
    node.memory.fail["PreStartContainer"] = "not yet"
    verdict = await node.kubelet.admit(pod("a", container("one", cores=1), container("two", blocks=1)))
    await node.kubelet.wait_waiting(verdict.uid, "two")
    await node.kubelet.changes.until(
        lambda: "containerStatuses" in node.kubelet.pod_list()[0]["status"], what="a status", deadline_s=60
    )
    assert node.kubelet.runs(verdict.uid, "one")
    assert node.kubelet.pod_list()[0]["status"]["phase"] == "Pending"
    node.memory.fail.clear()
    await node.kubelet.wait_phase(verdict.uid, "Running")
    node.memory.fail["PreStartContainer"] = "not again"
    node.kubelet.exit_container(verdict.uid, "two")
    await node.kubelet.wait_waiting(verdict.uid, "two")
    assert node.kubelet.pod_list()[0]["status"]["phase"] == "Running"


async def test_the_container_sees_the_merged_answers_and_its_own_environment_wins(short_tmp: Path) -> None:
    grant = short_tmp / "grant"
    grant.mkdir()
    (grant / "vcuda.config").write_bytes(b"limits")
    null = pb.DeviceSpec(container_path="/dev/nvidia0", host_path="/dev/null", permissions="rw")
    async with bare_node(fast(short_tmp)) as node:
        node.core.answer = lambda _: pb.ContainerAllocateResponse(
            envs={"BOTH": "core", "LD_LIBRARY_PATH": "/plugin"},
            mounts=[pb.Mount(container_path="/etc/vcuda", host_path=str(grant), read_only=True)],
            devices=[null],
            annotations={"key": "value"},
            cdi_devices=[pb.CDIDevice(name="vendor/class=a")],
        )
        node.memory.answer = lambda _: pb.ContainerAllocateResponse(envs={"BOTH": "memory"}, devices=[null])
        both = set()
        for number in range(12):
            spec = pod(f"p{number}", container(cores=1, blocks=1, env={"LD_LIBRARY_PATH": "/own"}))
            verdict = await node.kubelet.admit(spec)
            await node.kubelet.wait_running(verdict.uid)
            view = node.kubelet.container_view(verdict.uid, "main")
            both.add(view.env["BOTH"])
            assert view.env["LD_LIBRARY_PATH"] == "/own"
            assert view.files == {"/etc/vcuda/vcuda.config": b"limits"}
            assert view.host_path("/etc/vcuda/vcuda.config") == grant / "vcuda.config"
            assert [device.container_path for device in view.devices] == ["/dev/nvidia0"]
            assert (view.cdi, view.annotations) == (("vendor/class=a",), {"key": "value"})
    assert both == {"core", "memory"}, "which answer wins is random"


async def test_a_missing_mount_source_is_made_as_an_empty_directory(short_tmp: Path) -> None:
    """containerd 2.2.9, internal/cri/opts/spec_linux_opts.go: `Create the host path if it doesn't exist.`"""
    missing = short_tmp / "missing/file.txt"
    async with bare_node(fast(short_tmp)) as node:
        mount = pb.Mount(container_path="/x", host_path=str(missing), read_only=True)
        node.core.answer = lambda _: pb.ContainerAllocateResponse(mounts=[mount])
        verdict = await node.kubelet.admit(pod("a", container(cores=1)))
        await node.kubelet.wait_running(verdict.uid)
        assert missing.is_dir()
        assert node.kubelet.container_view(verdict.uid, "main").host_path("/x") == missing


@pytest.mark.parametrize("kind", ["link", "device", "file above"])
async def test_what_the_runtime_cannot_make_fails_the_container(short_tmp: Path, kind: str) -> None:
    """A link that leads nowhere is in the way of a directory; nobody makes a device."""
    path = short_tmp / "x"
    if kind == "link":
        path.symlink_to(short_tmp / "nowhere")
    if kind == "file above":
        path.write_text("")
        path = path / "below"
    answer = pb.ContainerAllocateResponse(mounts=[pb.Mount(container_path="/x", host_path=str(path))])
    if kind == "device":
        answer = pb.ContainerAllocateResponse(devices=[pb.DeviceSpec(container_path="/dev/x", host_path=str(path))])
    async with bare_node(fast(short_tmp)) as node:
        node.core.answer = lambda _: answer
        verdict = await node.kubelet.admit(pod("a", container(cores=1)))
        why = await node.kubelet.wait_waiting(verdict.uid, "main")
    assert why.startswith("CreateContainerError: failed to generate container spec: ")


async def test_a_container_that_never_ran_is_tried_every_10_to_15_seconds(short_tmp: Path, waits: list[float]) -> None:
    """`completeWork`, pkg/kubelet/pod_workers.go: the wait is the same after each failure."""
    async with bare_node(fast(short_tmp)) as node:
        node.core.fail["PreStartContainer"] = "never"
        uid = node.kubelet.submit(pod("a", container(cores=1)))
        await node.kubelet.changes.until(
            lambda: len(node.kubelet.calls.of("PreStartContainer", uid=uid)) >= 6, what="six tries", deadline_s=60
        )
        calls = node.kubelet.calls.of("PreStartContainer", uid=uid)
    gaps = [(after.started - before.ended) * FAST for before, after in pairwise(calls)]
    assert min(gaps) >= 10
    assert max(waits) <= 15


async def test_a_container_that_ends_again_and_again_waits_longer_each_time(
    short_tmp: Path, waits: list[float]
) -> None:
    """`doBackOff`, pkg/kubelet/kuberuntime: at once, then 10, 20, 40 s after its end, up to half longer."""
    took = []
    async with bare_node(fast(short_tmp)) as node:
        verdict = await node.kubelet.admit(pod("a", container(cores=1)))
        for number in range(1, 5):
            await node.kubelet.wait_running(verdict.uid, starts=number)
            ended = node.kubelet.clock.now()
            node.kubelet.exit_container(verdict.uid, "main")
            if number > 1:
                assert "CrashLoopBackOff" in await node.kubelet.wait_waiting(verdict.uid, "main")
            await node.kubelet.wait_running(verdict.uid, starts=number + 1)
            took.append(node.kubelet.clock.now() - ended)
    assert [each >= least for each, least in zip(took, (0, 10, 20, 40), strict=True)] == [True] * 4
    assert max(waits) <= 60


async def test_no_container_is_started_again_while_a_plugin_does_not_answer_allocate(node: BareNode) -> None:
    """The sync loop stands, and it alone tells the workers; what has been admitted starts all the same."""
    verdict = await node.kubelet.admit(pod("a", container(cores=1)))
    await node.kubelet.wait_running(verdict.uid)
    node.core.gates["Allocate"] = asyncio.Event()
    waiting = node.kubelet.submit(pod("b", container(cores=1)))
    await node.kubelet.changes.until(
        lambda: any(known["metadata"]["uid"] == waiting for known in node.kubelet.pod_list()),
        what="the second pod is being admitted",
        deadline_s=60,
    )
    node.kubelet.exit_container(verdict.uid, "main")
    await node.kubelet.clock.sleep(20)
    assert not node.kubelet.runs(verdict.uid, "main")
    node.core.gates["Allocate"].set()
    await node.kubelet.wait_running(verdict.uid, starts=2)
    await node.kubelet.wait_running(waiting)


async def test_init_containers_run_to_their_end_before_the_app_starts(node: BareNode) -> None:
    node.memory.fail["PreStartContainer"] = "not yet"
    init = (container("init", cores=2), container("side", blocks=1, sidecar=True))
    verdict = await node.kubelet.admit(pod("a", container("app", cores=1), init=init))
    await node.kubelet.wait_waiting(verdict.uid, "side")
    assert starts(node, verdict.uid, "init") == [CORE]
    assert not starts(node, verdict.uid, "app")
    node.memory.fail.clear()
    await node.kubelet.wait_running(verdict.uid)
    assert [node.kubelet.runs(verdict.uid, name) for name in ("init", "side", "app")] == [False, True, True]
    await node.kubelet.wait_phase(verdict.uid, "Running")
    status = node.kubelet.pod_list()[0]["status"]
    assert status["initContainerStatuses"][0]["state"]["terminated"]["exitCode"] == 0
    assert status["containerStatuses"][0]["allocatedResourcesStatus"][0]["name"] == CORE


async def test_an_unhealthy_device_shows_in_the_pods_status_but_a_lost_plugin_does_not(short_tmp: Path) -> None:
    async with bare_node(fast(short_tmp), cores=3) as node:
        verdict = await node.kubelet.admit(pod("a", container(cores=3)))
        await node.kubelet.wait_running(verdict.uid)

        def shown() -> dict[str, str]:
            status = node.kubelet.pod_list()[0]["status"].get("containerStatuses", [{}])[0]
            listed = status.get("allocatedResourcesStatus", [{"resources": []}])[0]["resources"]
            return {item["resourceID"]: item["health"] for item in listed}

        await node.core.change(broken=frozenset({"c001"}))
        expected = {"c000": "Healthy", "c001": "Unhealthy", "c002": "Healthy"}
        await node.kubelet.changes.until(lambda: shown() == expected, what="the status shows it", deadline_s=60)
        await node.core.stop()
        await node.kubelet.wait_allocatable(CORE, 0)
        assert shown() == expected
        assert node.kubelet.runs(verdict.uid, "main")


async def test_a_restart_is_blocked_while_the_plugin_is_away(node: BareNode) -> None:
    verdict = await node.kubelet.admit(pod("a", container(cores=3)))
    await node.kubelet.wait_running(verdict.uid)
    await node.core.stop()
    await node.kubelet.wait_allocatable(CORE, 0)
    node.kubelet.exit_container(verdict.uid, "main")
    why = await node.kubelet.wait_waiting(verdict.uid, "main")
    assert "endpoint tencent.com/vcuda-core has been stopped" in why
    await node.core.serve()
    await node.core.register(node.kubelet.options.kubelet_socket)
    await node.kubelet.wait_running(verdict.uid, starts=2)


async def test_a_pod_admitted_before_the_plugin_came_gets_devices_late_or_never(node: BareNode) -> None:
    for pre_start, expected in ((True, "no devices found allocated in local cache"), (False, "")):
        await node.core.stop()
        await node.kubelet.restart(forget_checkpoint=True)
        verdict = await node.kubelet.admit(pod(f"p{pre_start}", container(cores=3)))
        await node.kubelet.wait_running(verdict.uid)
        assert "VCUDA_CORE" not in node.kubelet.container_view(verdict.uid, "main").env
        node.core.pre_start = pre_start
        await node.register()
        node.kubelet.exit_container(verdict.uid, "main")
        if expected:
            assert expected in await node.kubelet.wait_waiting(verdict.uid, "main")
            continue
        await node.kubelet.wait_running(verdict.uid, starts=2)
        assert "VCUDA_CORE" in node.kubelet.container_view(verdict.uid, "main").env


@pytest.mark.parametrize(("policy", "code", "phase"), [("Never", 0, "Succeeded"), ("Never", 3, "Failed")])
async def test_a_pod_ends_when_its_containers_end_for_good(node: BareNode, policy: str, code: int, phase: str) -> None:
    spec = pod("a", container(cores=150))
    spec["spec"]["restartPolicy"] = policy
    verdict = await node.kubelet.admit(spec)
    await node.kubelet.wait_running(verdict.uid)
    node.kubelet.exit_container(verdict.uid, "main", code=code)
    await node.kubelet.wait_phase(verdict.uid, phase)
    assert (await node.kubelet.admit(pod("b", container(cores=150)))).admitted


async def test_a_real_process_runs_with_the_containers_environment(short_tmp: Path) -> None:
    async with bare_node(replace(fast(short_tmp), run_commands=True)) as node:
        item = container(cores=2)
        item["command"] = [sys.executable, "-c", "import os; print(os.environ['VCUDA_CORE'])"]
        spec = pod("a", item)
        spec["spec"]["restartPolicy"] = "Never"
        verdict = await node.kubelet.admit(spec)
        await node.kubelet.wait_phase(verdict.uid, "Succeeded")
        said = node.kubelet.output(verdict.uid, "main").strip()
        assert set(said.split(",")) == node.kubelet.devices_of(verdict.uid, "main")[CORE]


async def test_pods_start_at_the_same_time_as_others_are_admitted(short_tmp: Path) -> None:
    async with bare_node(replace(fast(short_tmp), prestart_timeout_s=0.3)) as node:
        verdict = await node.kubelet.admit(pod("a", container(cores=1)))
        await node.kubelet.wait_running(verdict.uid)
        node.core.fail["PreStartContainer"] = "held"
        uids = [node.kubelet.submit(pod(f"p{number}", container(cores=1))) for number in range(3)]
        for uid in uids:
            await node.kubelet.wait_waiting(uid, "main")
        node.core.fail.clear()
        for uid in uids:
            await node.kubelet.wait_running(uid)


async def test_a_removed_pod_is_gone_and_an_unstarted_one_is_never_started(short_tmp: Path) -> None:
    async with bare_node(replace(fast(short_tmp), image_pull_s=1000.0)) as node:
        verdict = await node.kubelet.admit(pod("a", container(cores=1)))
        await node.kubelet.remove(verdict.uid)
        assert not node.kubelet.pod_list()
        assert not node.kubelet.calls.of("PreStartContainer")
