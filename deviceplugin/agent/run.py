"""`vcuda agent` from start to stop, on one event loop.

In: settings. Out: an exit; VcudaError if it cannot run. Order at start: kubelet's calls for claims, which wait; the
lock (one agent per node), the journal, the HTTP endpoints (so that probes can say what the agent waits for), the GPUs,
one round of the reconciler, and only then the device plugin. The API server is connected in parallel. SIGTERM and
SIGINT end the agent in order; SIGKILL at any instruction loses nothing.
"""

import asyncio
import contextlib
import gc
import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import structlog

from deviceplugin import __version__
from deviceplugin.agent.handover import only_agent
from deviceplugin.agent.wiring import AgentBase, NodeAgent, build_agent, build_base
from deviceplugin.config.agent import AgentSettings
from deviceplugin.errors import ConfigError, first_error
from deviceplugin.gpu_manager import views
from deviceplugin.gpu_manager.views import DisplayServer
from deviceplugin.hardware.health import RecoveryRules, parse_policy
from deviceplugin.hardware.node import Hardware, HardwareOptions
from deviceplugin.hardware.pci import ModuleTools, read_text
from deviceplugin.hardware.state import InventoryChange
from deviceplugin.kubelet.devices import catalog
from deviceplugin.kubelet.dra.link import DraLink
from deviceplugin.ledger.journal import Journal
from deviceplugin.ledger.ledger import Ledger
from deviceplugin.ledger.reconcile import rebuild
from deviceplugin.model.claims import ClaimNames
from deviceplugin.model.gpu import Inventory
from deviceplugin.observe.http import QueryServer
from deviceplugin.observe.node_view import Rendering
from deviceplugin.serve.connections import raise_descriptor_limit
from deviceplugin.serve.token_file import TokenFile

log = structlog.get_logger("vcuda.agent")
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_FIRST_ROUND_S = 1.0
_SYNC_WAIT_S = 2.0
_WATCH_AGE_S = 10.0


def run(settings: AgentSettings) -> None:
    """Until a signal; raises the VcudaError that ended the agent."""
    raise_descriptor_limit()
    asyncio.run(_serve(settings))
    log.info("agent_stopped")


async def _serve(settings: AgentSettings) -> None:
    work = asyncio.create_task(_work(settings), name="work")

    def stop() -> None:
        if not work.cancelling():  # a second signal must not interrupt the orderly end
            log.info("agent_stopping")
            work.cancel()

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop)
    with first_error(), contextlib.suppress(asyncio.CancelledError):
        await work


async def _work(settings: AgentSettings) -> None:
    link = None
    if settings.kubelet.dra:
        names = ClaimNames(settings.names.domain)
        link = DraLink(driver=names.driver, root=settings.kubelet.root, pool=settings.node.name)
    async with only_agent(settings, link):
        await _work_alone(settings, link)


async def _work_alone(settings: AgentSettings, link: DraLink | None) -> None:
    began = time.monotonic()
    ledger = _open_ledger(settings)
    hardware = Hardware(_hardware_options(settings))
    base = build_base(settings, ledger, hardware, link)
    try:
        # The stack is outside the group: what the tasks use is closed after they have ended.
        async with _views(base), contextlib.AsyncExitStack() as closing, asyncio.TaskGroup() as group:
            closing.push_async_callback(base.cluster.close)
            found = asyncio.Event()
            if settings.driver.wait_for_driver:
                found.set()
            group.create_task(_cluster(base, found), name="cluster")
            await hardware.start()
            found.set()
            agent = build_agent(base)
            closing.push_async_callback(agent.close)
            await _prepare(base, agent)
            _follow_hardware(base, agent)
            group.create_task(agent.link.run(), name="kubelet")
            if agent.claims is not None:
                group.create_task(agent.claims.run(), name="claims")
            group.create_task(_reconcile(base, agent), name="reconciler")
            group.create_task(agent.limits.run(), name="limits that pods change")
            group.create_task(agent.mirroring.run(), name="driver mirror")
            group.create_task(agent.sockets.run(), name="registration of containers")
            group.create_task(agent.watch.run(), name="use of containers")
            gpus = len(agent.feed.catalog.inventory.gpus)
            log.info("agent_running", seconds=round(time.monotonic() - began, 3), gpus=gpus)
            _favour_latency()
            await asyncio.Event().wait()
    finally:
        await hardware.stop()
        ledger.close()


async def _cluster(base: AgentBase, found: asyncio.Event) -> None:
    """If driver and kubeconfig are missing, the error names the driver: without it the node is no GPU node."""
    try:
        await base.cluster.run()
    except ConfigError:
        await found.wait()
        raise


def _favour_latency() -> None:
    """Kubelet's sync loop waits for each Allocate: no long garbage collection, and no 5 ms turn of another thread.

    Measured with 280,000 objects: the longest pause is 78 ms, after `gc.freeze` 12 ms on a busy machine.
    """
    gc.freeze()
    sys.setswitchinterval(0.001)


def _open_ledger(settings: AgentSettings) -> Ledger:
    ledger = Ledger(Journal.open(settings.allocation.checkpoint_path / "ledger.journal"))
    for sentence in ledger.warnings:
        log.warning("journal_damaged", error=sentence)
    return ledger


def _hardware_options(settings: AgentSettings) -> HardwareOptions:
    driver = settings.driver
    tools = os.pathsep.join(str(driver.root / each) for each in ("usr/bin", "usr/sbin", "bin", "sbin"))
    return HardwareOptions(
        driver_root=driver.root,
        cache_path=settings.allocation.checkpoint_path / "inventory.json",
        device_root=driver.device_root / "dev",
        sample_period_s=driver.sample_period,
        wait_for_driver=driver.wait_for_driver,
        modules=ModuleTools(path=tools),
        xids=parse_policy(ignored=driver.ignored_xids, critical=driver.critical_xids),
        recovery=RecoveryRules(quiet_s=driver.health_recovery),
    )


@contextlib.asynccontextmanager
async def _views(base: AgentBase) -> AsyncIterator[None]:
    settings = base.settings.query
    rendering = Rendering(base.view, period_s=base.settings.driver.sample_period)
    query = QueryServer(
        rendering,
        base.metrics,
        views,
        version=__version__,
        names_for_all=settings.names_for_all,
        names=TokenFile(settings.token_file),
    )
    display = DisplayServer(rendering, version=__version__)
    await query.start(settings.address, settings.port)
    try:
        if settings.display_socket is not None:
            await display.start(settings.display_socket)
        log.info("http_listening", address=settings.address, port=query.port)
        yield
    finally:
        await display.stop()
        await query.stop()
        rendering.close()


async def _prepare(base: AgentBase, agent: NodeAgent) -> None:
    """What must be true before kubelet may ask: the files exist, and the ledger is complete."""
    agent.files.open(read_text(_BOOT_ID))
    await agent.mirroring.look()
    is_incomplete = not base.ledger.grants() or bool(base.ledger.warnings)
    recorded = agent.reconciler.recorded() if is_incomplete else None
    if is_incomplete and (recorded is None or not recorded.exists):
        agent.reconciler.mark_incomplete()
    if recorded is not None and recorded.entries:
        # Kubelet's checkpoint keeps ended pods too; the API server says which of them still exist.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_SYNC_WAIT_S):
                await base.cluster.reflector.synced.wait()
    try:
        async with asyncio.timeout(_FIRST_ROUND_S):
            saw_pods = await agent.reconciler.reconcile()
    except TimeoutError:
        saw_pods = False
    if recorded is not None and not saw_pods:
        agent.reconciler.adopt(rebuild(recorded, base.view.inventory(), created=time.time()).grants)


def _follow_hardware(base: AgentBase, agent: NodeAgent) -> None:
    shown: list[Inventory] = []

    def show(inventory: Inventory) -> None:
        offered = agent.offers.for_plugin(inventory)
        if shown == [offered]:
            return
        shown[:] = [offered]
        agent.feed.publish(catalog(offered, numa=base.settings.allocation.numa))
        base.cluster.publisher.show(offered)

    def changed(change: InventoryChange) -> None:
        show(change.inventory)
        if change.gpus_changed:
            agent.files.follow(change.inventory)
        agent.mirroring.soon()
        for one in change.health:
            agent.report.health_changed(one, change.inventory)

    base.hardware.subscribe(changed)
    if base.settings.kubelet.dra:
        base.ledger.subscribe(lambda: show(base.view.inventory()))  # a GPU may now be free for the other way to ask
    show(base.view.inventory())
    agent.files.follow(base.view.inventory())


async def _reconcile(base: AgentBase, agent: NodeAgent) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(agent.reconciler.run())
        reflector = base.cluster.reflector
        await reflector.synced.wait()
        agent.reconciler.soon()
        while True:
            age = reflector.last_event_age
            if age is not None:
                base.metrics.event_seen(time.time() - age)
            await asyncio.sleep(_WATCH_AGE_S)
