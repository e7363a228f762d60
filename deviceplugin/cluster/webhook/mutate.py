"""A new pod as it has to be to run: completed, translated, sent to our scheduler, free of others' annotations.

In: the pod as JSON, the settings, what is known of the GPUs. Out: a new pod and warnings; or the RequestError or
ParseError whose sentence the user reads. The pod that came in is not changed. Not here: whether the result can run
(`validate`).
Invariant: mutate(mutate(pod)) == mutate(pod), because the API server may call a webhook again after others.
"""

import copy
from dataclasses import dataclass

from deviceplugin.cluster.webhook.defaults import complete
from deviceplugin.cluster.webhook.environment import hide_gpus, leave_choice_to_the_agent, put_our_libraries_first
from deviceplugin.cluster.webhook.hami import translate
from deviceplugin.cluster.webhook.known_gpus import KnownGpus
from deviceplugin.cluster.webhook.pod_json import MIRROR, Json, JsonContainer, annotations, containers, metadata, texts
from deviceplugin.cluster.webhook.resources import is_gpu, mirror
from deviceplugin.cluster.webhook.scheduling import send_to_scheduler
from deviceplugin.config.webhook import WebhookSettings
from deviceplugin.errors import ParseError
from deviceplugin.model.annotation_names import AnnotationNames, annotation_names
from deviceplugin.model.pod_request import Parts, parse_parts

NO_PARTS = Parts(1, {})


@dataclass(frozen=True, slots=True)
class Mutation:
    """The pod as it shall be."""

    pod: Json
    warnings: tuple[str, ...] = ()


def mutate(pod: Json, settings: WebhookSettings, known: KnownGpus) -> Mutation:
    changed: Json = copy.deepcopy(pod)
    names = annotation_names(settings.names.domain)
    if not is_static(changed):
        _strip(changed, names)
    if is_left_alone(changed, settings):
        return Mutation(changed)
    warnings = translate(changed, settings, known)
    found = list(containers(changed))
    asking = [each for each in found if is_gpu(each, settings.names)]
    parts = parts_of(changed, names)
    for container in asking:
        complete(container, parts.of(container.name), settings, known)
        mirror(container, (settings.names.core, settings.names.memory))
    if asking:
        _set_environment(found, asking, settings)
        warnings += send_to_scheduler(changed, settings)
    return Mutation(changed, warnings)


def is_left_alone(pod: Json, settings: WebhookSettings) -> bool:
    """Static, or by its own wish; but nobody opts out of losing the annotations that only our programs may write."""
    labels = texts(metadata(pod), "labels")
    return is_static(pod) or any(labels.get(name) == "ignore" for name in settings.opt_out_labels)


def is_static(pod: Json) -> bool:
    """Kubelet has placed it already, and this is its image at the API server."""
    return MIRROR in annotations(pod)


def parts_of(pod: Json, names: AnnotationNames) -> Parts:
    """One each where the annotation is wrong, which `validate` says."""
    try:
        return parse_parts(annotations(pod), names)
    except ParseError:
        return NO_PARTS


def _strip(pod: Json, names: AnnotationNames) -> None:
    written = annotations(pod)
    for name in [name for name in written if names.is_machine_written(name)]:
        del written[name]


def _set_environment(found: list[JsonContainer], asking: list[JsonContainer], settings: WebhookSettings) -> None:
    ours = {id(each) for each in asking}
    for container in found:
        if id(container) in ours:
            leave_choice_to_the_agent(container)
            if settings.library_path:
                put_our_libraries_first(container)
        elif settings.hide_gpus:
            hide_gpus(container)
