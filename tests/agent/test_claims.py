"""The agent with --dra: shares by ResourceClaim, in the same books, with the same files, through every end of it.

Kubelet's side of claims is played over the agent's real sockets; the test says when kubelet writes its record.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from deviceplugin.container.limits_file import GrantLimits
from deviceplugin.model.claims import ClaimRef, ClaimUid
from deviceplugin.wire import dra_pb2 as pb
from sandbox.agent import AgentFailureError, AgentProcess, free_port
from sandbox.claims import DRIVER, ClaimCallError, ClaimKubelet, allocated_claim, pod_using, recorded_device
from sandbox.gpunode import GpuNode
from sandbox.limits_file import decode
from sandbox.runtime import StandInRuntime
from sandbox.station import Json
from tests.agent.harness import NODE, PATIENCE_S, events, node_with_agent, run, share, until_event, until_said
from tests.waiting import until

NAMESPACE = "research"
_SOME_ROUNDS_S = 2.0  # the period is 0.3 s


@dataclass
class ClaimNode:
    """The node, and what kubelet does with claims."""

    node: GpuNode

    @property
    def kubelet(self) -> ClaimKubelet:
        return ClaimKubelet(self.node.kubelet)

    async def start(self) -> None:
        before = self.connected()
        await self.node.agent.start()

        async def taken() -> bool:
            return bool(self.connected() - before)

        await self.node.agent.until(taken, what="kubelet has taken the driver", deadline_s=PATIENCE_S)
        await self.node.agent.wait_ready(deadline_s=PATIENCE_S)

    def connected(self) -> frozenset[str]:
        return self.node.kubelet.drivers.connected(DRIVER)

    def allocate(self, name: str, device: str = "gpu-0", cores: int = 20, memory: str = "2Gi", pods: int = 1) -> str:
        """As kube-scheduler does; answers the UID. With pods `pod-<name>`, whose container `main` uses the claim."""
        users = {each: self._user(each, name) for each in (f"pod-{name}{at or ''}" for at in range(pods))}
        claim = allocated_claim(name, users, pool=NODE, device=device, cores=cores, memory=memory)
        made = self.node.server.store.create("resourceclaims", claim, namespace=NAMESPACE)
        return str(made["metadata"]["uid"])

    def _user(self, pod: str, claim: str) -> str:
        made = self.node.server.store.create("pods", pod_using(claim, pod, node=NODE), namespace=NAMESPACE)
        return str(made["metadata"]["uid"])

    async def prepare(self, name: str, uid: str) -> pb.NodePrepareResourceResponse:
        """Kubelet writes its record before and after."""
        self.record({name: uid})
        return (await self.kubelet.connection.prepare(_ref(name, uid)))[uid]

    async def unprepare(self, name: str, uid: str) -> None:
        await self.kubelet.connection.unprepare(_ref(name, uid))

    def record(self, claims: Mapping[str, str], answers: Mapping[str, str] = {}) -> None:
        """These claims and no others. `answers`: CDI names by claim."""
        devices = {
            claims[name]: recorded_device(NODE, "gpu-0", cdi, share_id=self.share_id(name))
            for name, cdi in answers.items()
        }
        self.kubelet.record((_ref(name, uid) for name, uid in claims.items()), devices)

    def share_id(self, name: str) -> str:
        claim = self.node.server.store.get("resourceclaims", name, namespace=NAMESPACE)
        return str(claim["status"]["allocation"]["devices"]["results"][0]["shareID"])

    def slices(self) -> list[Json]:
        return self.node.server.store.objects("resourceslices")

    def grants(self) -> set[str]:
        return {path.name for path in self.node.grants.glob("g-*")}

    def cdi(self) -> set[str]:
        return {path.stem.removeprefix("vcuda-") for path in (self.node.home / "cdi").glob("*.json")}

    def limits(self, cdi: str) -> GrantLimits:
        return decode((self.node.grants / cdi.partition("=")[2] / "limits").read_bytes())


@asynccontextmanager
async def claim_node(home: Path, gpus: str = "", **given: Path) -> AsyncIterator[ClaimNode]:
    flags = {"dra": "true", "dra-gpus": gpus, "cdi-dir": home / "cdi", "allocation-check-period": "300ms"}
    async with node_with_agent(home, flags=flags, started=False, **given) as node, StandInRuntime(home / "cri.sock"):
        if NODE not in (each["metadata"]["name"] for each in node.server.store.objects("nodes")):
            node.server.store.create("nodes", {"metadata": {"name": NODE}})
        made = ClaimNode(node)
        await made.start()
        yield made


def _ref(name: str, uid: str) -> ClaimRef:
    return ClaimRef(ClaimUid(uid), NAMESPACE, name)


def name_of(answer: pb.NodePrepareResourceResponse) -> str:
    (device,) = answer.devices
    (name,) = device.cdi_device_ids
    return str(name)


@pytest.fixture
async def found(short_tmp: Path) -> AsyncIterator[ClaimNode]:
    async with claim_node(short_tmp) as found:
        yield found


async def test_gpus_are_offered_and_a_share_has_its_limits_and_its_cdi_file_before_the_answer(found: ClaimNode) -> None:
    """Views count it like a pod, and the slice says that its GPU is used."""
    assert (await found.node.agent.must_get("/healthz")).text == "ok\n", "its sockets answer"
    assert not found.node.agent.entries("plugin_refused"), "kubelet has taken it by itself"
    (plugin,) = found.node.kubelet.drivers.of(DRIVER)
    await found.node.kubelet.changes.until(
        lambda: set(plugin.health) == {f"gpu-{minor}" for minor in range(8)}, what="health is told", deadline_s=60
    )
    await found.node.server.until(lambda: len(found.slices()) == 1)
    (offered,) = found.slices()
    assert [each["name"] for each in offered["spec"]["devices"]] == [f"gpu-{minor}" for minor in range(8)]
    assert found.node.kubelet.capacity("tencent.com/vcuda-core") == 0, "one way to ask on one node"

    name = name_of(await found.prepare("one", found.allocate("one", "gpu-3", 30, "5Gi")))
    (device,) = found.limits(name).devices
    assert (device.cores, device.memory_bytes) == (30, 5 << 30)
    spec = json.loads((found.node.home / "cdi" / f"vcuda-{name.partition('=')[2]}.json").read_text())
    edits = spec["devices"][0]["containerEdits"]
    assert {each["path"] for each in edits["deviceNodes"]} == {"/dev/nvidia3", "/dev/nvidiactl", "/dev/nvidia-uvm"}
    mounts = {each["containerPath"]: Path(each["hostPath"]) for each in edits["mounts"]}
    assert "/etc/vcuda" in mounts
    assert all(path.exists() for path in mounts.values()), "the runtime refuses a mount without a source"
    assert any(each.startswith("LD_LIBRARY_PATH=/usr/local/nvidia/lib64") for each in edits["env"])

    usage = await found.node.agent.usage()
    (container,) = usage.containers
    assert (container.namespace, container.pod, container.container) == (NAMESPACE, "pod-one", "main")
    assert [each.cores_allocated for each in usage.gpus] == [30 if minor == 3 else 0 for minor in range(8)]

    def used() -> list[bool]:
        return [each["attributes"]["inUse"]["bool"] for each in found.slices()[0]["spec"]["devices"]]

    await found.node.server.until(lambda: used() == [minor == 3 for minor in range(8)])


async def test_a_library_path_that_no_image_needs_is_refused_and_no_cdi_file_is_written(found: ClaimNode) -> None:
    """Security A-12."""
    user = pod_using("long", "pod-long", node=NODE)
    user["spec"]["containers"][0]["env"] = [{"name": "LD_LIBRARY_PATH", "value": "y" * (1 << 20)}]
    made = found.node.server.store.create("pods", user, namespace=NAMESPACE)
    claim = allocated_claim("long", {"pod-long": made["metadata"]["uid"]}, pool=NODE, device="gpu-0")
    uid = str(found.node.server.store.create("resourceclaims", claim, namespace=NAMESPACE)["metadata"]["uid"])
    with pytest.raises(ClaimCallError, match="container main: its LD_LIBRARY_PATH has more than 4,096 bytes"):
        await found.prepare("long", uid)
    assert not found.cdi()
    await found.unprepare("long", uid)
    assert not found.grants()


async def test_each_pod_of_a_claim_has_an_event_and_the_metrics_count_it(found: ClaimNode) -> None:
    """Views show a claim that several pods use by its own name."""
    uid = found.allocate("both", pods=2)
    await found.prepare("both", uid)
    await found.prepare("both", uid)
    (container,) = (await found.node.agent.usage()).containers
    assert (container.namespace, container.pod, container.container) == (NAMESPACE, "both", "gpu")

    def told() -> set[tuple[str, str, int]]:
        about = events(found.node, "GPUAllocated")
        return {(each["involvedObject"]["name"], each["message"], each.get("count", 1)) for each in about}

    text = "request gpu of claim both got 20 cores and 2 GiB of gpu-0 (kube-scheduler's choice)"
    await found.node.server.until(lambda: len(told()) == 2)
    assert told() == {("pod-both", text, 1), ("pod-both1", text, 1)}
    with pytest.raises(ClaimCallError, match="failed for ResourceClaim large: claim research/large"):
        await found.prepare("large", found.allocate("large", cores=150))
    metrics = (await found.node.agent.must_get("/metrics")).text
    assert 'vcuda_allocations_total{outcome="allocated",reason=""} 1.0' in metrics
    assert 'vcuda_allocations_total{outcome="refused",reason="claim"} 1.0' in metrics


async def test_rounds_report_a_container_that_joins_two_prepared_claims_and_end_what_everybody_forgot(
    found: ClaimNode,
) -> None:
    """Kubelet starts the container without a call, and the limits of one claim are lost.

    No pod has a claim's UID: what is released because its pod is gone would be given out twice.
    """
    names = {}
    for name, gpu in (("one", "gpu-0"), ("two", "gpu-1")):
        names[name] = name_of(await found.prepare(name, found.allocate(name, gpu)))
    claims = [{"name": name, "resourceClaimName": name} for name in names]
    container = {"name": "main", "image": "i", "resources": {"claims": [{"name": name} for name in names]}}
    spec = {"nodeName": NODE, "containers": [container], "resourceClaims": claims}
    found.node.server.store.create("pods", {"metadata": {"name": "greedy"}, "spec": spec}, namespace=NAMESPACE)
    (event,) = await until_event(found.node, "GPUStartFailed")
    assert event["involvedObject"]["name"] == "greedy"
    assert event["message"] == (
        "container main has 2 parts of GPUs (one/gpu, two/gpu), and the limits of only one of them count in it; "
        "delete the pod, and name one request in its resources.claims"
    )
    found.record({})
    await asyncio.sleep(_SOME_ROUNDS_S)
    assert [each.get("count", 1) for each in events(found.node, "GPUStartFailed")] == [1]
    assert len(found.grants()) == 2, "the API server still has both"
    found.node.server.store.delete("resourceclaims", "two", namespace=NAMESPACE)

    async def ended() -> bool:
        return found.grants() == {names["one"].partition("=")[2]}

    await found.node.agent.until(ended, what="the lost claim has ended", deadline_s=PATIENCE_S)


async def test_neither_a_kill_nor_a_lost_journal_loses_a_claim(found: ClaimNode) -> None:
    """The container holds the grant under the name that kubelet wrote down, and starts again without a word."""
    uid = found.allocate("one")
    name = name_of(await found.prepare("one", uid))
    await found.node.agent.kill()
    (found.node.home / "cdi" / f"vcuda-{name.partition('=')[2]}.json").unlink()
    await found.start()
    assert found.cdi() == {name.partition("=")[2]}
    assert name_of(await found.prepare("one", uid)) == name

    found.record({"one": uid}, {"one": name})
    await found.node.agent.kill()
    found.node.journal.unlink()
    await found.start()
    assert found.grants() == {name.partition("=")[2]}
    assert [each.cores_allocated for each in (await found.node.agent.usage()).gpus][:2] == [20, 0]
    assert name_of(await found.prepare("one", uid)) == name
    await found.unprepare("one", uid)
    assert (found.grants(), found.cdi()) == (set(), set())


async def test_files_that_cannot_be_restored_at_a_start_are_restored_when_they_can_be(found: ClaimNode) -> None:
    """Kubelet starts the container again without a call, and nobody else writes them."""
    name = name_of(await found.prepare("one", found.allocate("one")))
    await found.node.agent.kill()
    folder = found.node.grants / name.partition("=")[2]
    obstacle = folder / ".limits.new"
    obstacle.mkdir()
    (folder / "limits").unlink()
    await found.start()
    await until_said(found.node, "claim_not_restored")
    obstacle.rmdir()

    async def back() -> bool:
        return (folder / "limits").exists()

    await found.node.agent.until(back, what="the limits are back", deadline_s=PATIENCE_S)


async def test_a_node_is_split_by_gpu(short_tmp: Path) -> None:
    """Each GPU is offered in one way to ask, and both have one ledger."""
    async with claim_node(short_tmp, gpus="6,7") as found:
        await found.node.server.until(lambda: len(found.slices()) == 1)
        assert [each["name"] for each in found.slices()[0]["spec"]["devices"]] == ["gpu-6", "gpu-7"]
        await found.node.kubelet.wait_allocatable("tencent.com/vcuda-core", 600, deadline_s=PATIENCE_S)
        await run(found.node, share("by-plugin"))
        await found.prepare("by-claim", found.allocate("by-claim", "gpu-7"))
        usage = await found.node.agent.usage()
        by_gpu = {each.minor: each.cores_allocated for each in usage.gpus}
        assert (by_gpu[7], sum(by_gpu.values())) == (20, 40)
        assert {each.source for each in usage.containers} == {"pods", "claim"}


async def test_gpus_that_this_node_does_not_have_are_refused_at_start(short_tmp: Path) -> None:
    flags = {"dra": "true", "dra-gpus": "0,9", "cdi-dir": short_tmp / "cdi"}
    async with node_with_agent(short_tmp, flags=flags, started=False) as node:
        await node.agent.start()
        with pytest.raises(AgentFailureError, match=r"--dra-gpus names 9, and this node has 0 \(GPU-"):
            await node.agent.wait_ready(deadline_s=PATIENCE_S)


async def test_a_runtime_that_ignores_cdi_ends_the_agent_with_a_sentence(short_tmp: Path) -> None:
    """Its containers would run without GPU and without limits."""
    flags = {"dra": "true", "cdi-dir": short_tmp / "cdi"}
    old = StandInRuntime(short_tmp / "cri.sock", version="1.6.20")
    async with node_with_agent(short_tmp, flags=flags, started=False) as node, old:
        await node.agent.start()
        with pytest.raises(AgentFailureError, match=r"--dra needs .*containerd 1.7.2.* has containerd 1.6.20"):
            await node.agent.wait_ready(deadline_s=PATIENCE_S)


@asynccontextmanager
async def next_agent(found: ClaimNode) -> AsyncIterator[AgentProcess]:
    """Started beside the one that has the books."""
    command, port = found.node.agent.command, free_port()
    after = AgentProcess(replace(command, arguments=(*command.arguments, f"--query-port={port}"), port=port))
    await after.start()
    try:
        yield after
    finally:
        await after.destroy()


async def test_the_next_agent_takes_over_and_no_call_fails(found: ClaimNode) -> None:
    """As a DaemonSet with maxSurge does it: the next one is ready first, then the first one is told to end."""
    before = found.connected()
    async with next_agent(found) as after:

        async def waits() -> bool:
            return bool(found.connected() - before) and await answers(after, "/readyz", 200)

        await after.until(waits, what="the next agent waits", deadline_s=PATIENCE_S)
        assert "another agent" in (await after.get("/readyz")).text
        assert (await after.get("/usage")).status == 503
        name_of(await found.prepare("early", found.allocate("early")))
        assert len((await found.node.agent.usage()).containers) == 1, "the first one still has the books"

        uids = {f"c{number}": found.allocate(f"c{number}", f"gpu-{number % 8}", 2) for number in range(24)}
        calls = [asyncio.create_task(found.prepare(name, uid)) for name, uid in uids.items()]
        await asyncio.sleep(0.05)
        await found.node.agent.stop()
        assert len({name_of(answer) for answer in await asyncio.gather(*calls)}) == 24
        await after.wait_ready(deadline_s=PATIENCE_S)
        assert len((await after.usage()).containers) == 25
        await until(lambda: len(found.node.kubelet.drivers.of(DRIVER)) == 1)


async def test_a_next_agent_that_is_killed_while_it_waits_costs_no_call(found: ClaimNode) -> None:
    """Its sockets stay, and kubelet calls the one that is connected."""
    before = found.connected()
    async with next_agent(found) as after:
        await until(lambda: found.connected() - before)
        name_of(await found.prepare("early", found.allocate("early")))
        await after.kill()
        await until(lambda: found.connected() == before)
        assert len(found.node.kubelet.drivers.of(DRIVER)) == 2
        name_of(await found.prepare("late", found.allocate("late")))


async def answers(agent: AgentProcess, path: str, status: int) -> bool:
    try:
        return (await agent.get(path)).status == status
    except AgentFailureError:
        return False
