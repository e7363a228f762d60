"""What the checks of a cluster look at, each read once, when the first check asks for it.

In: the API server, asked as the caller. Out: the scheduler's view and its replicas with their metrics, the agents, the
nodes, the configuration of the webhook; the rights that the caller lacks. Invariant: what could not be read raises the
same error to every check. A pod of vcuda's own has a schema of its own: ports, images, restarts and kubelet's words
would cost the agents time and memory for every pod, if they stood in theirs.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, TypeVar

import msgspec
from prometheus_client.parser import text_string_to_metric_families

from deviceplugin.cli.doctor.nodes import NodeFacts, node_facts
from deviceplugin.cli.scheduler_client import SchedulerClient
from deviceplugin.errors import KubeNotFoundError, ParseError, VcudaError, one_line
from deviceplugin.kube.client import ObjectClient
from deviceplugin.kube.cluster_client import WEBHOOKS, WebhookConfiguration
from deviceplugin.kube.collection import ObjectKind, ObjectRef
from deviceplugin.kube.resource_slices import ANY_OFFERS
from deviceplugin.kube.structs import ClusterNodeObject, Condition, Json, Object
from deviceplugin.model.cluster_view import ClusterView
from deviceplugin.model.units import DEFAULT_DOMAIN, ResourceNames


class _ControllerSpec(Json):
    replicas: int | None = None


class _ControllerStatus(Json):
    replicas: int = 0
    ready_replicas: int = 0
    updated_replicas: int = 0
    desired_number_scheduled: int = 0
    number_ready: int = 0
    updated_number_scheduled: int = 0


class Controller(Object):
    """A Deployment or a DaemonSet."""

    spec: _ControllerSpec = msgspec.field(default_factory=_ControllerSpec)
    status: _ControllerStatus = msgspec.field(default_factory=_ControllerStatus)


class _WaitingState(Json):
    reason: str | None = None
    message: str | None = None


class _ContainerState(Json):
    waiting: _WaitingState | None = None


class _ContainerStatus(Json):
    name: str = ""
    ready: bool = False
    restart_count: int = 0
    image: str = ""
    image_id: str = msgspec.field(default="", name="imageID")
    state: _ContainerState | None = None


class _ContainerPort(Json):
    name: str = ""
    container_port: int = 0


class _OwnContainer(Json):
    name: str = ""
    image: str = ""
    ports: list[_ContainerPort] | None = None


class _PodSpec(Json):
    node_name: str | None = None
    containers: list[_OwnContainer] | None = None
    init_containers: list[_OwnContainer] | None = None


class _PodStatus(Json):
    phase: str = ""
    conditions: list[Condition] | None = None
    container_statuses: list[_ContainerStatus] | None = None
    init_container_statuses: list[_ContainerStatus] | None = None


class OwnPod(Object):
    """A pod of the agent or of the scheduler."""

    spec: _PodSpec = msgspec.field(default_factory=_PodSpec)
    status: _PodStatus = msgspec.field(default_factory=_PodStatus)

    @property
    def is_ready(self) -> bool:
        return any(each.type == "Ready" and each.status == "True" for each in self.status.conditions or ())

    def port(self, name: str) -> int:
        """0 if no container has a port of this name."""
        ports = [each for one in self.spec.containers or () for each in one.ports or ()]
        return next((each.container_port for each in ports if each.name == name), 0)

    @property
    def image(self) -> str:
        """That of the container of ours, by its digest where it is known; empty before it runs."""
        every = [*(self.status.container_statuses or ()), *(self.status.init_container_statuses or ())]
        return next((each.image_id or each.image for each in every if each.name in ("agent", "extender")), "")

    @property
    def restarts(self) -> dict[str, int]:
        """By container; of those that kubelet knows."""
        every = [*(self.status.init_container_statuses or ()), *(self.status.container_statuses or ())]
        return {each.name: each.restart_count for each in every}

    @property
    def images(self) -> dict[str, str]:
        """By container; the agent's driver and the scheduler's kube-scheduler can be of other images."""
        return {each.name: each.image for each in (*(self.spec.init_containers or ()), *(self.spec.containers or ()))}

    @property
    def waits(self) -> dict[str, str]:
        """By container, in the order of their start: why kubelet does not start it, in its words."""
        every = [*(self.status.init_container_statuses or ()), *(self.status.container_statuses or ())]
        waiting = [(each.name, each.state.waiting) for each in every if each.state and each.state.waiting]
        return {
            name: f"{state.reason}{': ' if state.message else ''}{one_line(state.message or '')}"
            for name, state in waiting
            if state.reason not in (None, "PodInitializing", "ContainerCreating")
        }

    @property
    def trouble(self) -> str:
        """Why a container does not run, as kubelet says it."""
        if waits := self.waits:
            return " ".join(next(iter(waits.items())))
        every = [*(self.status.init_container_statuses or ()), *(self.status.container_statuses or ())]
        return next((f"{each.name} is not ready" for each in every if not each.ready), self.status.phase)


async def lacking(api: ObjectClient, rights: Iterable[tuple[str, ...]], *, namespace: str = "") -> list[str]:
    """Of the rights, each a verb, a resource, a subresource and perhaps a name, those that the caller lacks."""
    found = []
    for verb, resource, below, *name in rights:
        if not await api.may(verb, resource, below=below, name="".join(name), namespace=namespace):
            found.append(f"{verb} {resource}{'/' if below else ''}{below}")
    return found


DEPLOYMENTS = ObjectKind("apps/v1", "deployments", "Deployment", "deployment", Controller, lambda found: found)
DAEMON_SETS = ObjectKind("apps/v1", "daemonsets", "DaemonSet", "daemon set", Controller, lambda found: found)
OWN_PODS = ObjectKind("v1", "pods", "Pod", "pod", OwnPod, lambda found: found)
NAMESPACES = ObjectKind("v1", "namespaces", "Namespace", "namespace", Object, lambda found: found.metadata.labels or {})
NODES = ObjectKind("v1", "nodes", "Node", "node", ClusterNodeObject, lambda found: found)

Value = TypeVar("Value")
SCHEDULER, AGENT = "vcuda-scheduler", "vcuda-agent"
_HOOK = "pods.vcuda."
_MOST_ASKED = 8
"""Agents that are asked for their version: one for each image that runs."""


class ReplicaMetrics(msgspec.Struct, frozen=True):
    """A ready pod of the scheduler. `error`: why its metrics could not be read."""

    name: str
    samples: Mapping[tuple[str, tuple[tuple[str, str], ...]], float] = msgspec.field(default_factory=dict)
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


def _once(read: Callable[["ClusterFacts"], Awaitable[Value]]) -> Callable[["ClusterFacts"], Awaitable[Value]]:
    """Every caller gets what the first one has read, or its error."""

    async def known(facts: "ClusterFacts") -> Value:
        if read not in facts.known:
            facts.known[read] = asyncio.ensure_future(read(facts))
        found: Value = await facts.known[read]
        return found

    return known


class ClusterFacts:
    """`namespace` is that of the release; `trial_namespace` the one for a pod that is not created.

    `api` words its errors for the caller; with code 403 they say which right he lacks.
    """

    def __init__(self, client: SchedulerClient) -> None:
        assert client.api is not None  # it is with a kubeconfig
        self.api = client.api
        self.scheduler_client = client
        self.connection = client.connection
        self.namespace = client.connection.scheduler_namespace
        self.trial_namespace = client.namespace
        self.known: dict[object, asyncio.Future[Any]] = {}

    @_once
    async def view(self) -> ClusterView:
        """As a replica gives it through the API server's proxy."""
        return await self.scheduler_client.cluster()

    @_once
    async def scheduler(self) -> Controller | None:
        return await self._workload(DEPLOYMENTS, SCHEDULER)

    @_once
    async def agent(self) -> Controller | None:
        return await self._workload(DAEMON_SETS, AGENT)

    @_once
    async def scheduler_pods(self) -> list[OwnPod]:
        return await self._pods(SCHEDULER)

    @_once
    async def agent_pods(self) -> list[OwnPod]:
        return await self._pods(AGENT)

    @_once
    async def replicas(self) -> list[ReplicaMetrics]:
        """The ready pods of the scheduler with their metrics; raises if none could be read."""
        ready = [pod.metadata.name for pod in await self.scheduler_pods() if pod.is_ready]
        found = [await self._replica(name) for name in ready]
        if found and all(each.error for each in found):
            assert found[0].error is not None
            raise found[0].error
        return found

    @_once
    async def webhook(self) -> WebhookConfiguration | None:
        try:
            return await self.api.get(WEBHOOKS, ObjectRef("", SCHEDULER), what=f"get {WEBHOOKS.plural}")
        except KubeNotFoundError:
            return None

    @_once
    async def nodes(self) -> list[NodeFacts]:
        """Each is reduced at once to what is needed: the annotation of a node may have 60 KiB."""
        names = await self.names()
        return [node_facts(item, names) async for item in self.api.each(NODES, what="nodes")]

    @_once
    async def slices(self) -> set[tuple[str, str]]:
        """Of all drivers, each with the texts that its slices hold; none if the cluster does not serve slices."""
        try:
            offers = self.api.each(ANY_OFFERS, what=ANY_OFFERS.plural)
            return {(item.driver, text) async for item in offers for text in item.texts}
        except KubeNotFoundError:
            return set()

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

    async def _replica(self, name: str) -> ReplicaMetrics:
        try:
            return ReplicaMetrics(name, _samples(await self._metrics(f"https:{name}:{self.connection.port}")))
        except VcudaError as error:
            return ReplicaMetrics(name, error=error)

    async def _metrics(self, pod: str) -> str:
        """`pod` with its scheme and port, through the API server's proxy."""
        what = f"get pods/proxy in namespace {self.namespace}"
        return await self.api.text(OWN_PODS, ObjectRef(self.namespace, pod), "proxy", "metrics", what=what)


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
