"""What the API server decides by itself, as CEL (the common expression language).

In: the settings and our programs' accounts. Out: the match conditions of the webhook, which let every pod pass that has
nothing to do with GPUs, so that `failurePolicy: Fail` stops no other; and the policy that lets nobody else change the
annotations that our programs wrote. Not here: the objects that carry them: the chart in daemonset/chart holds them, and
a test holds the two together.
"""

import json
from collections.abc import Sequence

from deviceplugin.cluster.webhook.settings import WebhookSettings
from deviceplugin.cluster.webhook.shape import MIRROR
from deviceplugin.model.annotation_names import AnnotationNames

Expressions = dict[str, str]
_ANNOTATIONS = "object.metadata.?annotations.orValue({})"


def match_conditions(settings: WebhookSettings) -> Expressions:
    """By name. A pod that opted out is sent all the same where it carries what has to be stripped."""
    labels = settings.opt_out_labels
    asks = " || ".join(_asks(each, settings) for each in ("limits", "requests"))
    opted_out = f'{_list(labels)}.exists(l, object.metadata.?labels[?l].orValue("") == "ignore")'
    every = "(object.spec.containers + object.spec.?initContainers.orValue([]))"
    stale = f"{_ANNOTATIONS}.exists(a, {_machine_written('a', AnnotationNames(settings.names.domain))})"
    return {
        "asks-for-gpus-or-carries-our-annotations": f"{stale} || {every}.exists(c, {asks})",
        "is-no-image-of-a-static-pod": f"!({_text(MIRROR)} in {_ANNOTATIONS})",
        "has-not-opted-out": f"{stale} || !{opted_out}",
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
    return {
        "before": "oldObject == null ? {} : oldObject.metadata.?annotations.orValue({})",
        "after": _ANNOTATIONS,
        "changed": (
            f"variables.after.filter(a, ({ours}) && variables.before[?a] != optional.of(variables.after[a]))"
            f" + variables.before.filter(a, ({ours}) && !(a in variables.after))"
        ),
    }


def policy_validation() -> tuple[str, str]:
    """The expression, and the one that makes the message."""
    are = '(variables.changed.size() == 1 ? " is" : " are")'
    rest = '" written by vcuda alone; leave the annotations of the pod as they are"'
    return "variables.changed.size() == 0", f'variables.changed.join(", ") + {are} + {rest}'


def _asks(kind: str, settings: WebhookSettings) -> str:
    hami = settings.hami.resources if settings.hami else ()
    named = (settings.names.core, settings.names.memory, *hami)
    return f"c.?resources.?{kind}.orValue({{}}).exists(r, r in {_list(named)})"


def _machine_written(variable: str, names: AnnotationNames) -> str:
    prefix = _text(names.gpu_index_prefix)
    return f"{variable} in {_list(names.machine_written)} || {variable}.startsWith({prefix})"


def _list(words: Sequence[str]) -> str:
    return "[" + ", ".join(map(_text, words)) + "]"


def _text(word: str) -> str:
    return json.dumps(word)
