"""The stand-in kubelet behaves as the real one where research states facts."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.fakes.apiserver import container, pod
from tests.fakes.bareplugin import BarePlugin
from tests.fakes.kubelet import Kubelet, KubeletOptions

CORE = "tencent.com/vcuda-core"
MEMORY = "tencent.com/vcuda-memory"


def plugins(kubelet: Kubelet, *, cores: int = 200, blocks: int = 64) -> tuple[BarePlugin, BarePlugin]:
    directory = kubelet.options.plugin_dir
    return (
        BarePlugin(CORE, directory / "vcore.sock", {f"c{i:03}": -1 for i in range(cores)}),
        BarePlugin(MEMORY, directory / "vmemory.sock", {f"m{i:03}": -1 for i in range(blocks)}),
    )


@asynccontextmanager
async def node(root: Path, **options: object) -> AsyncIterator[tuple[Kubelet, BarePlugin, BarePlugin]]:
    """A kubelet whose clock is fast, with both resources registered."""
    settings = KubeletOptions(root=root, **({"speed": 50.0} | options))  # type: ignore[arg-type]
    async with Kubelet(settings) as kubelet:
        core, memory = plugins(kubelet)
        try:
            for plugin in (core, memory):
                await plugin.serve()
                await plugin.register(settings.kubelet_socket)
            await kubelet.wait_registered(CORE, MEMORY)
            yield kubelet, core, memory
        finally:
            await core.stop()
            await memory.stop()


async def test_a_plugin_registers_and_a_pod_gets_its_devices(short_tmp: Path) -> None:
    async with node(short_tmp) as (kubelet, _, _):
        verdict = await kubelet.admit(pod("a", container(cores=30, blocks=4)))
        assert verdict.admitted
        await kubelet.wait_running(verdict.uid)
        view = kubelet.container_view(verdict.uid, "main")
        assert len(view.env["VCUDA_CORE"].split(",")) == 30
        assert len(view.env["VCUDA_MEMORY"].split(",")) == 4
        assert [call.method for call in kubelet.calls.all if call.uid].count("PreStartContainer") == 2
