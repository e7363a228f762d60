"""The driver mirror as pods meet it: what they mount, what an upgrade changes, and what fails closed."""

import json
import shutil
from pathlib import Path

import pytest

from sandbox.driver_root import DriverRoot, make_interposers
from sandbox.gpunode import GpuNode
from sandbox.station import pod_json
from tests.agent.harness import (
    PATIENCE_S,
    create,
    delete,
    node_with_agent,
    run,
    share,
    until_event,
    until_held_by,
    until_said,
)

FLAGS = {"allocation-check-period": "300ms"}  # the driver's files are checked three times as often
NEWER = "590.10"
ENFORCEABLE = "vcuda_shares_enforceable"


def driver_of(node: GpuNode) -> DriverRoot:
    """As the node has it installed."""
    return DriverRoot(node.home / "host", node.gpus.driver)


def mounted(node: GpuNode, uid: str) -> tuple[str, str, bool]:
    """Flavour, driver version and whether the interposer is in front, behind a container's driver mount."""
    view = node.kubelet.container_view(uid, "c")
    libraries = view.host_path("/usr/local/nvidia/lib64")
    (real,) = (path.name for path in libraries.glob("libcuda.so.*.*"))
    return libraries.parent.name, real.removeprefix("libcuda.so."), (libraries / "libvcuda.so.1").exists()


def remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()


async def metric(node: GpuNode, name: str) -> dict[str, float]:
    """Labels and values of one family."""
    lines = (await node.agent.must_get("/metrics")).text.splitlines()
    found = (line.rpartition(" ") for line in lines if line.startswith(name))
    return {labels.removeprefix(name): float(value) for labels, _, value in found}


async def until_mirrored(node: GpuNode, version: str) -> None:
    """While a driver is installed the agent may build more than one."""

    async def look() -> bool:
        return any(entry["driver"] == version for entry in node.agent.entries("mirror_built"))

    await node.agent.until(look, what=f"the driver mirror is of version {version}", deadline_s=PATIENCE_S)


async def test_shares_find_the_interposer_and_whole_gpus_the_driver(short_tmp: Path) -> None:
    async with node_with_agent(short_tmp, flags=FLAGS) as node:
        one, two = await run(node, share("share"), pod_json("whole", ("c", 100, 0)))
        assert mounted(node, one) == ("nvidia", node.gpus.driver, True)
        assert mounted(node, two) == ("origin", node.gpus.driver, False)
        assert await metric(node, ENFORCEABLE) == {"": 1}
        assert await metric(node, "vcuda_driver_mirror_info") == {f'{{driver="{node.gpus.driver}"}}': 1}
        assert await metric(node, "vcuda_driver_mirror_missing{") == {}

        current = (node.home / "vdriver/nvidia").resolve()
        await node.agent.kill()
        await node.start_agent(deadline_s=PATIENCE_S)
        assert (node.home / "vdriver/nvidia").resolve() == current, "the next agent serves the tree that is there"
        assert len(node.agent.entries("mirror_built")) == 1
        (uid,) = await run(node, share("next"))
        assert mounted(node, uid) == ("nvidia", node.gpus.driver, True)


async def test_a_container_keeps_the_driver_of_its_start_and_gets_the_new_one_at_its_next(short_tmp: Path) -> None:
    """The old trees go when no container can be using them any more."""
    async with node_with_agent(short_tmp, flags=FLAGS) as node:
        driver = driver_of(node)
        pod = share("stays")
        (before,) = await run(node, pod)
        for version in (NEWER, "595.1", "600.1"):
            driver.install(version)
            driver.load(version)
            await until_mirrored(node, version)
        assert mounted(node, before) == ("nvidia", node.gpus.driver, True)
        (after,) = await run(node, share("comes"))
        assert mounted(node, after) == ("nvidia", "600.1", True)

        node.kubelet.exit_container(before, "c")
        await node.kubelet.wait_running(before, starts=2, deadline_s=PATIENCE_S)
        assert mounted(node, before) == ("nvidia", "600.1", True)

        held = {path.name for path in (node.home / "vdriver/.trees").iterdir() if path.is_dir()}
        assert len(held) >= 4
        await delete(node, pod)
        await until_held_by(node, [after])
        await until_said(node, "old_mirrors_removed")
        assert mounted(node, after)[1] == "600.1"


async def test_without_our_library_a_share_waits_with_the_reason_and_a_whole_gpu_runs(short_tmp: Path) -> None:
    """Fail closed: an image may bring its own libcuda, and then nothing enforces its share."""
    empty = short_tmp / "empty"
    async with node_with_agent(short_tmp, flags={**FLAGS, "library-path": empty}, retry_s=2.0) as node:
        (uid,) = create(node, share("share"))
        await run(node, pod_json("whole", ("c", 100, 0)))
        reason = await node.kubelet.wait_waiting(uid, "c", deadline_s=PATIENCE_S)
        sentence = (
            "shares cannot start, because nothing would enforce their limits: "
            f"vcuda's library is missing at {empty}/libvcuda.so.1; install it there or set --library-path"
        )
        assert sentence in reason
        assert sentence in (await until_event(node, "GPUStartFailed"))[0]["message"]
        assert (await until_said(node, "shares_refused"))[0]["error"] == sentence
        assert await metric(node, ENFORCEABLE) == {"": 0}

        make_interposers(empty)
        await node.kubelet.wait_running(uid, deadline_s=PATIENCE_S)
        assert mounted(node, uid) == ("nvidia", node.gpus.driver, True)
        assert await metric(node, ENFORCEABLE) == {"": 1}


@pytest.mark.parametrize("lost", ["vdriver", "vdriver/.trees", "vdriver/nvidia/lib64/libcuda.so.1"])
async def test_no_container_starts_with_less_than_the_whole_mirror(short_tmp: Path, lost: str) -> None:
    """containerd and CRI-O would start it with an empty directory at the place of the driver and its limits."""
    async with node_with_agent(short_tmp, flags={"allocation-check-period": "1h"}, retry_s=1.0) as node:
        (uid,) = await run(node, share("share"))
        remove(node.home / lost)
        node.kubelet.exit_container(uid, "c")
        reason = await node.kubelet.wait_waiting(uid, "c", deadline_s=PATIENCE_S)
        assert f"files of the driver mirror {node.home}/vdriver are missing on the node" in reason
        await node.agent.kill()
        await node.start_agent(deadline_s=PATIENCE_S)
        await node.kubelet.wait_running(uid, starts=2, deadline_s=PATIENCE_S)
        assert mounted(node, uid) == ("nvidia", node.gpus.driver, True)


async def test_a_container_whose_recorded_driver_is_elsewhere_and_gone_does_not_start(short_tmp: Path) -> None:
    """The agent has another --driver-mirror-path now, and somebody has removed the old mirror."""
    async with node_with_agent(short_tmp, flags=FLAGS) as node:
        (uid,) = await run(node, share("share"))
        await node.agent.kill()
        await node.start_agent(f"--driver-mirror-path={node.home}/elsewhere", deadline_s=PATIENCE_S)
        remove(node.home / "vdriver")
        node.kubelet.exit_container(uid, "c")
        reason = await node.kubelet.wait_waiting(uid, "c", deadline_s=PATIENCE_S)
        assert f"{node.home}/vdriver/nvidia, which kubelet recorded as a mount, is missing on the node" in reason
        assert not (node.home / "vdriver").exists()


async def test_libraries_that_the_driver_lacks_are_named_once_and_counted(short_tmp: Path) -> None:
    async with node_with_agent(short_tmp, flags=FLAGS, started=False) as node:
        for path in (node.home / "host").rglob("libnvidia-ptxjitcompiler.so*"):
            path.unlink()
        driver_of(node).make_cache()
        await node.start_agent(deadline_s=PATIENCE_S)
        await run(node, share("share"))
        (entry,) = node.agent.entries("driver_libraries_missing")
        assert entry["libraries"] == ["libnvidia-ptxjitcompiler.so.1"]
        missing = await metric(node, "vcuda_driver_mirror_missing{")
        assert missing == {'library="libnvidia-ptxjitcompiler.so.1"}': 1}


async def test_a_list_of_components_of_ones_own_decides_what_containers_see(short_tmp: Path) -> None:
    listed = short_tmp / "volume.json"
    volumes = [
        {"name": "nvidia", "base": str(short_tmp / "vdriver"), "components": {"binaries": ["nvidia-smi"]}},
        {"name": "extra", "base": "/nowhere", "components": {}},
    ]
    listed.write_text(json.dumps({"volume": volumes}))
    async with node_with_agent(short_tmp, flags={"volume-config": listed}) as node:
        one, two = await run(node, share("share"), pod_json("whole", ("c", 100, 0)))
        (sentence,) = (entry["error"] for entry in node.agent.entries("volume_config_ignored"))
        assert sentence == "volume 'extra' is not mounted; only nvidia and origin are"
        view = node.kubelet.container_view(one, "c")
        assert [path.name for path in view.host_path("/usr/local/nvidia/bin").iterdir()] == ["nvidia-smi"]
        names = {path.name.partition(".so")[0] for path in view.host_path("/usr/local/nvidia/lib64").iterdir()}
        assert names == {"libcuda", "libcuda-real", "libnvidia-ml", "libnvidia-ml-real", "libvcuda"}
        whole = node.kubelet.container_view(two, "c").host_path("/usr/local/nvidia")
        assert (whole / "lib64/libnvidia-ptxjitcompiler.so.1").exists(), "what the file does not list is as without it"
