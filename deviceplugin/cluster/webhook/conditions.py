"""What the API server decides by itself, as CEL (the common expression language).

In: the settings and our programs' accounts. Out: the match conditions of the webhook, which let every pod pass that has
nothing to do with GPUs, so that `failurePolicy: Fail` stops no other; and the policy that lets nobody else change the
annotations that our programs wrote. Not here: the objects that carry them: the chart in daemonset/chart holds them, and
a test holds the two together. CEL's core language is enough, so that any implementation of it can try them.
"""

import json
from collections.abc import Sequence

from deviceplugin.cluster.webhook.hami_pods import HAMI_ANNOTATIONS, HAMI_PREFIX, HAMI_SCHEDULER
from deviceplugin.cluster.webhook.pod_json import MIRROR
from deviceplugin.config.webhook import HamiScope, WebhookSettings
from deviceplugin.model.annotation_names import AnnotationNames, annotation_names


def _or_empty(place: str, empty: str) -> str:
    return f"(has({place}) ? {place} : {empty})"


Expressions = dict[str, str]
_LABELS = "object.metadata.labels"
_EVERY = f"(object.spec.containers + {_or_empty('object.spec.initContainers', '[]')})"
_ANNOTATIONS = _or_empty("object.metadata.annotations", "{}")


def match_conditions(settings: WebhookSettings) -> Expressions:
    """By name. A pod that opted out is sent all the same where it carries what has to be stripped."""
    stale = f"{_ANNOTATIONS}.exists(a, {_machine_written('a', annotation_names(settings.names.domain))})"
    opted_out = f'{_list(settings.opt_out_labels)}.exists(l, l in {_LABELS} && {_LABELS}[l] == "ignore")'
    return {
        "asks-for-gpus-or-carries-our-annotations": " || ".join((stale, *_asking(settings))),
        "is-no-image-of-a-static-pod": f"!({_text(MIRROR)} in {_ANNOTATIONS})",
        "has-not-opted-out": f"{stale} || !(has({_LABELS}) && {opted_out})",
    }


def policy_conditions(accounts: Sequence[str]) -> Expressions:
    """Who may do it is not looked at further; kubelets write each pod's status often and its annotations never."""
    return {
        "is-not-one-of-our-programs": f"!(request.userInfo.username in {_list(accounts)})",
        "is-no-kubelet": '!("system:nodes" in request.userInfo.groups)',
    }


def policy_variables(names: AnnotationNames) -> Expressions:
    """Annotations before and after, and the names of ours that differ. A Binding's become the pod's."""
    ours = _machine_written("a", names)
    differs = "!(a in variables.before) || variables.before[a] != variables.after[a]"
    return {
        "before": f"oldObject == null ? {{}} : {_or_empty('oldObject.metadata.annotations', '{}')}",
        "after": _ANNOTATIONS,
        "changed": (
            f"variables.after.filter(a, ({ours}) && ({differs}))"
            f" + variables.before.filter(a, ({ours}) && !(a in variables.after))"
        ),
    }


def policy_validation() -> tuple[str, str]:
    """The expression, and the one that makes the message."""
    are = '(variables.changed.size() == 1 ? " is" : " are")'
    rest = '" written by vcuda alone; leave the annotations of the pod as they are"'
    return "variables.changed.size() == 0", f'variables.changed.join(", ") + {are} + {rest}'


def _asking(settings: WebhookSettings) -> tuple[str, ...]:
    """`hami_pods` in CEL: a number of GPUs alone is HAMi's only by choice, or where something else of HAMi's is."""
    ours, hami = (settings.names.core, settings.names.memory), settings.hami
    if hami.scope is not HamiScope.MARKED:
        return (_names((*ours, *(hami.resources if hami.every else ()))),)
    marked = (
        f"{_ANNOTATIONS}.exists(a, a in {_list(HAMI_ANNOTATIONS)} || a.startsWith({_text(HAMI_PREFIX)}))"
        f' || has(object.spec.schedulerName) && object.spec.schedulerName == "{HAMI_SCHEDULER}"'
    )
    return _names((*ours, *hami.marks)), f"({marked}) && {_names((hami.count,))}"


def _names(resources: Sequence[str]) -> str:
    """Whether a container names one of them."""
    kinds = (f"c.resources.{kind}" for kind in ("limits", "requests"))
    found = " || ".join(f"has({kind}) && {kind}.exists(r, r in {_list(resources)})" for kind in kinds)
    return f"{_EVERY}.exists(c, has(c.resources) && ({found}))"


def _machine_written(variable: str, names: AnnotationNames) -> str:
    prefix = _text(names.gpu_index_prefix)
    return f"{variable} in {_list(names.machine_written)} || {variable}.startsWith({prefix})"


def _list(words: Sequence[str]) -> str:
    return "[" + ", ".join(map(_text, words)) + "]"


def _text(word: str) -> str:
    return json.dumps(word)
