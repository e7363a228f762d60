"""The agent's tmpfs over its life, as on a node: each agent in a mount namespace of its own, like a privileged pod with
Bidirectional propagation. Security 2: no container fills the disk, and none takes the others' room for long.
"""

import asyncio
import dataclasses
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from deviceplugin.container import region
from deviceplugin.ledger.grant import GrantId
from sandbox.agent import AgentCommand, AgentProcess
from sandbox.gpunode import GpuNode
from tests.agent.harness import PATIENCE_S, delete, limits_now, node_with_agent, run, share, until_held_by
from tests.container.makers import put_slot

pytestmark = pytest.mark.root
FLAGS = {"virtual-manager-tmpfs": "true"}


@pytest.fixture
def home(short_tmp: Path) -> Iterator[Path]:
    """A directory whose mounts other namespaces see, as /etc/gpu-manager of a node."""
    subprocess.run(["mount", "--bind", short_tmp, short_tmp], check=True)
    try:
        subprocess.run(["mount", "--make-shared", short_tmp], check=True)
        yield short_tmp
    finally:
        subprocess.run(["umount", "--recursive", "--lazy", short_tmp], check=True)


async def start_as_pod(node: GpuNode) -> None:
    before = ("unshare", "--mount", "--propagation", "unchanged")
    command = node.agent.command
    if command.arguments[: len(before)] != before:
        node.agent.command = dataclasses.replace(command, arguments=(*before, *command.arguments))
    await node.start_agent(deadline_s=PATIENCE_S)


def mounts(node: GpuNode) -> list[str]:
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    return [line for line in lines if line.split()[4] == str(node.grants)]


def region_of(node: GpuNode, uid: str) -> Path:
    return node.kubelet.container_view(uid, "c").host_path("/etc/vcuda/state/region")


async def test_the_next_agent_finds_the_tmpfs_with_everything_in_it(home: Path) -> None:
    async with node_with_agent(home, flags=FLAGS, started=False) as node:
        await start_as_pod(node)
        (uid,) = await run(node, share("p"))
        path = region_of(node, uid)
        assert os.statvfs(path).f_flag & os.ST_NOSUID
        assert path.stat().st_dev != home.stat().st_dev
        put_slot(path, 0, pid=7, used=5)
        files = sorted(node.grants.rglob("*"))
        await node.agent.kill()
        assert len(mounts(node)) == 1, "it outlives its agent"
        await start_as_pod(node)
        assert len(mounts(node)) == 1, "nothing is mounted on top"
        assert set(files) <= {*node.grants.rglob("*")}
        (slot,) = region.read(path, grant=_grant(node), devices=1).slots
        assert (slot.pid, slot.uses[0].used) == (7, 5)
        await run(node, share("q"))
        assert not node.agent.entries("shared_state_on_disk")


async def test_files_on_the_disk_that_a_container_has_mounted_are_served_until_it_has_ended(home: Path) -> None:
    """An upgrade under running containers: they keep what they mounted, and so must everybody else."""
    async with node_with_agent(home, flags={"virtual-manager-tmpfs": "false"}) as node:
        (uid,) = await run(node, share("p"))
        path = region_of(node, uid)
        inode = path.stat().st_ino
        await node.agent.stop()
        node.agent.command = _with_tmpfs(node.agent)
        await start_as_pod(node)
        (said,) = node.agent.entries("shared_state_on_disk")
        assert "containers that run have files there on the disk" in said["error"]
        assert (mounts(node), path.stat().st_ino) == ([], inode)
        await delete(node, share("p"))
        await until_held_by(node, [])
        await node.agent.stop()
        await start_as_pod(node)
        assert len(mounts(node)) == 1
        await run(node, share("q"))


async def test_a_full_tmpfs_delays_no_other_container(home: Path) -> None:
    """The attacker takes all room again as fast as it can."""
    async with node_with_agent(home, flags=FLAGS, started=False) as node:
        mount_before(node, "size=24m")
        await start_as_pod(node)
        (uid,) = await run(node, share("attacker"))
        path = region_of(node, uid)

        async def grown() -> bool:
            return os.statvfs(path).f_blocks * 4096 > 1 << 30

        await node.agent.until(grown, what="it grows without any start", deadline_s=PATIENCE_S)
        script = 'while :; do for n in 16384 1024 64 4; do fallocate --keep-size -l "${n}K" -o 1M "$0"; done; done'
        attacker = await asyncio.create_subprocess_exec(
            "sh", "-c", script, str(path), stderr=asyncio.subprocess.DEVNULL, start_new_session=True
        )
        try:
            for name in "abc":
                await run(node, share(name))
            await until_reported(node)
        finally:
            os.killpg(attacker.pid, 9)
            await attacker.wait()
        assert not [each for each in node.agent.entries("limit_violated") if "attacker" not in each["pod"]]


@pytest.mark.parametrize("options", ["size=1g,nr_inodes=1000", "size=1g"])
async def test_attributes_take_nothing_from_other_containers(home: Path, options: str) -> None:
    """Security A-1: they count as inodes, in a tmpfs of an earlier version too, and so many cannot be removed."""
    async with node_with_agent(home, flags=FLAGS, started=False) as node:
        mount_before(node, options)
        await start_as_pod(node)
        (uid, neighbour) = await run(node, share("attacker"), share("neighbour"))
        path = region_of(node, uid)
        for number in range(400):
            os.setxattr(path, f"user.{number:04}{'x' * 240}", bytes(4000))
        assert os.statvfs(path).f_files == 0, "1,000 inodes are 1 MiB of attributes"
        for name in "abc":
            await run(node, share(name))
        node.server.store.patch(
            "pods",
            "neighbour",
            {"metadata": {"annotations": {"tencent.com/vcuda-core-limit": "77"}}},
            namespace="default",
        )
        await until_reported(node)

        async def changed() -> bool:
            return limits_now(node, neighbour).soft_cores == 77

        await node.agent.until(changed, what="a live limit of a neighbour", deadline_s=PATIENCE_S)
        await node.agent.kill()
        await start_as_pod(node)
        await run(node, share("d"))
        await delete(node, share("attacker"))
        assert not [each for each in node.agent.entries("limit_violated") if "attacker" not in each["pod"]]


def mount_before(node: GpuNode, options: str) -> None:
    """What an earlier version, or the operator, has mounted."""
    node.grants.mkdir(mode=0o700)
    flags = "nosuid,nodev,noexec"
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"{options},{flags}", "small", node.grants], check=True)


async def until_reported(node: GpuNode) -> None:
    async def told() -> bool:
        return any(each["violation"] == "state" for each in node.agent.entries("limit_violated"))

    await node.agent.until(told, what="the attacker is reported", deadline_s=PATIENCE_S)


def _grant(node: GpuNode) -> GrantId:
    (folder,) = node.grants.glob("g-*")
    return GrantId(folder.name)


def _with_tmpfs(agent: AgentProcess) -> AgentCommand:
    arguments = (each.replace("tmpfs=false", "tmpfs=true") for each in agent.command.arguments)
    return dataclasses.replace(agent.command, arguments=tuple(arguments))
