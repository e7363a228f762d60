"""Containers of a real runtime, from the host: their processes, what they use, and who takes more than he was given."""

import os
import signal
import stat
import subprocess
from pathlib import Path

import pytest

from sandbox.cluster import pods
from sandbox.cluster.cluster import Cluster
from sandbox.cluster.waiting import wait_until
from tests.e2e.conftest import StartAgent
from tests.e2e.node.agent import Agent
from tests.e2e.node.inside import first_and_child, processes_of, register
from tests.e2e.node.scene import wait_all_running, wait_ledger_empty
from tests.e2e.node.usage import ContainerUsage
from tests.e2e.node.workload import GpuContainer, GpuPod
from tests.gpu_manager.client_reader import read_pids

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

PAIR = GpuPod("pair", (GpuContainer("one", 10, 8), GpuContainer("two", 20, 4)))


def run_pair(cluster: Cluster) -> dict[str, str]:
    """The containers' ids by name."""
    pods.create(cluster.admin, PAIR.manifest(annotations={"tencent.com/vcuda-socket": "true"}))
    wait_all_running(cluster, [PAIR])
    return {each.name: each.container_id for each in pods.states(cluster.admin)[PAIR.name].containers}


def entry(agent: Agent, container: str) -> ContainerUsage:
    return next(each for each in agent.usage().containers if each.container == container)


def shown(folder: Path) -> set[int]:
    return set(read_pids((folder / "pids.config").read_bytes()))


def test_gpu_managers_client_gets_the_processes_of_its_container(
    empty_cluster: Cluster, start_agent: StartAgent
) -> None:
    agent = start_agent()
    ids = run_pair(empty_cluster)
    grant = agent.grants / entry(agent, "one").grant
    register(grant / "vcuda.sock", ids["one"])

    own = grant / ids["one"].partition("://")[2]
    assert shown(own) == shown(grant) == processes_of(ids["one"])
    assert not shown(own) & processes_of(ids["two"])
    assert (own / "vcuda.config").read_bytes() == (grant / "vcuda.config").read_bytes()

    first, child = first_and_child(shown(own))
    os.kill(child, signal.SIGKILL)  # its shell starts another
    wait_until(
        lambda: shown(own) == processes_of(ids["one"]),
        "the processes are fresh",
        evidence=lambda: f"{shown(own)} is shown of {processes_of(ids['one'])}",
    )
    assert first in shown(own)

    pods.delete(empty_cluster.admin, [PAIR.name])
    wait_ledger_empty(agent)
    assert not [path for path in agent.grants.rglob("*") if path.name != ".boot" and path.is_file()]


def test_a_container_that_exceeds_its_share_is_reported(empty_cluster: Cluster, start_agent: StartAgent) -> None:
    agent = start_agent()
    ids = run_pair(empty_cluster)
    (share,) = entry(agent, "one").gpus
    pid = min(processes_of(ids["one"]))
    agent.gpus.command("process", "add", share.uuid, pid, 3000, 5, "--live")

    def breach(container: str, kind: str) -> float | None:
        return agent.metric("vcuda_container_over_limit", container=container, breach=kind)

    def wait_breach(kind: str, value: float | None) -> None:
        wait_until(lambda: breach("one", kind) == value, f"the breach of {kind} becomes {value}")

    wait_until(lambda: entry(agent, "one").processes == 1, "its process is seen")
    for kind in ("memory", "bypass"):
        wait_breach(kind, 1)
    assert entry(agent, "two").processes == 0
    assert {breach("two", kind) for kind in ("memory", "bypass", "cores", "state")} == {None}
    assert agent.metric("vcuda_container_use_known", container="two") == 1
    said = " ".join(entry(agent, "one").over_limit)
    assert "uses 3000 MiB and its limit is 2048 MiB" in said
    assert f"PIDs on the node: {pid}" in said

    def told() -> list[str]:
        return [each for each in pods.events(empty_cluster.admin, PAIR.name) if each.startswith("GPUOverLimit")]

    wait_until(lambda: len(told()) == 2, "the pod has an event for each", evidence=lambda: str(told()))
    agent.gpus.command("process", "remove", share.uuid, pid)
    for kind in ("memory", "bypass"):
        wait_breach(kind, None)
    assert entry(agent, "one").over_limit == ()
    assert len(told()) == 2


def test_what_a_container_writes_lies_on_a_tmpfs_that_outlives_the_agent(
    empty_cluster: Cluster, start_agent: StartAgent
) -> None:
    """Security 2 and 7, with a real runtime. Every life of the agent is in another mount namespace, as pods are."""
    agent = start_agent("--virtual-manager-tmpfs=true", mounting=True)
    ids = run_pair(empty_cluster)
    region = Path(f"/proc/{min(processes_of(ids['one']))}/root/etc/vcuda/state/region")
    inode, size = region.stat().st_ino, region.stat().st_size
    assert os.statvfs(region).f_flag & os.ST_NOSUID
    assert len(tmpfs_at(agent.grants, empty_cluster)) == 1

    subprocess.run(["fallocate", "--keep-size", "--length", "200M", region], check=True)
    region.chmod(0o4777)
    wait_until(
        lambda: region.stat().st_blocks * 512 < 2 * size and stat.S_IMODE(region.stat().st_mode) == 0o666,
        "the agent has undone it",
        evidence=lambda: f"{region.stat()}",
    )
    agent.process.kill()
    assert len(tmpfs_at(agent.grants, empty_cluster)) == 1
    agent.start()
    assert len(tmpfs_at(agent.grants, empty_cluster)) == 1
    assert region.stat().st_ino == inode
    subprocess.run(["fallocate", "--keep-size", "--length", "200M", region], check=True)
    wait_until(
        lambda: region.stat().st_blocks * 512 < 2 * size,
        "the next agent looks at the same file",
        evidence=lambda: f"{region.stat()}",
    )
    assert "shared_state_on_disk" not in agent.log()


def test_a_mount_without_a_source_gets_an_empty_directory(empty_cluster: Cluster, tmp_path: Path) -> None:
    """Kubelet hands these on as it does our mounts: `sandbox.kubelet.runtime` plays what is seen here."""
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    mount = {"name": "x", "mountPath": "/x"}
    for name in ("missing", "link"):
        container = pods.container("c", "test -d /x && sleep 3600", volumeMounts=[mount])
        volume = {"name": "x", "hostPath": {"path": str(tmp_path / name)}}
        pods.create(empty_cluster.admin, pods.pod(name, [container], volumes=[volume]))
    pods.wait_running(empty_cluster.admin, ["missing"])
    assert (tmp_path / "missing").is_dir()

    def told() -> str:
        return " ".join(pods.events(empty_cluster.admin, "link"))

    wait_until(lambda: "failed to mkdir" in told(), "the container with the link fails", evidence=told)


def tmpfs_at(path: Path, cluster: Cluster) -> list[str]:
    """The mounts there that containerd sees."""
    lines = Path(f"/proc/{cluster.containerd.process.pid}/mountinfo").read_text().splitlines()
    return [line for line in lines if line.split()[4] == str(path) and " - tmpfs " in line]
