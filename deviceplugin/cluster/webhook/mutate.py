"""Changes a new pod so that it can run: requests, schedulerName, environment, and no forged annotations.

In: the pod as JSON, the settings, the known GPUs. Out: a new pod and warnings; or a RequestError or ParseError whose
sentence the user reads. The given pod is not changed. Not here: whether the result can run (`validate`).
Invariant: mutate(mutate(pod)) == mutate(pod), because the API server may call a webhook again after other webhooks.

A pod with `nodeName` bypasses every scheduler, so kubelet would reject it where its GPUs are taken. The name becomes a
node affinity on the field `metadata.name`, as the DaemonSet controller writes it, and no selector on the label
`kubernetes.io/hostname`: that label is the host's name, which may differ from the node's.

Turns a pod's requests for vcuda's resources into claims, for clusters whose nodes offer GPUs to claims.

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

import msgspec

from deviceplugin.cluster.webhook.hami import HAMI_SCHEDULER, translate
from deviceplugin.cluster.webhook.pod_json import (
    Json,
    JsonContainer,
    annotations,
    containers,
    copied,
    made_child,
    metadata,
    naming,
    objects,
    spec,
    texts,
)
from deviceplugin.cluster.webhook.resources import (
    KnownGpus,
    blocks_from_mib,
    count,
    drop,
    hide_gpus,
    is_gpu,
    leave_choice_to_the_agent,
    mirror,
    put,
    put_our_libraries_first,
)
from deviceplugin.config.scheduler import HamiScope, WebhookSettings
from deviceplugin.errors import ParseError
from deviceplugin.model.allocation import ContainerRole
from deviceplugin.model.annotation_names import AnnotationNames, annotation_names
from deviceplugin.model.claims import ClaimNames, ClaimSize, NamedTemplates, claim_label
from deviceplugin.model.pod import PerContainer
from deviceplugin.model.pod_request import parse_parts, require_few
from deviceplugin.model.preferences import ANY_GPU, GpuFilter, parse_preferences
from deviceplugin.model.request import parse_request
from deviceplugin.model.units import CORES_PER_GPU, blocks_for

_DEFAULT_SCHEDULER = "default-scheduler"
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_TERMS = "nodeSelectorTerms"
NO_PARTS = PerContainer(1)


class Mutation(msgspec.Struct, frozen=True):
    """The changed pod, and warnings for the user."""

    pod: Json
    warnings: tuple[str, ...] = ()


def mutate(pod: Json, settings: WebhookSettings, known: KnownGpus) -> Mutation:
    changed = copied(pod)
    names = annotation_names(settings.names.domain)
    _strip(changed, names)
    if is_left_alone(changed, settings):
        return Mutation(changed)
    known = known.admitted_by(_wanted_gpus(changed, names))
    warnings = translate(changed, settings, known)
    _leave_hamis_scheduler(spec(changed), settings)
    found = list(containers(changed))
    parts = parts_of(changed, names)
    warnings += blocks_from_mib(changed, found, parts, settings, known)
    asking = [each for each in found if is_gpu(each, settings.names)]
    require_few(len(asking))
    for container in asking:
        _complete_request(container, parts.of(container.name), settings, known)
        mirror(container, (settings.names.core, settings.names.memory))
    if asking:
        _set_environment(found, asking, settings)
        warnings += _set_scheduling(changed, settings)
    return Mutation(changed, warnings)


def is_left_alone(pod: Json, settings: WebhookSettings) -> bool:
    """It has the opt-out label. It still loses forged annotations: `mutate` strips those first."""
    labels = texts(metadata(pod), "labels")
    return any(labels.get(name) == "ignore" for name in settings.opt_out_labels)


def parts_of(pod: Json, names: AnnotationNames) -> PerContainer:
    """One each where the annotation is wrong; `validate` then reports it."""
    try:
        return parse_parts(annotations(pod), names)
    except ParseError:
        return NO_PARTS


def _wanted_gpus(pod: Json, names: AnnotationNames) -> GpuFilter:
    """Any where the annotation is wrong; `validate` then reports it."""
    try:
        return parse_preferences(annotations(pod), names).gpus
    except ParseError:
        return ANY_GPU


def _strip(pod: Json, names: AnnotationNames) -> None:
    written = annotations(pod)
    for name in [name for name in written if names.is_machine_written(name)]:
        del written[name]


def _set_environment(found: list[JsonContainer], asking: list[JsonContainer], settings: WebhookSettings) -> None:
    ours = {id(each) for each in asking}
    for container in found:
        if id(container) in ours:
            leave_choice_to_the_agent(container)
            put_our_libraries_first(container)
        elif settings.hide_gpus:
            hide_gpus(container)


def _complete_request(container: JsonContainer, parts: int, settings: WebhookSettings, known: KnownGpus) -> None:
    """Adds the missing one of cores and memory. Leaves the container as it is where nothing can be calculated:
    `validate` then denies it. Whole GPUs need no memory."""
    names = settings.names
    cores, blocks = count(container, names.core) or 0, count(container, names.memory) or 0
    if cores == 0 and blocks > 0 and settings.default_cores:
        put(container, names.core, settings.default_cores * parts)
    elif 0 < cores < CORES_PER_GPU * parts and blocks == 0 and cores % parts == 0:
        each = _blocks_for(cores // parts, settings, known)
        if each:
            put(container, names.memory, each * parts)


def _blocks_for(cores: int, settings: WebhookSettings, known: KnownGpus) -> int:
    """Of one GPU; 0 if the operator gives no default or no GPU is known."""
    if not settings.share_memory.proportional:
        return settings.share_memory.blocks
    return blocks_for(cores, known.smallest_blocks) if known.smallest_blocks else 0


def _leave_hamis_scheduler(inside: Json, settings: WebhookSettings) -> None:
    """It is a whole kube-scheduler, so pods without GPUs name it too; where its pods are translated it is gone."""
    ours = _DEFAULT_SCHEDULER if settings.claims else settings.scheduler_name
    if ours and settings.hami.scope is not HamiScope.OFF and inside.get("schedulerName") == HAMI_SCHEDULER:
        inside["schedulerName"] = ours


def _set_scheduling(pod: Json, settings: WebhookSettings) -> tuple[str, ...]:
    """schedulerName, runtime class and node; returns warnings about changes that the user may not expect."""
    inside = spec(pod)
    ours = "" if settings.claims else settings.scheduler_name  # every kube-scheduler places claims
    if ours and inside.get("schedulerName") in (None, "", _DEFAULT_SCHEDULER):
        inside["schedulerName"] = ours
    if settings.runtime_class and not inside.get("runtimeClassName"):
        inside["runtimeClassName"] = settings.runtime_class
    node = inside.get("nodeName")
    is_ours = settings.claims or inside.get("schedulerName") == settings.scheduler_name
    if not node or not isinstance(node, str) or not is_ours:
        return ()
    del inside["nodeName"]
    _require_node(inside, node)
    return (f"spec.nodeName {node} was turned into a node affinity, so that the scheduler gives this pod its GPUs",)


def _require_node(inside: Json, node: str) -> None:
    wanted = {"key": "metadata.name", "operator": "In", "values": [node]}
    required = made_child(made_child(made_child(inside, "affinity"), "nodeAffinity"), _REQUIRED)
    if required.get(_TERMS) is None:
        required[_TERMS] = [{"matchFields": [wanted]}]
    for term in objects(required, _TERMS):  # terms are ORed, so each must name the node; an empty term matches nothing
        fields = objects(term, "matchFields")
        if (fields or term.get("matchExpressions")) and wanted not in fields:
            term["matchFields"] = [*fields, wanted]


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
    with naming(asking[0]):
        templates = NamedTemplates(wanted, ClaimNames(settings.names.domain))
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
            with naming(container):
                templates.spec(size)
            name = free.take(f"vcuda-{container.name}")
            claims.append({"name": name, "resourceClaimTemplateName": templates.name(size)})
            by_size.setdefault(size, name)
        drop(container, (settings.names.core, settings.names.memory))
        resources = made_child(container.json, "resources")
        resources["claims"] = [*objects(resources, "claims"), {"name": name}]
    unknown = sorted({names.core_limit, names.memory_limit, names.node_policy, names.gpu_policy} & written.keys())
    return tuple(f"annotation {each} has no effect on a claim" for each in unknown)


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
