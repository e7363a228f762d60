"""The requests to the API server that the scheduler needs in addition to those of the agent.

In: references, annotations, values of Secrets. Out: such values; `KubeError` and its subclasses. Writes are
rate-limited, so that a scheduler with a backlog is not throttled by the API server. Leases are not, because a delay
could cost the leadership (`leader_election`). A change names the version that was read; KubeConflictError says that it
is outdated.

Secrets as values.

In: JSON of the API server. Out: `Secret`. A repr never contains values, because it may end in a log.

Who a bearer token belongs to, and what that user may read: questions to the API server.

In: a token; an audience. Out: `Caller`, or None if the API server does not know the token; yes or no. Source:
authentication.k8s.io/v1 TokenReview and authorization.k8s.io/v1 SubjectAccessReview. A token with an audience is only
accepted for it, so a token made for vcuda is of no use elsewhere.

Where the pods behind a Service are, by the node on which each runs, or by name.

In: the namespace and the name of a Service. Out: the address of one ready pod for each, from the Service's
EndpointSlices (discovery.k8s.io/v1). Addresses are those that the API server gives, never what a node says of itself.
"""

import base64
import binascii
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

import msgspec

from deviceplugin.errors import KubeConflictError, KubeNotFoundError, ParseError
from deviceplugin.kube.client import KubeClient, NodeMetadata, ObjectClient, Owners, access_reviews
from deviceplugin.kube.collection import ObjectKind, ObjectName, ObjectRef
from deviceplugin.kube.resource_claims import TEMPLATES
from deviceplugin.kube.structs import Json, Object
from deviceplugin.kube.transport import TokenBucket, Transport
from deviceplugin.model.allocation import PodRef
from deviceplugin.model.units import ResourceNames


class SecretObject(Object):
    """A Secret; values are base64."""

    data: dict[str, str] | None = None


@dataclass(frozen=True, slots=True)
class Secret:
    """A secret; `version` is empty before it is created."""

    namespace: str
    name: str
    data: Mapping[str, bytes] = field(repr=False)
    labels: Mapping[str, str] = field(default_factory=dict)
    version: str = ""
    annotations: Mapping[str, str] = field(default_factory=dict)
    """Written when it is created, and not read."""

    def created_as(self, owners: Owners = ()) -> dict[str, object]:
        names = {"name": self.name, "namespace": self.namespace, "ownerReferences": owners}
        meta = {**names, "labels": dict(self.labels), "annotations": dict(self.annotations)}
        return {"metadata": meta, "type": "Opaque", "data": _encoded(self.data)}


def _secret(found: SecretObject) -> Secret:
    meta = found.metadata
    try:
        data = {key: base64.b64decode(text, validate=True) for key, text in (found.data or {}).items()}
    except binascii.Error:
        raise ParseError(f"secret {meta.namespace}/{meta.name} contains data that is not base64") from None
    return Secret(meta.namespace, meta.name, data, meta.labels or {}, meta.resource_version)


_SECRETS = ObjectKind("v1", "secrets", "Secret", "secret", SecretObject, _secret)


def _encoded(data: Mapping[str, bytes]) -> dict[str, str]:
    return {key: base64.b64encode(value).decode() for key, value in data.items()}


STRATEGIC = "application/strategic-merge-patch+json"


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
    """namespaceSelector of a webhook."""

    match_expressions: list[Requirement] | None = None


class _ServiceReference(Json):
    """The service that is called."""

    namespace: str = ""


class _ClientConfig(Json):
    """How the API server reaches a webhook, and which CA it trusts."""

    service: _ServiceReference | None = None
    ca_bundle: str | None = None


class _Webhook(Json):
    """One of the webhooks of a configuration."""

    name: str
    client_config: _ClientConfig = msgspec.field(default_factory=_ClientConfig)
    namespace_selector: _Selector | None = None


class WebhookConfiguration(Object):
    """A MutatingWebhookConfiguration without its rules."""

    webhooks: list[_Webhook] | None = None

    def excluding(self, namespace: str, labels: Mapping[str, str]) -> str:
        """The label by which the webhook leaves out a namespace; empty if it serves it."""
        known = {**labels, "kubernetes.io/metadata.name": namespace}
        selector = self.webhooks[0].namespace_selector if self.webhooks else None
        every = (selector.match_expressions if selector else None) or ()
        return next((each.key for each in every if not each.is_met(known)), "")


WEBHOOKS = ObjectKind(
    "admissionregistration.k8s.io/v1",
    "mutatingwebhookconfigurations",
    "MutatingWebhookConfiguration",
    "webhook configuration",
    WebhookConfiguration,
    lambda found: found,
)


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        return b""


class _User(Json):
    """status.user of a TokenReview."""

    username: str = ""
    uid: str = ""
    groups: list[str] | None = None
    extra: dict[str, list[str]] | None = None


class _TokenStatus(Json):
    """status of a TokenReview."""

    authenticated: bool = False
    user: _User = msgspec.field(default_factory=_User)
    audiences: list[str] | None = None


class _TokenReview(Json):
    """A TokenReview's answer."""

    status: _TokenStatus = msgspec.field(default_factory=_TokenStatus)


_TOKENS = ObjectKind(
    "authentication.k8s.io/v1",
    "tokenreviews",
    "TokenReview",
    "review of a token",
    _TokenReview,
    lambda found: found.status,
)
_ACCESS = access_reviews("subjectaccessreviews", "SubjectAccessReview")


class Caller(msgspec.Struct, frozen=True):
    """A user as the API server knows it."""

    name: str
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: dict[str, list[str]] = msgspec.field(default_factory=dict)


class ClusterClient(KubeClient):
    """`writes` limits the rate of writes; None: no limit."""

    def __init__(
        self, transport: Transport, *, names: ResourceNames = ResourceNames(), writes: TokenBucket | None = None
    ) -> None:
        super().__init__(transport, names=names)
        self._writes = writes

    async def bind(self, pod: PodRef, node: str, annotations: Mapping[str, str]) -> None:
        """Sets node and annotations in one write.

        KubeNotFoundError: no such pod. KubeConflictError: the pod has another UID or already a node, is being deleted
        or is gated. After any other error the pod may be bound: read it.
        """
        meta: dict[str, object] = {"name": pod.name, "namespace": pod.namespace, "annotations": dict(annotations)}
        if pod.uid:
            meta["uid"] = pod.uid
        target = {"apiVersion": "v1", "kind": "Node", "name": node}
        binding = {"apiVersion": "v1", "kind": "Binding", "metadata": meta, "target": target}
        path = self._pods.path(pod.namespace, pod.name, "binding")
        await self._wait_for_token()
        body = msgspec.json.encode(binding)
        await self._transport.request("POST", path, what=f"bind pod {pod} to {node}", body=body)

    async def annotate_pod(self, pod: PodRef, annotations: Mapping[str, str]) -> None:
        """Raises KubeNotFoundError or KubeConflictError if the pod is gone."""
        await self._wait_for_token()
        await self.patch_pod_annotations(pod, annotations)

    async def annotate_node(self, name: str, annotations: Mapping[str, str | None]) -> None:
        """kube-scheduler retries waiting pods when an annotation of a node changes."""
        await self._wait_for_token()
        await self.patch_node(name, NodeMetadata({}, annotations))

    async def get_secret(self, namespace: str, name: str) -> Secret:
        return await self.get(_SECRETS, ObjectRef(namespace, name))

    async def create_secret(self, secret: Secret) -> Secret:
        """It goes with the caller's account. Raises KubeConflictError if the name exists."""
        ref = ObjectRef(secret.namespace, secret.name)
        await self._wait_for_token()
        document = secret.created_as(await self.owners(secret.namespace))
        return await self.create(_SECRETS, secret.namespace, document, what=f"create secret {ref}")

    async def update_secret(self, secret: Secret, data: Mapping[str, bytes]) -> Secret:
        """Sets these keys; other keys stay. The secret must be as it was read."""
        ref = ObjectRef(secret.namespace, secret.name)
        change = {"metadata": {"resourceVersion": secret.version}, "data": _encoded(data)}
        await self._wait_for_token()
        return await self.patch(_SECRETS, ref, change, what=f"update secret {ref}")

    async def get_ca_bundles(self, configuration: str) -> tuple[bytes, ...]:
        """The CA bundle (PEM) of every webhook of a MutatingWebhookConfiguration; empty if it is none or not base64."""
        found = await self.get(WEBHOOKS, ObjectRef("", configuration))
        return tuple(_decoded(each.client_config.ca_bundle or "") for each in found.webhooks or ())

    async def set_ca_bundle(self, configuration: str, bundle: bytes) -> None:
        """Sets the CA bundle (PEM) of every webhook of a MutatingWebhookConfiguration.

        The patch names webhooks instead of counting them: another tool may add one or change their order.
        """
        ref = ObjectRef("", configuration)
        found = await self.get(WEBHOOKS, ref)
        client_config = {"caBundle": base64.b64encode(bundle).decode()}
        change = {
            "metadata": {"resourceVersion": found.metadata.resource_version},
            "webhooks": [{"name": each.name, "clientConfig": client_config} for each in found.webhooks or ()],
        }
        what = f"set the CA of webhook configuration {configuration}"
        await self._wait_for_token()
        await self.patch(WEBHOOKS, ref, change, what=what, content_type=STRATEGIC)

    async def create_claim_template(self, key: ObjectName, label: str, spec: Mapping[str, object]) -> None:
        """Nothing happens if one of this name exists: another replica, or a user, was faster."""
        await self._wait_for_token()
        namespace, name = key
        document = {
            "metadata": {"name": name, "namespace": namespace, "labels": {label: "true"}},
            "spec": {"spec": spec},
        }
        with suppress(KubeConflictError):
            await self.create(TEMPLATES, namespace, document, what=f"create claim template {ObjectRef(*key)}")

    async def delete_claim_template(self, template: ObjectRef) -> None:
        await self._wait_for_token()
        with suppress(KubeConflictError, KubeNotFoundError):
            await self.delete(TEMPLATES, template)

    async def caller_of(self, token: str, *, audience: str) -> Caller | None:
        """The token's user; without `audience` it must be valid for the API server itself."""
        spec: dict[str, object] = {"token": token}
        if audience:
            spec["audiences"] = [audience]
        status = await self.create(_TOKENS, "", {"spec": spec}, what="review a token")
        if not status.authenticated or (audience and audience not in (status.audiences or ())):
            return None
        user = status.user
        return Caller(user.username, user.uid, tuple(user.groups or ()), user.extra or {})

    async def may_list_pods(self, caller: Caller, namespace: str) -> bool:
        """Whether the caller may list the pods of a namespace; empty: of all."""
        attributes = {"verb": "list", "resource": "pods", "version": "v1", "namespace": namespace}
        return await self._is_allowed(caller, resourceAttributes=attributes)

    async def may_get(self, caller: Caller, path: str) -> bool:
        """Whether a ClusterRole allows the caller a path that is not one of the API server's (`nonResourceURLs`)."""
        return await self._is_allowed(caller, nonResourceAttributes={"verb": "get", "path": path})

    async def _is_allowed(self, caller: Caller, **attributes: dict[str, str]) -> bool:
        user = {"user": caller.name, "uid": caller.uid, "groups": caller.groups, "extra": caller.extra}
        return await self.create(_ACCESS, "", {"spec": {**user, **attributes}}, what="review an access")

    async def _wait_for_token(self) -> None:
        if self._writes is not None:
            await self._writes.take()


class _Conditions(Json):
    """conditions of an endpoint; not said is ready."""

    ready: bool | None = None


class _Target(Json):
    """The object behind an endpoint."""

    name: str = ""


class _Endpoint(Json):
    """One pod."""

    addresses: list[str] | None = None
    node_name: str | None = None
    target_ref: _Target | None = None
    conditions: _Conditions | None = None


class _Port(Json):
    """A port of all endpoints of a slice."""

    name: str | None = None
    port: int | None = None


class _Slice(Object):
    """An EndpointSlice."""

    endpoints: list[_Endpoint] | None = None
    ports: list[_Port] | None = None


class Address(msgspec.Struct, frozen=True):
    """An IP address and a port."""

    host: str
    port: int

    def url(self, path: str, *, scheme: str = "http") -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{scheme}://{host}:{self.port}{path}"


async def addresses_by_node(client: ObjectClient, namespace: str, service: str) -> dict[str, Address]:
    """Raises KubeError if the API server gives no answer."""
    found: dict[str, Address] = {}
    async for part in _slices(client, namespace, service):
        found |= {each.node_name: address for each, address in _ready(part) if each.node_name}
    return found


async def addresses_by_name(client: ObjectClient, namespace: str, service: str, *, port: str) -> dict[str, Address]:
    """By the pod's name, and by the node's, under which a pod on its network is known. `port`: its name."""
    found: dict[str, Address] = {}
    async for part in _slices(client, namespace, service):
        ready = list(_ready(part, port))
        found = {each.node_name: address for each, address in ready if each.node_name} | found
        found |= {each.target_ref.name: address for each, address in ready if each.target_ref is not None}
    return found


def _slices(client: ObjectClient, namespace: str, service: str) -> AsyncGenerator[_Slice]:
    query = {"labelSelector": f"kubernetes.io/service-name={service}"}
    return client.each(_SLICES, namespace, what=f"the endpoints of {service}", query=query)


def _ready(item: _Slice, name: str = "") -> Iterator[tuple[_Endpoint, Address]]:
    port = next((each.port for each in item.ports or () if each.port and name in ("", each.name)), None)
    for each in item.endpoints or ():
        if port and each.addresses and (each.conditions is None or each.conditions.ready is not False):
            yield each, Address(each.addresses[0], port)


_SLICES = ObjectKind(
    "discovery.k8s.io/v1", "endpointslices", "EndpointSlice", "EndpointSlice", _Slice, lambda found: found
)
