"""Loading the kernel modules, with tools that only write down how they were called."""

import os
import stat
from pathlib import Path

import pytest

from deviceplugin.hardware.pci import ModuleOutcome, ModuleTools, load_modules
from tests.hardware.test_pci import device


class Node:
    """A machine with GPUs on its bus and tools on its PATH."""

    def __init__(self, root: Path, *, gpus: int) -> None:
        self.root = root
        self.bin = root / "bin"
        self.dev = root / "dev"
        for directory in (self.bin, self.dev):
            directory.mkdir()
        for number in range(gpus):
            device(root / "sys", f"0000:{number + 1:02x}:00.0")

    def tool(self, name: str, *, does: str = "exit 0") -> None:
        path = self.bin / name
        path.write_text(f'#!/bin/sh\necho "{name} $*" >> {self.root}/calls\n{does}\n')
        path.chmod(0o755)

    @property
    def calls(self) -> list[str]:
        calls = self.root / "calls"
        return calls.read_text().splitlines() if calls.exists() else []

    async def maybe_load(self, *, budget_s: float = 10.0) -> ModuleOutcome | None:
        tools = ModuleTools(path=str(self.bin), budget_s=budget_s)
        return await load_modules(tools, device_root=self.dev, sys_root=self.root / "sys", proc_root=self.root / "proc")

    async def load(self, *, budget_s: float = 10.0) -> ModuleOutcome:
        outcome = await self.maybe_load(budget_s=budget_s)
        assert outcome is not None
        return outcome


async def test_with_the_nodes_of_both_modules_in_place_nothing_is_run(short_tmp: Path) -> None:
    node = Node(short_tmp, gpus=2)
    node.tool("nvidia-modprobe")
    for name in ("nvidiactl", "nvidia-uvm"):
        (node.dev / name).touch()
    assert (await node.maybe_load(), node.calls) == (None, [])


async def test_without_the_node_of_unified_memory_only_that_is_made(short_tmp: Path) -> None:
    """After a boot: NVML makes the others."""
    node = Node(short_tmp, gpus=2)
    node.tool("nvidia-modprobe")
    (node.dev / "nvidiactl").touch()
    assert (await node.load()).sentence == f"loaded nvidia-uvm for 2 GPUs with {node.bin}/nvidia-modprobe"
    assert node.calls == ["nvidia-modprobe -u -c 0"]


@pytest.mark.root
async def test_modprobe_makes_no_node_so_the_agent_does(short_tmp: Path) -> None:
    """Under the number of /proc/devices, for every user."""
    node = Node(short_tmp, gpus=1)
    node.tool("modprobe")
    (node.dev / "nvidiactl").touch()
    (node.root / "proc").mkdir()
    (node.root / "proc/devices").write_text(
        "Character devices:\n195 nvidia\n508 nvidia-uvm\n\nBlock devices:\n  7 loop\n"
    )
    assert (await node.load()).loaded
    made = (node.dev / "nvidia-uvm").stat()
    assert (stat.S_ISCHR(made.st_mode), stat.S_IMODE(made.st_mode)) == (True, 0o666)
    assert (os.major(made.st_rdev), os.minor(made.st_rdev)) == (508, 0)
    assert node.calls == ["modprobe nvidia-uvm"]


async def test_without_a_gpu_on_the_bus_nothing_is_run(short_tmp: Path) -> None:
    node = Node(short_tmp, gpus=0)
    node.tool("nvidia-modprobe")
    assert (await node.maybe_load(), node.calls) == (None, [])


async def test_nvidia_modprobe_makes_the_nodes_of_every_gpu_and_of_uvm(short_tmp: Path) -> None:
    node = Node(short_tmp, gpus=3)
    node.tool("nvidia-modprobe")
    node.tool("modprobe")
    outcome = await node.load()
    assert outcome.loaded
    assert node.calls == ["nvidia-modprobe -c 255 -c 0 -c 1 -c 2", "nvidia-modprobe -u -c 0"]


async def test_without_nvidia_modprobe_modprobe_is_taken(short_tmp: Path) -> None:
    node = Node(short_tmp, gpus=1)
    node.tool("modprobe")
    outcome = await node.load()
    assert outcome.loaded
    assert node.calls == ["modprobe nvidia", "modprobe nvidia-uvm"]


async def test_when_nvidia_modprobe_fails_modprobe_is_tried(short_tmp: Path) -> None:
    node = Node(short_tmp, gpus=1)
    node.tool("nvidia-modprobe", does="echo no such module >&2; exit 1")
    node.tool("modprobe")
    outcome = await node.load()
    assert outcome.loaded
    assert node.calls == ["nvidia-modprobe -c 255 -c 0", "modprobe nvidia", "modprobe nvidia-uvm"]


async def test_when_all_fail_one_sentence_says_what_each_said(short_tmp: Path) -> None:
    node = Node(short_tmp, gpus=1)
    node.tool("nvidia-modprobe", does="exit 3")
    node.tool("modprobe", does="echo first; echo FATAL: Module nvidia not found. >&2; exit 1")
    outcome = await node.load()
    assert not outcome.loaded
    assert outcome.sentence == (
        "could not load nvidia and nvidia-uvm: `nvidia-modprobe -c 255 -c 0` ended with 3; "
        "`modprobe nvidia` ended with 1: FATAL: Module nvidia not found.; "
        "load the kernel modules on the node"
    )


async def test_without_any_tool_the_sentence_names_both(short_tmp: Path) -> None:
    outcome = await Node(short_tmp, gpus=1).load()
    assert outcome.sentence == (
        "could not load nvidia and nvidia-uvm: nvidia-modprobe is not installed; modprobe is not installed; "
        "load the kernel modules on the node"
    )


async def test_a_tool_that_hangs_is_ended(short_tmp: Path) -> None:
    node = Node(short_tmp, gpus=1)
    node.tool("nvidia-modprobe", does="exec /bin/sleep 600")
    outcome = await node.load(budget_s=0.2)
    assert not outcome.loaded
    assert "`nvidia-modprobe -c 255 -c 0` did not end within 0.2 s" in outcome.sentence


async def test_a_tool_that_cannot_be_started_is_named(short_tmp: Path) -> None:
    node = Node(short_tmp, gpus=1)
    broken = node.bin / "nvidia-modprobe"
    broken.write_text("#!/no/such/interpreter\n")
    broken.chmod(0o755)
    outcome = await node.load()
    assert "`nvidia-modprobe -c 255 -c 0` could not be started: No such file or directory" in outcome.sentence
