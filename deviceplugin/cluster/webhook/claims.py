"""Turns a pod's requests for vcuda's resources into claims, for clusters whose nodes offer GPUs to claims.

In: a pod that `mutate` has completed and `validate` has accepted. Out: the same pod, whose containers name claims made
from templates in the place of resources; and warnings about annotations that claims have no word for; or a
RequestError if Kubernetes would refuse the template. Nothing is created here: the pod may still be refused, and
Kubernetes waits for the template, which the scheduler makes (`scheduler.claim_templates`). Not here: pods that name
claims themselves.

Invariant: each container has one claim. An init container has that of an app container of the same size, because it has
ended when that one starts.
"""

from collections import defaultdict
from collections.abc import Iterable
from itertools import count as count_from

from deviceplugin.cluster.webhook.mutate import is_left_alone
from deviceplugin.cluster.webhook.pod_json import (
    Json,
    JsonContainer,
    annotations,
    containers,
    made_child,
    objects,
    spec,
)
from deviceplugin.cluster.webhook.resources import count, drop, is_gpu
from deviceplugin.config.scheduler import WebhookSettings
from deviceplugin.errors import RequestError
from deviceplugin.model.allocation import ContainerRole
from deviceplugin.model.annotation_names import annotation_names
from deviceplugin.model.claims import ClaimNames, ClaimSize, NamedTemplates, claim_label
from deviceplugin.model.pod_request import parse_parts
from deviceplugin.model.preferences import GpuFilter, parse_preferences
from deviceplugin.model.request import parse_request

_LONGEST_NAME = 63
_BEGINNING = 50  # what any number leaves of a name


def to_claims(pod: Json, settings: WebhookSettings) -> tuple[str, ...]:
    """Changes the pod; returns warnings."""
    asking = [each for each in containers(pod) if is_gpu(each, settings.names)]
    if not asking or is_left_alone(pod, settings):
        return ()
    names = annotation_names(settings.names.domain)
    written = annotations(pod)
    parts, wanted = parse_parts(written, names), parse_preferences(written, names).gpus
    templates = _templates(asking[0], wanted, settings)
    made = made_child(pod, "metadata")
    made_child(made, "labels")[claim_label(settings.names.domain)] = "true"
    claims, by_size = objects(spec(pod), "resourceClaims"), dict[ClaimSize, str]()
    free = _FreeNames(each.get("name") for each in claims)
    spec(pod)["resourceClaims"] = claims
    for container in sorted(asking, key=lambda each: each.role is ContainerRole.INIT):
        cores, blocks = count(container, settings.names.core) or 0, count(container, settings.names.memory) or 0
        size = ClaimSize.of(parse_request(cores, blocks, parts=parts.of(container.name), names=settings.names))
        name = by_size.get(size) if container.role is ContainerRole.INIT else None
        if name is None:
            _check_size(container, size, templates)
            name = free.take(f"vcuda-{container.name}")
            claims.append({"name": name, "resourceClaimTemplateName": templates.name(size)})
            by_size.setdefault(size, name)
        drop(container, (settings.names.core, settings.names.memory))
        resources = made_child(container.json, "resources")
        resources["claims"] = [*objects(resources, "claims"), {"name": name}]
    unknown = sorted({names.core_limit, names.memory_limit, names.node_policy, names.gpu_policy} & written.keys())
    return tuple(f"annotation {each} has no effect on a claim" for each in unknown)


def _templates(container: JsonContainer, wanted: GpuFilter, settings: WebhookSettings) -> NamedTemplates:
    try:
        return NamedTemplates(wanted, ClaimNames(settings.names.domain))
    except RequestError as error:
        raise RequestError(f"{container.what}: {error.message}") from None


def _check_size(container: JsonContainer, size: ClaimSize, templates: NamedTemplates) -> None:
    try:
        templates.spec(size)
    except RequestError as error:
        raise RequestError(f"{container.what}: {error.message}") from None


class _FreeNames:
    """DNS labels (at most 63 characters, no hyphen at the end) that no other claim of the pod has.

    The next number is remembered for each beginning: many containers may have one, and the pod may have taken many
    numbers.
    """

    def __init__(self, taken: Iterable[object]) -> None:
        self._taken = {each for each in taken if isinstance(each, str)}
        self._numbers: defaultdict[str, count_from[int]] = defaultdict(count_from)

    def take(self, name: str) -> str:
        numbers = self._numbers[name[:_BEGINNING]]
        found, suffix = name[:_LONGEST_NAME].rstrip("-"), ""
        while found in self._taken:
            suffix = f"-{next(numbers)}"
            found = name[: _LONGEST_NAME - len(suffix)].rstrip("-") + suffix
        self._taken.add(found)
        return found
