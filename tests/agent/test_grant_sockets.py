"""When the agent looks which grants have a socket: soon after kubelet's calls, seldom for what a pod's author does."""

import asyncio
from pathlib import Path
from typing import Any

from deviceplugin.agent.grant_files import GrantSockets
from deviceplugin.gpu_manager.registration import RegistrationServers
from deviceplugin.kube.collection import EventKind
from deviceplugin.kube.reflector import StoreChange
from deviceplugin.ledger.ledger import Ledger
from deviceplugin.model.annotation_names import annotation_names
from tests.kubelet.makers import pod
from tests.ledger.makers import grant, inventory, open_ledger
from tests.waiting import until

NAMES = annotation_names("tencent.com")


class Rounds(GrantSockets):
    """Counts its rounds, which do nothing."""

    def __init__(self, ledger: Ledger, base: Path) -> None:
        async def register(*_: object) -> None: ...

        nobody: Any = None
        servers = RegistrationServers(base, register, lambda *_: None)
        super().__init__(ledger, nobody, servers, base=base, names=NAMES, for_all=False)
        self.count = 0

    async def _sync(self) -> None:
        self.count += 1


async def test_who_changes_a_pod_without_pause_sets_no_pace(short_tmp: Path) -> None:
    """Kubelet is asked for pods that no watch shows in each round, and every grant is looked at."""
    ledger = open_ledger(short_tmp)
    sockets = Rounds(ledger, short_tmp)
    running = asyncio.create_task(sockets.run())
    try:
        await until(lambda: sockets.count == 1)
        began = asyncio.get_running_loop().time()
        for number in range(60):
            asks = pod("busy", ("c", 5, 1), annotations={NAMES.socket: str(number % 2 == 0).lower()})
            sockets.pod_changed(StoreChange(EventKind.MODIFIED, asks))
            await asyncio.sleep(0.03)
        lasted = asyncio.get_running_loop().time() - began
        assert sockets.count <= 1 + lasted
        await until(lambda: sockets.count >= 2)
        before = sockets.count
        ledger.grant(grant("a"), inventory(1))
        await until(lambda: sockets.count > before)
    finally:
        running.cancel()
        ledger.close()
