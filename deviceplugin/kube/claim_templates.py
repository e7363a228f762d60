"""ResourceClaimTemplates that vcuda keeps, and the pods that name them.

In: the label of both. Out: the collections, and templates made and deleted. Not here: what a template says.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from deviceplugin.errors import KubeConflictError, KubeNotFoundError
from deviceplugin.kube.collection import Collection, reader
from deviceplugin.kube.structs import Json, Object
from deviceplugin.kube.transport import Transport, core_path, group_path

GROUP = "resource.k8s.io/v1"
_PLURAL = "resourceclaimtemplates"
TemplateKey = tuple[str, str]
"""Namespace and name."""


@dataclass(frozen=True, slots=True)
class ClaimingPod:
    """A pod that the webhook referred to templates, by their names."""

    namespace: str
    name: str
    uid: str
    templates: tuple[str, ...]
    annotations: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class KeptTemplate:
    """A template that exists."""

    namespace: str
    name: str
    uid: str

    @property
    def key(self) -> TemplateKey:
        return self.namespace, self.name


class _PodClaim(Json):
    """An entry of spec.resourceClaims."""

    resource_claim_template_name: str | None = None


class _PodSpec(Json):
    """spec of a pod."""

    resource_claims: list[_PodClaim] | None = None


class _Pod(Object):
    """A pod, as far as its templates are concerned."""

    spec: _PodSpec | None = None


def claiming_pods(label: str) -> Collection[str, ClaimingPod]:
    """By UID."""
    return Collection(
        what="the pods that were turned to claims",
        path=core_path("pods"),
        read=reader(_Pod, _pod, what="a pod"),
        key=lambda each: each.uid,
        identity=lambda each: each.uid,
        query={"labelSelector": label},
    )


def kept_templates(label: str) -> Collection[TemplateKey, KeptTemplate]:
    return Collection(
        what="vcuda's ResourceClaimTemplates",
        path=group_path(GROUP, _PLURAL),
        read=reader(Object, _template, what="a ResourceClaimTemplate"),
        key=lambda each: each.key,
        identity=lambda each: each.uid,
        query={"labelSelector": label},
    )


async def create_template(transport: Transport, key: TemplateKey, label: str, spec: Mapping[str, object]) -> None:
    """Nothing happens if one of this name exists: another replica, or a user, was faster."""
    namespace, name = key
    metadata = {"name": name, "namespace": namespace, "labels": {label: "true"}}
    body = msgspec.json.encode(
        {"apiVersion": GROUP, "kind": "ResourceClaimTemplate", "metadata": metadata, "spec": {"spec": spec}}
    )
    path = group_path(GROUP, "namespaces", namespace, _PLURAL)
    try:
        await transport.request("POST", path, what=f"create claim template {namespace}/{name}", body=body)
    except KubeConflictError:
        return


async def delete_template(transport: Transport, template: KeptTemplate) -> None:
    options = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": template.uid}}
    path = group_path(GROUP, "namespaces", template.namespace, _PLURAL, template.name)
    what = f"delete claim template {template.namespace}/{template.name}"
    try:
        await transport.request("DELETE", path, what=what, body=msgspec.json.encode(options))
    except (KubeConflictError, KubeNotFoundError):
        return


def _pod(found: _Pod) -> ClaimingPod:
    meta = found.metadata
    claims = (found.spec.resource_claims if found.spec else None) or ()
    names = tuple(each.resource_claim_template_name for each in claims if each.resource_claim_template_name)
    return ClaimingPod(meta.namespace, meta.name, meta.uid, names, meta.annotations or {})


def _template(found: Object) -> KeptTemplate:
    return KeptTemplate(found.metadata.namespace, found.metadata.name, found.metadata.uid)
