"""The requests to the API server that the scheduler needs in addition to those of the agent.

In: references, annotations, values of `secrets` and `leases`. Out: such values; `KubeError` and its subclasses. Writes
are rate-limited, so that a scheduler with a backlog is not throttled by the API server. Leases are not, because a
delay could cost the leadership. A change names the version that was read; KubeConflictError says that it is outdated.
"""

import base64
import binascii
from collections.abc import Mapping

import msgspec

from deviceplugin.kube.claim_templates import KeptTemplate, TemplateKey, create_template, delete_template
from deviceplugin.kube.client import KubeClient, pod_path
from deviceplugin.kube.leases import Lease, lease_path, read_lease
from deviceplugin.kube.rate_limit import TokenBucket
from deviceplugin.kube.secrets import Secret, read_secret
from deviceplugin.kube.structs import Json, Object, decode
from deviceplugin.kube.transport import JSON, MERGE, Transport, core_path, group_path
from deviceplugin.model.allocation import PodRef
from deviceplugin.model.units import ResourceNames

STRATEGIC = "application/strategic-merge-patch+json"


class _ClientConfig(Json):
    """How the API server reaches a webhook, and which CA it trusts."""

    ca_bundle: str | None = None


class _Webhook(Json):
    """One of the webhooks of a configuration."""

    name: str
    client_config: _ClientConfig = msgspec.field(default_factory=_ClientConfig)


class _WebhookConfiguration(Object):
    """A configuration without its rules."""

    webhooks: list[_Webhook] | None = None


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        return b""


def _webhook_path(name: str) -> str:
    return group_path("admissionregistration.k8s.io/v1", "mutatingwebhookconfigurations", name)


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
        await self._write("POST", pod_path(pod) + "/binding", binding, what=f"bind pod {pod} to {node}")

    async def annotate_pod(self, pod: PodRef, annotations: Mapping[str, str]) -> None:
        """Raises KubeNotFoundError or KubeConflictError if the pod is gone."""
        await self._wait_for_token()
        await self.patch_pod_annotations(pod, annotations)

    async def annotate_node(self, name: str, annotations: Mapping[str, str | None]) -> None:
        """kube-scheduler retries waiting pods when an annotation of a node changes."""
        await self._wait_for_token()
        await self.patch_node(name, labels={}, annotations=annotations)

    async def get_secret(self, namespace: str, name: str) -> Secret:
        return read_secret(await self._read(core_path("namespaces", namespace, "secrets", name), f"get secret {name}"))

    async def create_secret(self, secret: Secret) -> Secret:
        """Raises KubeConflictError if the name exists."""
        path = core_path("namespaces", secret.namespace, "secrets")
        return read_secret(await self._write("POST", path, secret.created_as(), what=f"create secret {secret.name}"))

    async def update_secret(self, secret: Secret, data: Mapping[str, bytes | None]) -> Secret:
        """Sets these keys and removes those that are None; other keys stay. The secret must be as it was read."""
        path = core_path("namespaces", secret.namespace, "secrets", secret.name)
        what = f"update secret {secret.name}"
        return read_secret(await self._write("PATCH", path, secret.changed_to(data), what=what, content_type=MERGE))

    async def get_lease(self, namespace: str, name: str) -> Lease:
        return read_lease(await self._read(lease_path(namespace, name), f"get lease {name}"))

    async def create_lease(self, lease: Lease) -> Lease:
        """Raises KubeConflictError if the name exists."""
        body = msgspec.json.encode(lease.created_as())
        path = lease_path(lease.namespace)
        what = f"create lease {lease.name}"
        return read_lease(await self._transport.request("POST", path, what=what, body=body))

    async def update_lease(self, lease: Lease) -> Lease:
        """Writes the term, if the lease still has the version that was read."""
        body = msgspec.json.encode(lease.changed_to())
        path, what = lease_path(lease.namespace, lease.name), f"update lease {lease.name}"
        answer = await self._transport.request("PATCH", path, what=what, body=body, content_type=MERGE)
        return read_lease(answer)

    async def get_ca_bundles(self, configuration: str) -> tuple[bytes, ...]:
        """The CA bundle (PEM) of every webhook of a MutatingWebhookConfiguration; empty if it is none or not base64."""
        found = await self._webhook_configuration(configuration)
        return tuple(_decoded(each.client_config.ca_bundle or "") for each in found.webhooks or ())

    async def set_ca_bundle(self, configuration: str, bundle: bytes) -> None:
        """Sets the CA bundle (PEM) of every webhook of a MutatingWebhookConfiguration.

        The patch names webhooks instead of counting them: another tool may add one or change their order.
        """
        found = await self._webhook_configuration(configuration)
        client_config = {"caBundle": base64.b64encode(bundle).decode()}
        change = {
            "metadata": {"resourceVersion": found.metadata.resource_version},
            "webhooks": [{"name": each.name, "clientConfig": client_config} for each in found.webhooks or ()],
        }
        what = f"set the CA of webhook configuration {configuration}"
        await self._write("PATCH", _webhook_path(configuration), change, what=what, content_type=STRATEGIC)

    async def create_claim_template(self, key: TemplateKey, label: str, spec: Mapping[str, object]) -> None:
        await self._wait_for_token()
        await create_template(self._transport, key, label, spec)

    async def delete_claim_template(self, template: KeptTemplate) -> None:
        await self._wait_for_token()
        await delete_template(self._transport, template)

    async def _webhook_configuration(self, name: str) -> _WebhookConfiguration:
        body = await self._read(_webhook_path(name), f"get webhook configuration {name}")
        return decode(_WebhookConfiguration, body, what="the webhook configuration")

    async def _read(self, path: str, what: str) -> bytes:
        return await self._transport.request("GET", path, what=what)

    async def _write(self, method: str, path: str, body: object, *, what: str, content_type: str = JSON) -> bytes:
        await self._wait_for_token()
        encoded = msgspec.json.encode(body)
        return await self._transport.request(method, path, what=what, body=encoded, content_type=content_type)

    async def _wait_for_token(self) -> None:
        if self._writes is not None:
            await self._writes.take()
