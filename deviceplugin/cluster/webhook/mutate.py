"""Changes a new pod so that it can run: requests, schedulerName, environment, and no forged annotations.

In: the pod as JSON, the settings, the known GPUs. Out: a new pod and warnings; or a RequestError or ParseError whose
sentence the user reads. The given pod is not changed. Not here: whether the result can run (`validate`).
Invariant: mutate(mutate(pod)) == mutate(pod), because the API server may call a webhook again after other webhooks.

A pod with `nodeName` bypasses every scheduler, so kubelet would reject it where its GPUs are taken. The name becomes a
node affinity on the field `metadata.name`, as the DaemonSet controller writes it, and no selector on the label
`kubernetes.io/hostname`: that label is the host's name, which may differ from the node's.
"""

from dataclasses import dataclass

from deviceplugin.cluster.webhook.hami import HAMI_SCHEDULER, translate
from deviceplugin.cluster.webhook.known_gpus import KnownGpus
from deviceplugin.cluster.webhook.pod_json import (
    Json,
    JsonContainer,
    annotations,
    containers,
    copied,
    made_child,
    metadata,
    objects,
    spec,
    texts,
)
from deviceplugin.cluster.webhook.resources import (
    blocks_from_mib,
    count,
    hide_gpus,
    is_gpu,
    leave_choice_to_the_agent,
    mirror,
    put,
    put_our_libraries_first,
)
from deviceplugin.config.scheduler import HamiScope, WebhookSettings
from deviceplugin.errors import ParseError
from deviceplugin.model.annotation_names import AnnotationNames, annotation_names
from deviceplugin.model.pod import PerContainer
from deviceplugin.model.pod_request import parse_parts, require_few
from deviceplugin.model.preferences import ANY_GPU, GpuFilter, parse_preferences
from deviceplugin.model.units import CORES_PER_GPU

_DEFAULT_SCHEDULER = "default-scheduler"
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_TERMS = "nodeSelectorTerms"
NO_PARTS = PerContainer(1)


@dataclass(frozen=True, slots=True)
class Mutation:
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
    return max(1, known.smallest_blocks * cores // CORES_PER_GPU) if known.smallest_blocks else 0


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
