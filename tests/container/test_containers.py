"""Where a grant's container is: by the runtime, by the pod's status, by its names, by looking at every process."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from deviceplugin.container.containers import ContainerFinder, ContainerRuntime, FoundContainer, Place, SeenProcesses
from deviceplugin.container.processes import CgroupTree, Members, ProcessTable
from deviceplugin.model.allocation import PodUid
from deviceplugin.model.gpu import GpuProcess, GpuSample, GpuUuid
from sandbox.runtime import RuntimeBehaviour, RuntimeContainer, StandInRuntime
from tests.container.node_tree import NodeTree

UID, ID = PodUid("3b0c3f0e-6b8a-4a53-9e0c-2f1d6f7a9b10"), "e3b0c44298fc1c14" * 4
OWNER = (UID, "main")
USUAL, ODD = f"/kubepods/burstable/pod{UID}/{ID}", f"/a/b/c/kubepods/pod{UID}/{ID}"


def finder(node: NodeTree, *, runtime: ContainerRuntime | None = None, status: str = "") -> ContainerFinder:
    return ContainerFinder(
        ProcessTable(node.proc), CgroupTree(node.cgroup), runtime=runtime, id_in_status=lambda owner: status
    )


@asynccontextmanager
async def cri(
    home: Path, manner: RuntimeBehaviour = RuntimeBehaviour.CONTAINERD, pid: int = 0
) -> AsyncIterator[ContainerRuntime]:
    running = [RuntimeContainer(ID, UID, "main", pid=pid), RuntimeContainer("other", UID, "side", pid=99)]
    async with StandInRuntime(home / "cri.sock", manner, running):
        runtime = ContainerRuntime(home / "cri.sock", timeout_s=60)
        yield runtime
        await runtime.close()


async def test_the_runtimes_pid_leads_to_a_group_wherever_it_is(short_tmp: Path) -> None:
    node = NodeTree(short_tmp / "node")
    node.start(41, ODD)
    node.start(42, f"{ODD}/below")
    async with cri(short_tmp, pid=41) as runtime:
        found = finder(node, runtime=runtime)
        place = await found.find([OWNER])
        assert place == Place((FoundContainer(UID, ID, node.cgroup / ODD.lstrip("/")),))
        assert found.members(place) == Members((41, 42))


async def test_a_pid_that_is_another_processes_by_now_leads_nowhere(short_tmp: Path) -> None:
    node = NodeTree(short_tmp / "node")
    node.start(41, f"/kubepods/pod{UID}/{ID[::-1]}")
    node.start(50, USUAL)
    async with cri(short_tmp, pid=41) as runtime:
        assert await finder(node, runtime=runtime).find([OWNER]) == Place(
            (FoundContainer(UID, ID, node.cgroup / USUAL.lstrip("/")),)
        )


async def test_a_runtime_without_pids_is_helped_by_kubelets_names(short_tmp: Path) -> None:
    node = NodeTree(short_tmp / "node", is_unified=False)
    node.start(41, USUAL)
    async with cri(short_tmp, RuntimeBehaviour.DOCKERD) as runtime:
        place = await finder(node, runtime=runtime).find([OWNER])
        assert place == Place((FoundContainer(UID, ID, node.cgroup / "memory" / USUAL.lstrip("/")),))


async def test_without_a_runtime_the_pods_status_tells_the_id(short_tmp: Path) -> None:
    node = NodeTree(short_tmp / "node")
    node.start(41, USUAL)
    assert await finder(node, status=ID).find([OWNER]) == Place(
        (FoundContainer(UID, ID, node.cgroup / USUAL.lstrip("/")),)
    )
    assert await finder(node).find([OWNER]) is None


async def test_a_runtime_that_knows_no_such_container_says_so_for_sure(short_tmp: Path) -> None:
    async with cri(short_tmp) as runtime:
        found = finder(NodeTree(short_tmp / "node"), runtime=runtime, status=ID)
        place = await found.find([(UID, "another")])
        assert place == Place(())
        assert found.members(place) is None


async def test_a_group_that_cannot_be_found_is_made_good_by_every_process(short_tmp: Path) -> None:
    node = NodeTree(short_tmp / "node")
    node.start(41, ODD)
    found = finder(node, status=ID)
    place = await found.find([OWNER])
    assert place == Place((FoundContainer(UID, ID, None),))
    assert found.members(place) == Members((41,))
    node.end(41)
    assert found.members(place) is None


async def test_a_runtime_that_hangs_is_left_alone_for_a_while(short_tmp: Path) -> None:
    node = NodeTree(short_tmp / "node")
    node.start(41, USUAL)
    async with StandInRuntime(short_tmp / "cri.sock", RuntimeBehaviour.HANGING) as fake:
        runtime = ContainerRuntime(short_tmp / "cri.sock", timeout_s=0.1)
        found = finder(node, runtime=runtime, status=ID)
        for _ in range(3):
            assert await found.find([OWNER]) == Place((FoundContainer(UID, ID, node.cgroup / USUAL.lstrip("/")),))
        assert fake.calls == ["ListContainers"]
        await runtime.close()


def shown(*pids: int) -> dict[GpuUuid, GpuSample]:
    return {GpuUuid("GPU-0"): GpuSample(50, 0, tuple(GpuProcess(pid, 0, 50) for pid in pids))}


def test_the_container_of_a_process_is_known_after_its_end_and_until_the_driver_drops_it(tmp_path: Path) -> None:
    """Adversary A-8."""
    node = NodeTree(tmp_path)
    seen = SeenProcesses(ProcessTable(node.proc))
    node.start(41, f"/kubepods/pod{UID}/{ID}")
    seen.learn(shown(41, 42))
    node.end(41)
    seen.learn(shown(41, 42))
    group = seen.group(41)
    assert group is not None
    assert (group.pod, group.container_id) == (UID, ID)
    assert seen.group(42) is None
    seen.learn(shown())
    assert seen.group(41) is None


def test_a_pid_that_another_process_has_by_now_is_that_ones(tmp_path: Path) -> None:
    """But not for a sample from before it: that one is of the process that ended, also where nobody saw it."""
    node = NodeTree(tmp_path)
    seen = SeenProcesses(ProcessTable(node.proc))
    node.start(41, f"/kubepods/pod{UID}/{ID}", born=100)
    before = shown(41, 42)
    seen.learn(before)
    node.end(41)
    other = "0" * 64
    node.start(41, f"/kubepods/pod{UID}/{other}", born=200)
    node.start(42, f"/kubepods/pod{UID}/{other}", born=200)
    seen.learn(before)
    assert [each and each.container_id for each in map(seen.group, (41, 42))] == [ID, None]
    seen.learn(shown(41, 42))
    assert [each and each.container_id for each in map(seen.group, (41, 42))] == [other, other]
