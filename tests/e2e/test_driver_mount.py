"""A driver container mounts its file system at any time, and again when it restarts: the agent's pod must see it.

In: the volume and the mount that the chart gives the agent for `agent.driver.root`, in a pod of a real kubelet. Not
here: what the agent does with a driver (tests/container).
"""

import secrets
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandbox.cluster import pods
from sandbox.cluster.cluster import Cluster
from sandbox.cluster.waiting import wait_until
from tests.daemonset.chart import Object, render
from tests.programs import helm_program

pytestmark = pytest.mark.e2e


@pytest.fixture
def agent(request: pytest.FixtureRequest, empty_cluster: Cluster, tmp_path: Path) -> Iterator[Object]:
    """The agent's pod for a driver container that has not come yet."""
    parent = empty_cluster.layout.root / f"driver-{secrets.token_hex(4)}"
    values = {"platform": "gpu-operator", "agent": {"driver": {"root": str(parent / "driver")}}}
    yield render(helm_program(request), values, folder=tmp_path).agent
    shutil.rmtree(parent, ignore_errors=True)


def _named(entries: list[Object]) -> Object:
    (found,) = (each for each in entries if each["name"] == "driver")
    return found


def test_a_driver_that_is_mounted_later_or_again_is_seen(agent: Object, empty_cluster: Cluster) -> None:
    (container,) = agent["containers"]
    (root,) = (each.partition("=")[2] for each in container["args"] if each.startswith("--driver-root="))
    library = f"{root}/usr/lib64/libcuda.so.1"
    script = f"while :; do [ -e {library} ] && echo seen || echo none; sleep 0.1; done"
    looking = pods.container("c", script, volumeMounts=[_named(container["volumeMounts"])])
    pods.create(empty_cluster.admin, pods.pod("looking", [looking], volumes=[_named(agent["volumes"])]))
    pods.wait_running(empty_cluster.admin, ["looking"])
    _wait_says(empty_cluster, "none")
    driver = Path(_named(agent["volumes"])["hostPath"]["path"]) / Path(root).name
    for _life in range(2):
        _on_the_node(
            empty_cluster, f"mkdir -p {driver} && mount -t tmpfs driver {driver} && mkdir -p {driver}/usr/lib64"
        )
        _on_the_node(empty_cluster, f"touch {driver}/usr/lib64/libcuda.so.1")
        _wait_says(empty_cluster, "seen")
        _on_the_node(empty_cluster, f"umount {driver}")
        _wait_says(empty_cluster, "none")


def _wait_says(cluster: Cluster, word: str) -> None:
    def said() -> bool:
        return pods.log(cluster.admin, "looking", "c").endswith(f"{word}\n")

    wait_until(said, f"the pod says {word}")


def _on_the_node(cluster: Cluster, script: str) -> None:
    node = f"--mount=/proc/{cluster.containerd.process.pid}/ns/mnt"
    subprocess.run(["nsenter", node, "--", "/bin/sh", "-ec", script], check=True)
