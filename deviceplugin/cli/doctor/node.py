"""What the checks of a node look at: the agent's settings, and what they name, by the agent's own code.

In: settings. Out: the driver as NVML describes it, read once; connections to kubelet, the runtime and the API server.
Nothing is written but one file in each directory of the agent, which is removed again. `close` at the end.
"""

import asyncio
from contextlib import AsyncExitStack

from deviceplugin.config.agent import AgentSettings
from deviceplugin.hardware.discovery import Discovery, discover
from deviceplugin.hardware.node import OPEN_BUDGET_S
from deviceplugin.hardware.nvml import Nvml, NvmlLibrary
from deviceplugin.hardware.nvml_executor import NvmlExecutor
from deviceplugin.hardware.pci import loaded_version
from deviceplugin.kube.credentials import Credentials
from deviceplugin.kube.objects import ObjectClient
from deviceplugin.kube.transport import Timeouts, Transport

_LONGEST_REQUEST_S = 15.0


def _discovered(nvml: Nvml) -> Discovery:
    nvml.open()
    return discover(nvml)


class NodeSubject:
    """`closing` is for what a check opens."""

    def __init__(self, settings: AgentSettings) -> None:
        self.settings = settings
        self.closing = AsyncExitStack()
        self.credentials = Credentials(settings.node.kubeconfig)
        self.api = ObjectClient(Transport(self.credentials, timeouts=Timeouts(request=_LONGEST_REQUEST_S)))
        self._discovery: asyncio.Future[Discovery] | None = None
        self._executor = NvmlExecutor(Nvml(NvmlLibrary(root=settings.driver.root)))

    @property
    def loaded(self) -> str:
        """The version of the kernel's driver, empty if none is loaded."""
        return loaded_version(self.settings.driver.version_file)

    async def discovery(self) -> Discovery:
        """HardwareError if the driver does not answer, also after a hang."""
        if self._discovery is None:
            self._discovery = asyncio.ensure_future(
                self._executor.run(_discovered, what="reading the GPUs", budget=OPEN_BUDGET_S)
            )
        return await self._discovery

    async def close(self) -> None:
        await self.closing.aclose()
        await self.api.close()
        await self._executor.close()
