"""One agent serves a node; with claims, the next one starts while it still does.

In: settings, the link to kubelet. Out: a block in which this process is the node's only agent. Without claims, a second
agent is refused. With claims, kubelet repeats a call that fails only after a minute, so none may fail while a DaemonSet
is updated: the new agent registers first, gives calls to its predecessor until that has ended, and answers those that
come then itself. Invariant: who is in the block holds the lock of the ledger.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager

import structlog

from deviceplugin.config.agent import AgentSettings
from deviceplugin.errors import AgentRunningError
from deviceplugin.kubelet.dra.link import DraLink
from deviceplugin.ledger.durable_files import agent_lock
from deviceplugin.observe.http import standing_by

log = structlog.get_logger("vcuda.agent")
_LOOK_S = 0.05


@asynccontextmanager
async def only_agent(settings: AgentSettings, link: DraLink | None) -> AsyncIterator[None]:
    """`link` runs from the beginning, so that kubelet's calls wait instead of failing; AgentRunningError without it."""
    with ExitStack() as held:
        if link is None:
            held.enter_context(agent_lock(settings.allocation.checkpoint_path))
            yield
            return
        link.start()
        try:
            await _take_over(held, settings, link)
            yield
        finally:
            await link.stop()


async def _take_over(held: ExitStack, settings: AgentSettings, link: DraLink) -> None:
    if (refusal := _take(held, settings)) is not None:
        log.warning("agent_waits", reason=refusal)
        query = settings.query
        async with standing_by(query.address, query.port, is_ready=lambda: link.is_registered):
            while True:
                await asyncio.sleep(_LOOK_S)
                if _take(held, settings) is None:
                    break
        log.info("agent_takes_over")
    try:
        link.remove_dead()
    except OSError as error:
        log.warning("stale_sockets_not_removed", error=str(error))


def _take(held: ExitStack, settings: AgentSettings) -> str | None:
    """Why not, if it is not taken: an flock cannot be waited for on the loop."""
    try:
        held.enter_context(agent_lock(settings.allocation.checkpoint_path))
    except AgentRunningError as error:
        return error.message
    return None
