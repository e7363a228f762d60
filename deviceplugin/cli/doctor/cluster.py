"""What the checks of a cluster look at, each read once, when the first check asks for it.

In: the API server, asked as the caller. Out: the scheduler's view and its replicas with their metrics, the agents, the
nodes, the configuration of the webhook. Invariant: what could not be read raises the same error to every check.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from prometheus_client.parser import text_string_to_metric_families

from deviceplugin.cli.connection import Connection
from deviceplugin.cli.doctor.nodes import NodeFacts, SliceFacts, node_facts, slice_facts
from deviceplugin.cli.doctor.objects import (
    DAEMON_SETS,
    DEPLOYMENTS,
    NODES,
    OWN_PODS,
    Controller,
    OwnPod,
)
from deviceplugin.cli.scheduler_client import SchedulerClient
from deviceplugin.cli.view_client import ViewClient
from deviceplugin.errors import KubeNotFoundError, ParseError, VcudaError
from deviceplugin.kube.cluster_client import WEBHOOKS, WebhookConfiguration
from deviceplugin.kube.collection import ObjectKind
from deviceplugin.kube.objects import ObjectClient, ObjectRef
from deviceplugin.kube.resource_slices import ANY_OFFERS
from deviceplugin.model.cluster_view import ClusterView
from deviceplugin.model.units import DEFAULT_DOMAIN, ResourceNames

Value = TypeVar("Value")
SCHEDULER, AGENT = "vcuda-scheduler", "vcuda-agent"
_HOOK = "pods.vcuda."
_MOST_ASKED = 8
"""Agents that are asked for their version: one for each image that runs."""


@dataclass(frozen=True, slots=True)
class ReplicaMetrics:
    """A ready pod of the scheduler. `error`: why its metrics could not be read."""

    name: str
    samples: Mapping[tuple[str, tuple[tuple[str, str], ...]], float] = field(default_factory=dict)
    error: VcudaError | None = None

    def values(self, name: str, **labels: str) -> list[float]:
        """Of every sample with these labels among its own."""
        wanted = set(labels.items())
        return [value for (one, own), value in self.samples.items() if one == name and wanted <= set(own)]

    def label(self, name: str, label: str) -> str:
        return next((dict(own).get(label, "") for one, own in self.samples if one == name), "")

    @property
    def leads(self) -> bool:
        return self.values("vcuda_scheduler_leader") == [1.0]


class ClusterFacts:
    """`namespace` is that of the release; `trial_namespace` the one for a pod that is not created.

    `api` words its errors for the caller; with code 403 they say which right he lacks.
    """

    def __init__(self, api: ObjectClient, view: ViewClient, connection: Connection) -> None:
        self.api = api
        self.connection = connection
        self.namespace = connection.scheduler_namespace
        self.trial_namespace = view.client.namespace
        self._view = view
        self._known: dict[str, asyncio.Future[Any]] = {}

    @property
    def scheduler_client(self) -> SchedulerClient:
        return self._view.client

    async def _once(self, what: str, read: Callable[[], Awaitable[Value]]) -> Value:
        if what not in self._known:
            self._known[what] = asyncio.ensure_future(read())
        found: Value = await self._known[what]
        return found

    async def view(self) -> ClusterView:
        """As a replica gives it through the API server's proxy."""
        return await self._once("view", self._view.cluster)

    async def scheduler(self) -> Controller | None:
        return await self._once("scheduler", lambda: self._workload(DEPLOYMENTS, SCHEDULER))

    async def agent(self) -> Controller | None:
        return await self._once("agent", lambda: self._workload(DAEMON_SETS, AGENT))

    async def scheduler_pods(self) -> list[OwnPod]:
        return await self._once("scheduler pods", lambda: self._pods(SCHEDULER))

    async def agent_pods(self) -> list[OwnPod]:
        return await self._once("agent pods", lambda: self._pods(AGENT))

    async def replicas(self) -> list[ReplicaMetrics]:
        """The ready pods of the scheduler with their metrics; raises if none could be read."""
        return await self._once("replicas", self._replicas)

    async def webhook(self) -> WebhookConfiguration | None:
        return await self._once("webhook", self._webhook)

    async def nodes(self) -> list[NodeFacts]:
        return await self._once("nodes", self._nodes)

    async def slices(self) -> list[SliceFacts]:
        """Of all drivers; none if the cluster does not serve them."""
        return await self._once("slices", self._slices)

    async def names(self) -> ResourceNames:
        """The domain stands in the name of the webhook."""
        try:
            webhook = await self.webhook()
        except VcudaError:
            webhook = None
        hooks = [each.name for each in (webhook.webhooks or ())] if webhook else []
        domain = next((name.removeprefix(_HOOK) for name in hooks if name.startswith(_HOOK)), "")
        return ResourceNames(domain or DEFAULT_DOMAIN)

    async def agent_versions(self) -> tuple[Counter[str], str]:
        """How many agents run which version, and why some are not known; of each image one is asked."""
        images = Counter(pod.image for pod in await self.agent_pods() if pod.is_ready and pod.image)
        versions: Counter[str] = Counter()
        unknown = ""
        for image, agents in images.most_common(_MOST_ASKED):
            pod = next(each for each in await self.agent_pods() if each.is_ready and each.image == image)
            try:
                versions[await self._agent_version(pod)] += agents
            except VcudaError as error:
                unknown = unknown or error.message
        return versions, unknown

    async def _agent_version(self, pod: OwnPod) -> str:
        text = await self._metrics(f"{pod.metadata.name}:{pod.port('http')}")
        return ReplicaMetrics(pod.metadata.name, _samples(text)).label("vcuda_build_info", "version")

    async def _workload(self, kind: ObjectKind[Controller, Controller], name: str) -> Controller | None:
        what = f"get {kind.plural} in namespace {self.namespace}"
        try:
            return await self.api.get(kind, ObjectRef(self.namespace, name), what=what)
        except KubeNotFoundError:
            return None

    async def _pods(self, name: str) -> list[OwnPod]:
        what, query = f"pods in namespace {self.namespace}", {"labelSelector": f"app.kubernetes.io/name={name}"}
        return [pod async for pod in self.api.each(OWN_PODS, self.namespace, what=what, query=query)]

    async def _replicas(self) -> list[ReplicaMetrics]:
        ready = [pod.metadata.name for pod in await self.scheduler_pods() if pod.is_ready]
        found = [await self._replica(name) for name in ready]
        if found and all(each.error for each in found):
            assert found[0].error is not None
            raise found[0].error
        return found

    async def _replica(self, name: str) -> ReplicaMetrics:
        try:
            return ReplicaMetrics(name, _samples(await self._metrics(f"https:{name}:{self.connection.port}")))
        except VcudaError as error:
            return ReplicaMetrics(name, error=error)

    async def _metrics(self, pod: str) -> str:
        """`pod` with its scheme and port, through the API server's proxy."""
        what = f"get pods/proxy in namespace {self.namespace}"
        return await self.api.text(OWN_PODS, ObjectRef(self.namespace, pod), "proxy", "metrics", what=what)

    async def _webhook(self) -> WebhookConfiguration | None:
        try:
            return await self.api.get(WEBHOOKS, ObjectRef("", SCHEDULER), what=f"get {WEBHOOKS.plural}")
        except KubeNotFoundError:
            return None

    async def _nodes(self) -> list[NodeFacts]:
        """Each is reduced at once to what is needed: the annotation of a node may have 60 KiB."""
        names = await self.names()
        return [node_facts(item, names) async for item in self.api.each(NODES, what="nodes")]

    async def _slices(self) -> list[SliceFacts]:
        try:
            return [slice_facts(item) async for item in self.api.each(ANY_OFFERS, what=ANY_OFFERS.plural)]
        except KubeNotFoundError:
            return []


def _samples(text: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """ParseError for text that is no exposition."""
    try:
        return {
            (each.name, tuple(sorted(each.labels.items()))): each.value
            for family in text_string_to_metric_families(text)
            for each in family.samples
        }
    except (ValueError, KeyError, IndexError) as error:
        raise ParseError(f"metrics cannot be read: {str(error)[:100]}") from None
