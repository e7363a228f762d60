"""The fields of Kubernetes' objects that `vcuda doctor` looks at, and the reading of them with the caller's own rights.

In: a `SchedulerClient`. Out: structs. KubeError with code 403 says which right the caller lacks; any other answer that
is not the object is a KubeError or a ParseError with one sentence. Lists are read in pages, and each item is reduced to
what is needed of it at once: the annotation of a node may have 60 KiB.
"""

from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar
from urllib.parse import quote

import msgspec

from deviceplugin.cli.scheduler_client import Answer, SchedulerClient
from deviceplugin.errors import ConfigError, KubeError, KubeNotFoundError, one_line
from deviceplugin.kube.api_errors import lacks_right
from deviceplugin.kube.structs import Json, Object, Page, StatusObject, decode

Read = TypeVar("Read")
Kept = TypeVar("Kept")
_PAGE = "250"
_MOST_PAGES = 400
APPS = "/apis/apps/v1"


class Requirement(Json):
    """One expression of a label selector."""

    key: str = ""
    operator: str = ""
    values: list[str] | None = None

    def is_met(self, labels: Mapping[str, str]) -> bool:
        """As Kubernetes has it: NotIn is also met by what has no such label."""
        listed = labels.get(self.key) in (self.values or ())
        has = self.key in labels
        return {"In": listed, "NotIn": not listed, "Exists": has, "DoesNotExist": not has}.get(self.operator, True)


class _Selector(Json):
    match_expressions: list[Requirement] | None = None


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


class _ServiceReference(Json):
    name: str = ""
    namespace: str = ""


class _HookClient(Json):
    service: _ServiceReference | None = None
    ca_bundle: str = ""


class _Hook(Json):
    name: str = ""
    client_config: _HookClient = msgspec.field(default_factory=_HookClient)
    failure_policy: str = "Fail"
    namespace_selector: _Selector | None = None


class WebhookConfiguration(Object):
    """A MutatingWebhookConfiguration."""

    webhooks: list[_Hook] | None = None

    def excluding(self, namespace: str, labels: Mapping[str, str]) -> str:
        """The label by which the webhook leaves out a namespace; empty if it serves it."""
        known = {**labels, "kubernetes.io/metadata.name": namespace}
        selector = self.webhooks[0].namespace_selector if self.webhooks else None
        every = (selector.match_expressions if selector else None) or ()
        return next((each.key for each in every if not each.is_met(known)), "")


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


class _PodCondition(Json):
    type: str = ""
    status: str = ""


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
    conditions: list[_PodCondition] | None = None
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


@dataclass(frozen=True, slots=True)
class Objects:
    """`right` is what RBAC calls it, as in `list nodes`."""

    client: SchedulerClient

    async def one(self, path: str, kind: type[Read], *, right: str) -> Read:
        return decode(kind, (await self._get(path, {}, right)).body, what=path)

    async def each(
        self, path: str, kind: type[Read], keep: Callable[[Read], Kept], *, right: str, labels: str = ""
    ) -> list[Kept]:
        query = {"labelSelector": labels} if labels else {}
        return [keep(item) async for item in self.stream(path, kind, right=right, query=query)]

    async def stream(
        self, path: str, kind: type[Read], *, right: str, query: Mapping[str, str] | None = None
    ) -> AsyncIterator[Read]:
        """One page is in memory at a time."""
        asked, token = {"limit": _PAGE, **(query or {})}, ""
        for _ in range(_MOST_PAGES):
            answer = await self._get(path, asked | ({"continue": token} if token else {}), right)
            page = decode(Page, answer.body, what=path)
            for item in page.items or ():
                yield decode(kind, item, what=path)
            token = (page.metadata.continue_ or "") if page.metadata else ""
            if not token:
                return
        raise KubeError(f"{path} has more than {_MOST_PAGES} pages; this is not looked at any further")

    async def text(self, path: str, *, right: str, query: Mapping[str, str] | None = None) -> str:
        return (await self._get(path, query or {}, right)).body.decode(errors="replace")

    async def post(self, path: str, document: object, query: Mapping[str, str] | None = None) -> Answer:
        """Whatever the API server answers."""
        return _used(await self.client.post_api(path, query or {}, document))

    async def may(self, verb: str, resource: str, *, name: str = "", namespace: str = "") -> bool:
        """Whether RBAC lets the caller do this; every user may ask."""
        kind, _, below = resource.partition("/")
        attributes = {"verb": verb, "resource": kind, "subresource": below, "name": name, "namespace": namespace}
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": attributes},
        }
        answer = await self.post("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", review)
        status = answer.document.get("status")
        if answer.status not in (200, 201) or not isinstance(status, dict):
            raise refusal(answer, "create selfsubjectaccessreviews")
        return bool(status.get("allowed"))

    async def _get(self, path: str, query: Mapping[str, str], right: str) -> Answer:
        answer = _used(await self.client.get_api(path, query))
        if answer.status != 200:
            raise refusal(answer, right)
        return answer


def _used(answer: Answer | None) -> Answer:
    if answer is None:
        raise ConfigError("doctor asks the API server; leave out --url and give a kubeconfig")
    return answer


def refusal(answer: Answer, right: str) -> KubeError:
    """An answer of the API server, or of what is behind its proxy, that is no success."""
    said = message_of(answer)
    if lacks_right(answer.status, said):
        return KubeError(f"you may not {right}", code=answer.status)
    if answer.status == 401:
        return KubeError(f"the API server does not accept your credentials (401): {said}; log in again", code=401)
    kind = KubeNotFoundError if answer.status == 404 else KubeError
    return kind(f"cannot {right} ({answer.status}): {said}", code=answer.status)


def message_of(answer: Answer) -> str:
    """What the server said, in one line."""
    try:
        status = msgspec.json.decode(answer.body, type=StatusObject)
    except msgspec.MsgspecError:
        return one_line(answer.body[:2000].decode(errors="replace"))
    return one_line(status.message or status.reason or "")


def segment(name: str) -> str:
    return quote(name, safe="")


def in_namespace(namespace: str, rest: str) -> str:
    return f"/namespaces/{segment(namespace)}/{rest}"
