"""The certificate authority that the API server checks our webhook against.

In: a MutatingWebhookConfiguration as JSON, a PEM bundle. Out: the change that puts the bundle into each of its webhooks
and leaves everything else to whoever wrote it, or None where nothing differs. Webhooks are named in the change, not
counted: another tool may add one or change their order meanwhile.
"""

import base64

import msgspec

from deviceplugin.kube.structs import Json, Object, decode

ADMISSION = "admissionregistration.k8s.io/v1"
STRATEGIC = "application/strategic-merge-patch+json"


class ClientConfig(Json):
    """Where the API server reaches a webhook, and whom it trusts there."""

    ca_bundle: str | None = None


class Webhook(Json):
    """One of the webhooks of a configuration."""

    name: str
    client_config: ClientConfig = msgspec.field(default_factory=ClientConfig)


class WebhookConfiguration(Object):
    """A configuration; what its rules say is not read."""

    webhooks: list[Webhook] | None = None


def bundle_change(body: bytes, bundle: bytes) -> dict[str, object] | None:
    """A strategic merge patch; it is refused where the configuration has changed since it was read."""
    found = decode(WebhookConfiguration, body, what="the webhook configuration")
    wanted = base64.b64encode(bundle).decode()
    stale = [each.name for each in found.webhooks or () if each.client_config.ca_bundle != wanted]
    if not stale:
        return None
    return {
        "metadata": {"resourceVersion": found.metadata.resource_version},
        "webhooks": [{"name": name, "clientConfig": {"caBundle": wanted}} for name in stale],
    }
