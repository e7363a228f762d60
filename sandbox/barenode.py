"""A stand-in kubelet with both resources served by bare plugins: the least node on which a pod can run.

In: options of kubelet, sizes. Out: the three, registered and ready; all are stopped at the end.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from sandbox.bareplugin import BarePlugin
from sandbox.kubelet import Kubelet, KubeletOptions

CORE = "tencent.com/vcuda-core"
MEMORY = "tencent.com/vcuda-memory"
FAST = 50.0


@dataclass(frozen=True, slots=True)
class BareNode:
    """Kubelet and its two plugins."""

    kubelet: Kubelet
    core: BarePlugin
    memory: BarePlugin

    async def register(self) -> None:
        """Both plugins anew, as after a restart of kubelet."""
        for plugin in (self.core, self.memory):
            await plugin.stop()
            await plugin.serve()
            await plugin.register(self.kubelet.options.kubelet_socket)
        await self.kubelet.wait_registered(CORE, MEMORY)


def fast(root: Path) -> KubeletOptions:
    """A kubelet whose own periods are short, and whose restart leaves plugins a moment only."""
    return KubeletOptions(root=root, speed=FAST, first_sync_s=0.1)


@asynccontextmanager
async def bare_node(options: KubeletOptions, *, cores: int = 200, blocks: int = 64) -> AsyncIterator[BareNode]:
    """Devices are c000... and m000..., without NUMA nodes."""
    directory = options.plugin_dir
    core = BarePlugin(CORE, directory / "vcore.sock", {f"c{number:03}": -1 for number in range(cores)})
    memory = BarePlugin(MEMORY, directory / "vmemory.sock", {f"m{number:03}": -1 for number in range(blocks)})
    async with Kubelet(options) as kubelet:
        node = BareNode(kubelet, core, memory)
        try:
            await node.register()
            yield node
        finally:
            await core.stop()
            await memory.stop()
