"""The preferences of a pod for nodes and GPUs: policies, models, UUIDs, NUMA.

In: the annotations of the pod, with vcuda's or HAMi's names (HAMi 2.10: `hami.io/...`, `nvidia.com/...`); vcuda's
names take precedence. Out: `Preferences`, or a ParseError that names the annotation. Not here: sizes (`request`) and
the effect of a preference (`placement`). An unknown word in HAMi's annotation is ignored, as another scheduler would
do; in vcuda's it is an error. A list is bounded, because the scheduler keeps what waiting pods ask for, and compares
it with every model.

What a pod or an operator prefers of nodes without requiring it does not count where the extender chooses the node, and
sentences here say so: kube-scheduler weighs such rules among the nodes that an extender leaves, and it leaves one. Only
on a node that was chosen can GPUs be reserved: kube-scheduler says its own choice with the Binding, after it has asked
about the next pods, and they would be promised the same GPUs.
"""

import enum
from collections.abc import Mapping, Sequence
from typing import TypeVar

import msgspec

from deviceplugin.errors import ParseError
from deviceplugin.model.annotation_names import AnnotationNames
from deviceplugin.model.gpu import GpuUuid

_HAMI_NODE_POLICY = "hami.io/node-scheduler-policy"
_HAMI_GPU_POLICY = "hami.io/gpu-scheduler-policy"
_HAMI_USE_MODELS = "nvidia.com/use-gputype"
_HAMI_AVOID_MODELS = "nvidia.com/nouse-gputype"
_HAMI_USE_GPUS = "nvidia.com/use-gpuuuid"
_HAMI_AVOID_GPUS = "nvidia.com/nouse-gpuuuid"
_HAMI_NUMA = "nvidia.com/numa-bind"

FOREIGN = frozenset({
    _HAMI_NODE_POLICY, _HAMI_GPU_POLICY, _HAMI_USE_MODELS, _HAMI_AVOID_MODELS, _HAMI_USE_GPUS, _HAMI_AVOID_GPUS,
    _HAMI_NUMA,
})  # fmt: skip
"""Annotations outside vcuda's domain that are read here; a filter of annotations must keep them."""
_LONGEST_LIST = 16 << 10
_MOST_ITEMS = 400  # UUIDs of the longest list; short words are compared with every model of the cluster


class NodePolicy(enum.Enum):
    """How a node is chosen among those that fit."""

    BINPACK = "binpack"
    SPREAD = "spread"
    FRAGMENTATION = "fragmentation"


class GpuPolicy(enum.Enum):
    """How GPUs are chosen among those that fit. Each property must answer for each member; mypy names a missing one."""

    BINPACK = "binpack"
    SPREAD = "spread"
    LINK = "link"

    @property
    def takes_emptiest(self) -> bool:
        """A share goes to the GPUs with the most free capacity, otherwise to those with the least.

        Whole GPUs come from the emptiest branches of the tree, and containers of a pod do not prefer each other's GPUs.
        """
        match self:
            case GpuPolicy.SPREAD:
                return True
            case GpuPolicy.BINPACK | GpuPolicy.LINK:
                return False

    @property
    def takes_closest(self) -> bool:
        """For a share over several GPUs, distance counts before free capacity."""
        match self:
            case GpuPolicy.LINK:
                return True
            case GpuPolicy.BINPACK | GpuPolicy.SPREAD:
                return False


class GpuFilter(msgspec.Struct, frozen=True):
    """Which GPUs may be used. Models are parts of the name, case-insensitive; one match is enough.

    `one_numa`: all GPUs of a container on one NUMA node.
    """

    models: tuple[str, ...] = ()
    not_models: tuple[str, ...] = ()
    uuids: frozenset[GpuUuid] = frozenset()
    not_uuids: frozenset[GpuUuid] = frozenset()
    one_numa: bool = False

    def admits_uuid(self, uuid: GpuUuid) -> bool:
        return (not self.uuids or uuid in self.uuids) and uuid not in self.not_uuids

    @property
    def names_gpus(self) -> bool:
        return bool(self.uuids or self.not_uuids)

    def admits_model(self, model: str) -> bool:
        name = model.lower()
        if any(each.lower() in name for each in self.not_models):
            return False
        return not self.models or any(each.lower() in name for each in self.models)


ANY_GPU = GpuFilter()


class Preferences(msgspec.Struct, frozen=True):
    """None: the setting of the scheduler."""

    node: NodePolicy | None = None
    gpu: GpuPolicy | None = None
    gpus: GpuFilter = ANY_GPU


NO_PREFERENCES = Preferences()
_Word = TypeVar("_Word", NodePolicy, GpuPolicy)


def parse_preferences(annotations: Mapping[str, str], names: AnnotationNames) -> Preferences:
    """All preferences; ParseError for a wrong word in an annotation of vcuda."""
    written = annotations.keys()
    if written.isdisjoint(names.preferences) and written.isdisjoint(FOREIGN):
        return NO_PREFERENCES
    return Preferences(
        node=_policy(NodePolicy, annotations, names.node_policy, _HAMI_NODE_POLICY),
        gpu=_policy(GpuPolicy, annotations, names.gpu_policy, _HAMI_GPU_POLICY),
        gpus=GpuFilter(
            models=_words(annotations, names.use_models, _HAMI_USE_MODELS),
            not_models=_words(annotations, names.avoid_models, _HAMI_AVOID_MODELS),
            uuids=frozenset(map(GpuUuid, _words(annotations, names.use_gpus, _HAMI_USE_GPUS))),
            not_uuids=frozenset(map(GpuUuid, _words(annotations, names.avoid_gpus, _HAMI_AVOID_GPUS))),
            one_numa=_one_numa(annotations, names),
        ),
    )


def _policy(kind: type[_Word], annotations: Mapping[str, str], own: str, hami: str) -> _Word | None:
    known = {word.value: word for word in kind}
    written = annotations.get(own)
    if written is not None:
        if (found := known.get(written.strip().lower())) is None:
            raise ParseError(f"annotation {own} holds {written[:40]!r}; write {' or '.join(known)}")
        return found
    aliases = {**known, "topology-aware": known.get("link")}  # HAMi's word for it
    words = (word.strip().lower() for word in annotations.get(hami, "").split(","))
    return next((found for word in words if (found := aliases.get(word)) is not None), None)


def _words(annotations: Mapping[str, str], own: str, hami: str) -> tuple[str, ...]:
    name = own if own in annotations else hami
    return tuple(word for each in list_items(annotations.get(name, ""), name) if (word := each.strip()))


def list_items(text: str, name: str) -> list[str]:
    """What the commas separate in the annotation `name`; ParseError if there is far more than any pod needs."""
    if len(text) > _LONGEST_LIST:
        raise ParseError(f"annotation {name} has {len(text)} characters; write at most {_LONGEST_LIST}")
    if (items := text.count(",") + 1) > _MOST_ITEMS:
        raise ParseError(f"annotation {name} has {items} items; write at most {_MOST_ITEMS}")
    return text.split(",")


def _one_numa(annotations: Mapping[str, str], names: AnnotationNames) -> bool:
    written = annotations.get(names.numa)
    if written is None:
        return annotations.get(_HAMI_NUMA, "").strip().lower() == "true"
    return parse_flag(written, names.numa)


def parse_flag(text: str, annotation: str) -> bool:
    found = {"true": True, "false": False}.get(text.strip().lower())
    if found is None:
        raise ParseError(f"annotation {annotation} holds {text[:40]!r}; write true or false")
    return found


NODE_AFFINITY, POD_AFFINITY, POD_ANTI_AFFINITY = AFFINITIES = (
    "preferred node affinity",
    "preferred pod affinity",
    "preferred pod anti-affinity",
)
SPREAD = "topology spread with ScheduleAnyway"
SCHEDULE_ANYWAY = "ScheduleAnyway"
_CHOOSES = "vcuda's extender chooses the node"


def soft_warning(rules: Sequence[str]) -> str:
    """For the author of a pod."""
    return (
        f"{_listed(rules)} not count, because {_CHOOSES} of a pod with GPUs; require it, or set --node-choice=scheduler"
    )


def soft_line(rules: Sequence[str], discouraged: str = "") -> str:
    """For an explanation; empty if there is none. `discouraged`: the pod's node, if it has such a taint."""
    taint = [f"the taint of node {discouraged} with PreferNoSchedule"] if discouraged else []
    found = [*rules, *taint]
    return f"{_listed(found)} not count: {_CHOOSES} (--node-choice=extender)" if found else ""


def _listed(rules: Sequence[str]) -> str:
    *before, last = rules
    return f"{', '.join(before)} and {last} do" if before else f"{last} does"
