"""ResourceClaimTemplates that vcuda keeps, and the pods that name them.

In: the label of both. Out: the collections, and templates made and deleted. Of a pod only so many names are kept as it
may have templates, and only those annotations that say its GPUs. Not here: what a template says.
"""

import sys
from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from deviceplugin.errors import KubeConflictError, KubeNotFoundError
from deviceplugin.kube.collection import Collection, reader
from deviceplugin.kube.pods import kept_annotations
from deviceplugin.kube.structs import Empty, Json, Object
from deviceplugin.kube.transport import Transport, core_path, group_path
from deviceplugin.model.allocation import PodRef, PodUid
from deviceplugin.model.annotation_names import annotation_names
from deviceplugin.model.claim_template import MOST_TEMPLATES, TEMPLATE_PREFIX, claim_label
from deviceplugin.model.preferences import FOREIGN

GROUP = "resource.k8s.io/v1"
_PLURAL = "resourceclaimtemplates"
TemplateKey = tuple[str, str]
"""Namespace and name."""


@dataclass(frozen=True, slots=True)
class ClaimingPod:
    """A pod that the webhook referred to templates, by their names.

    It has `named` different names. They are in `templates` if there are not more than `most`: one for each container.
    """

    ref: PodRef
    named: int
    most: int
    templates: tuple[str, ...]
    annotations: Mapping[str, str]
    unread_bytes: int = 0

    @property
    def namespace(self) -> str:
        return self.ref.namespace

    @property
    def uid(self) -> str:
        return self.ref.uid


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

    containers: list[Empty] | None = None
    init_containers: list[Empty] | None = None
    resource_claims: list[_PodClaim] | None = None


class _Pod(Object):
    """A pod, as far as its templates are concerned."""

    spec: _PodSpec | None = None


def claiming_pods(domain: str) -> Collection[str, ClaimingPod]:
    """By UID."""
    return Collection(
        what="the pods that were turned to claims",
        path=core_path("pods"),
        read=reader(_Pod, lambda found: _pod(found, domain), what="a pod"),
        key=lambda each: each.uid,
        identity=lambda each: each.uid,
        query={"labelSelector": claim_label(domain)},
    )


def kept_templates(domain: str) -> Collection[TemplateKey, KeptTemplate]:
    return Collection(
        what="vcuda's ResourceClaimTemplates",
        path=group_path(GROUP, _PLURAL),
        read=reader(Object, _template, what="a ResourceClaimTemplate"),
        key=lambda each: each.key,
        identity=lambda each: each.uid,
        query={"labelSelector": claim_label(domain)},
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


def _pod(found: _Pod, domain: str) -> ClaimingPod:
    meta, spec = found.metadata, found.spec or _PodSpec()
    claims = (each.resource_claim_template_name or "" for each in spec.resource_claims or ())
    names = {each: None for each in claims if each.startswith(TEMPLATE_PREFIX)}
    said = annotation_names(domain).preferences
    annotations, unread = kept_annotations(meta.annotations or {}, domain)
    most = min(MOST_TEMPLATES, len(spec.containers or ()) + len(spec.init_containers or ()))
    return ClaimingPod(
        ref=PodRef(PodUid(meta.uid), meta.namespace, meta.name),
        named=len(names),
        most=most,
        templates=tuple(map(sys.intern, names)) if len(names) <= most else (),
        annotations={name: text for name, text in annotations.items() if name in said or name in FOREIGN},
        unread_bytes=unread,
    )


def _template(found: Object) -> KeptTemplate:
    return KeptTemplate(found.metadata.namespace, found.metadata.name, found.metadata.uid)
