"""Loading the kernel modules, with tools that only write down how they were called."""

from pathlib import Path

from deviceplugin.hardware.kernel_modules import ModuleOutcome, ModuleTools, load_modules
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
        return await load_modules(tools, device_root=self.dev, sys_root=self.root / "sys")

    async def load(self, *, budget_s: float = 10.0) -> ModuleOutcome:
        outcome = await self.maybe_load(budget_s=budget_s)
        assert outcome is not None
        return outcome


async def test_with_the_control_device_in_place_nothing_is_run(short_tmp: Path) -> None:
    node = Node(short_tmp, gpus=2)
    node.tool("nvidia-modprobe")
    (node.dev / "nvidiactl").touch()
    assert (await node.maybe_load(), node.calls) == (None, [])


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
        "could not load the nvidia kernel module: `nvidia-modprobe -c 255 -c 0` ended with 3; "
        "`modprobe nvidia` ended with 1: FATAL: Module nvidia not found.; load it on the node"
    )


async def test_without_any_tool_the_sentence_names_both(short_tmp: Path) -> None:
    outcome = await Node(short_tmp, gpus=1).load()
    assert outcome.sentence == (
        "could not load the nvidia kernel module: nvidia-modprobe is not installed; modprobe is not installed; "
        "load it on the node"
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
