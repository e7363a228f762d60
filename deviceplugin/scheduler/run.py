"""`vcuda scheduler` from start to stop, on one event loop.

In: settings. Out: an exit; a VcudaError if it cannot run. The listener starts first, so that probes can say what is
missing; then nodes and pods are listed, certificates made or read, and a leader found. SIGTERM and SIGINT end it in
order: not ready, drain, requests in flight, release of the Lease. SIGKILL loses nothing: all state is in the cluster.

Python's cycle collector is set so that filter and bind never wait for a long collection.

In: nothing; the collector belongs to the process. Out: its thresholds. A collection takes about 1 us for each object,
and a large cluster has two million objects that stay. So each object is examined at most twice, together with objects
of the same age, and then frozen: the longest pause is that of `_YOUNG * (_MIDDLE + 2)` objects, however large the
cluster is. Of two pairs with that product the one with fewer young collections costs less: what is in flight stays.
The collector is never off, so an API server that is down for hours costs no memory; `collect_all` finds cycles that
were frozen while in use.
"""

import asyncio
import contextlib
import gc
import signal
import time
from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import structlog

from deviceplugin import __version__
from deviceplugin.cluster.extender.extender import Extender
from deviceplugin.cluster.extender.turns import Turns
from deviceplugin.cluster.http.server import SchedulerServer
from deviceplugin.cluster.view.live import LiveUse
from deviceplugin.cluster.view.views import Installation
from deviceplugin.cluster.webhook.review import AdmissionWebhook
from deviceplugin.config.scheduler import Election, SchedulerSettings
from deviceplugin.errors import VcudaError, first_error
from deviceplugin.kube.cluster_client import ClusterClient, addresses_by_name, addresses_by_node
from deviceplugin.kube.credentials import Credentials
from deviceplugin.kube.events import EventReason, EventRecorder, Rate
from deviceplugin.kube.transport import TokenBucket, Transport
from deviceplugin.model.allocation import PodRef
from deviceplugin.scheduler.claim_templates import ClaimTemplates
from deviceplugin.scheduler.cluster import ClusterWatch
from deviceplugin.scheduler.leader_link import LeaderLink
from deviceplugin.scheduler.leadership import Leadership, leadership_of
from deviceplugin.scheduler.service import SchedulerService, volcano_service
from deviceplugin.scheduler.serving_certificate import Certificates
from deviceplugin.scheduler.view_service import ViewService
from deviceplugin.serve.connections import raise_descriptor_limit
from deviceplugin.serve.token_file import TokenFile

_YOUNG = 3_300
_MIDDLE = 1
_NEVER = 1_000_000
_LISTING_THRESHOLDS = (50_000, 20, 1_000)
_COLLECT_ALL_EVERY_S = 3_600.0


def relax_while_listing() -> None:
    """For the start: no request is answered yet and new objects stay, so full collections are pointless."""
    gc.set_threshold(*_LISTING_THRESHOLDS)


def freeze_survivors() -> None:
    """Freezes all objects now, and from now on those that survive a second collection."""
    if _freeze not in gc.callbacks:
        gc.callbacks.append(_freeze)
    gc.set_threshold(_YOUNG, _MIDDLE, _NEVER)
    gc.collect()


async def collect_all(every: float = _COLLECT_ALL_EVERY_S) -> None:
    """Pauses the process for up to a second, once an hour."""
    while True:
        await asyncio.sleep(every)
        gc.unfreeze()
        gc.collect()


def _freeze(phase: str, info: Mapping[str, int]) -> None:
    if phase == "stop" and info["generation"] > 0:
        gc.freeze()


log = structlog.get_logger("vcuda.scheduler")
_EXPIRE_EVERY_S = 1.0
_CONNECTIONS = 128
_AGENTS = "vcuda-agent"
"""The Service of the agents, in the scheduler's namespace."""

_PORT = "https"
"""Of the scheduler's own Service: what it is called there."""

_END_WITHIN_S = 10.0
"""For running requests to end after the drain, and once more for Bindings whose callers have gone."""

_RESIGN_WITHIN_S = 2.0
_COMPONENT = "vcuda-scheduler"
_TEMPLATES_PART = 4
"""Of the requests a second that the API server may get, templates have at most a fourth."""
_EVENTS = Rate(burst=25, seconds=0.1, queue=1000)
"""A full cluster that starts binds hundreds of pods a second; then some have no event, and every one its annotation."""


def run(settings: SchedulerSettings) -> None:
    """Runs until a signal; raises the VcudaError that ended it."""
    raise_descriptor_limit()
    with first_error():
        asyncio.run(_serve(settings))
    log.info("scheduler_stopped")


async def _serve(settings: SchedulerSettings) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    writes = TokenBucket(rate=settings.cluster.requests_per_second, burst=settings.cluster.requests_per_second)
    credentials = Credentials(settings.cluster.kubeconfig)
    await credentials.access()  # ConfigError before anything else is started
    transport = Transport(credentials, connections=_CONNECTIONS)
    async with ClusterClient(transport, names=settings.names, writes=writes) as client:
        agents = partial(addresses_by_node, client, settings.cluster.namespace, _AGENTS)
        live = LiveUse(agents, TokenFile(settings.cluster.agent_token_file))
        try:
            await _work(settings, client, live, stop)
        finally:
            await live.close()


def _installation(settings: SchedulerSettings) -> Installation:
    return Installation(
        version=__version__,
        namespace=settings.cluster.namespace,
        resource_domain=settings.cluster.resource_domain,
        node_label=settings.serving.node_label,
        grafana_url=settings.serving.grafana_url,
    )


async def _work(settings: SchedulerSettings, client: ClusterClient, live: LiveUse, stop: asyncio.Event) -> None:
    began = time.monotonic()
    relax_while_listing()
    leadership = leadership_of(settings, client)
    events = EventRecorder(client, node=leadership.identity, component=_COMPONENT, rate=_EVENTS)
    placed, unbound = partial(_tell, events, EventReason.PLACED), partial(_tell, events, EventReason.NOT_BOUND)
    placement = replace(settings.placement, names=settings.names, scheduler=settings.webhook.scheduler_name)
    extender = Extender(client, placement, placed=placed, unbound=unbound)
    volcano, turns = None, Turns()
    if settings.callers.volcano:
        volcano = volcano_service(extender, client, clock=time.monotonic, turns=turns)
    templates = _claim_templates(settings, client, leadership, events)
    watch = ClusterWatch(client, extender, names=settings.names, claims=settings.cluster.claims)
    certificates = Certificates(settings, client)
    link = _leader_link(settings, client, leadership, certificates)
    service = SchedulerService(
        extender=extender,
        webhook=AdmissionWebhook(replace(settings.webhook, names=settings.names, one_node=placement.one_node)),
        cluster=watch,
        leadership=leadership,
        certificates=certificates,
        names=settings.names,
        link=link,
        views=ViewService(extender, leadership, client, live, _installation(settings)),
        loopback_only=settings.callers.ca_file is None or settings.leader.election is Election.KUBE_SCHEDULER,
        clients=() if settings.callers.ca_file is None else settings.callers.names,
        volcano=volcano,
        turns=turns,
        templates=templates,
    )
    server = SchedulerServer(service, context=certificates.tls.context, version=__version__)
    serving = settings.serving
    await server.start(serving.address, serving.port, loopback_port=serving.loopback_port, end_within=_END_WITHIN_S)
    log.info("server_listening", address=serving.address, port=server.port)
    try:
        async with asyncio.TaskGroup() as group:
            parts = (
                group.create_task(watch.run(), name="cluster"),
                group.create_task(leadership.run(), name="leadership"),
                group.create_task(service.views.run(), name="history"),
                group.create_task(certificates.run(), name="certificates"),
                group.create_task(extender.wake_up.run(), name="wake-up"),
                group.create_task(events.run(), name="events"),
                *(() if templates is None else (group.create_task(templates.run(), name="claim templates"),)),
                *(() if volcano is None else (group.create_task(volcano.announcements.run(), name="annotations"),)),
                group.create_task(_expire(extender), name="reservations"),
                group.create_task(_resolve(extender), name="Bindings in doubt"),
                group.create_task(collect_all(), name="garbage"),
                group.create_task(_log_ready(service, watch, certificates, began), name="ready"),
            )
            await stop.wait()
            log.info("scheduler_stopping", drain_s=serving.drain)
            # All parts keep running meanwhile, so requests get the same answers as before.
            await server.stop(drain=serving.drain)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_END_WITHIN_S):
                    await extender.drain()
            with contextlib.suppress(VcudaError, TimeoutError):
                async with asyncio.timeout(_RESIGN_WITHIN_S):
                    await leadership.resign()
            for part in parts:
                part.cancel()
    finally:
        await server.stop()
        await link.close()


def _leader_link(
    settings: SchedulerSettings, client: ClusterClient, leadership: Leadership, certificates: Certificates
) -> LeaderLink:
    namespace, service = settings.cluster.namespace, settings.certificates.service
    replicas = partial(addresses_by_name, client, namespace, service, port=_PORT)
    return LeaderLink(leadership, replicas, certificates.peers, name=f"{service}.{namespace}.svc")


def _claim_templates(
    settings: SchedulerSettings, client: ClusterClient, leadership: Leadership, events: EventRecorder
) -> ClaimTemplates | None:
    """Only where the webhook refers pods to templates: other clusters need not have the API."""
    if not settings.webhook.claims:
        return None
    rate = max(1, settings.cluster.requests_per_second // _TEMPLATES_PART)
    return ClaimTemplates(
        client,
        settings.names,
        leads=lambda: leadership.leads,
        refused=partial(_tell, events, EventReason.CLAIM_REFUSED),
        writes=TokenBucket(rate=rate, burst=rate),
    )


def _tell(events: EventRecorder, reason: EventReason, pod: PodRef, why: str) -> None:
    events.about_pod(pod, reason, why)


async def _expire(extender: Extender) -> None:
    while True:
        await asyncio.sleep(_EXPIRE_EVERY_S)
        extender.expire()


async def _resolve(extender: Extender) -> None:
    while True:
        await asyncio.sleep(_EXPIRE_EVERY_S)
        await extender.resolve()


async def _log_ready(service: SchedulerService, watch: ClusterWatch, certificates: Certificates, began: float) -> None:
    await watch.synced.wait()
    freeze_survivors()
    await certificates.ready.wait()
    gpus = service.gpus_by_node
    log.info("scheduler_ready", seconds=round(time.monotonic() - began, 3), nodes=len(gpus), gpus=sum(gpus))
