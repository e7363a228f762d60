"""The settings of the webhook: a branch of the tree of `vcuda scheduler`, and what `cluster.webhook` receives.

In: nothing. Out: `WebhookSettings`, frozen, whose leaves are parsed values. What each does to pods: docs/webhook.md.
"""

# ruff: noqa: RUF009 - `setting` is dataclasses.field with a description

import enum
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from deviceplugin.config import kinds
from deviceplugin.config.kinds import Kind
from deviceplugin.config.setting import section, setting
from deviceplugin.errors import ParseError
from deviceplugin.model.share_memory import ShareMemory, parse_share_memory
from deviceplugin.model.units import CORES_PER_GPU, ResourceNames


class HamiScope(enum.Enum):
    """Which pods with HAMi's resources the webhook translates; the values are those of flag and chart.

    MARKED: pods with anything that only HAMi has (memory, cores, priority, an annotation, its scheduler). ALL: also
    pods that name a number of GPUs and nothing else; `nvidia.com/gpu` is also the resource of NVIDIA's device plugin.
    """

    OFF = "off"
    MARKED = "marked"
    ALL = "all"


_LABEL = r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?"
_NAME = re.compile(rf"{_LABEL}(?:\.{_LABEL})*", re.ASCII)
_RESOURCE = re.compile(rf"{_LABEL}(?:\.{_LABEL})*/[A-Za-z0-9](?:[-A-Za-z0-9_.]{{0,61}}[A-Za-z0-9])?", re.ASCII)


def _matching(form: re.Pattern[str], what: str, *, optional: bool = False) -> Callable[[str], str]:
    def read(text: str) -> str:
        if not (optional and not text) and (len(text) > 253 or form.fullmatch(text) is None):
            raise ValueError(f"{text[:60]!r} is not {what}")
        return text

    return read


def _read_cores(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 3 and int(text) <= CORES_PER_GPU):
        raise ValueError(f"{text[:40]!r} is not a number of cores; give 0 to {CORES_PER_GPU}")
    return int(text)


def _read_share_memory(text: str) -> ShareMemory:
    try:
        return parse_share_memory("off" if text == "false" else text)  # what YAML makes of off
    except ParseError as error:
        raise ValueError(error.message) from None


def _read_scope(text: str) -> HamiScope:
    return _SCOPES.read({"false": "off", "true": "all"}.get(text, text))  # what YAML makes of off and on


def _read_namespaces(text: str) -> frozenset[str]:
    read = _matching(_NAME, "the name of a namespace")
    return frozenset(read(word.strip()) for word in text.split(",") if word.strip())


_OPTIONAL_NAME = Kind("the name of an object", "NAME", _matching(_NAME, "the name of an object", optional=True))
_RESOURCE_NAME = Kind("the name of a resource", "NAME", _matching(_RESOURCE, "a resource such as nvidia.com/gpu"))
_SCOPES = kinds.choice(HamiScope)
_SCOPE = replace(_SCOPES, read=_read_scope, yaml=(str, bool))
_CORES = Kind("a number of cores", "CORES", _read_cores, str, (int,))
_MEMORY = Kind("proportional, off or a number of blocks", "MEMORY", _read_share_memory, str, (str, int, bool))
_NAMESPACES = Kind(
    "a list of namespaces", "NAME,...", _read_namespaces, lambda names: ",".join(sorted(names)), (list, str)
)


@dataclass(frozen=True, slots=True)
class HamiSettings:
    """HAMi's resources, by the names that HAMi's chart gave them here.

    `unlimited_cores`: a share that names no cores may use all idle time of its GPU, as with HAMi (a soft limit of
    100 %); otherwise `default_cores` of the webhook are its limit.
    """

    scope: HamiScope = setting(
        "translate-hami",
        _SCOPE,
        "Pods with HAMi's resources become ours: marked (those with memory, cores, an annotation or the scheduler of "
        "HAMi's), all (also those with nvidia.com/gpu alone, which is NVIDIA's plugin's too), or off.",
        default=HamiScope.MARKED,
    )
    count: str = setting(
        "hami-count-resource", _RESOURCE_NAME, "HAMi's resource for a number of GPUs.", default="nvidia.com/gpu"
    )
    memory: str = setting(
        "hami-memory-resource", _RESOURCE_NAME, "HAMi's resource for MiB of each GPU.", default="nvidia.com/gpumem"
    )
    memory_percentage: str = setting(
        "hami-memory-percentage-resource",
        _RESOURCE_NAME,
        "HAMi's resource for a part of the memory of each GPU.",
        default="nvidia.com/gpumem-percentage",
    )
    cores: str = setting(
        "hami-cores-resource", _RESOURCE_NAME, "HAMi's resource for cores of each GPU.", default="nvidia.com/gpucores"
    )
    priority: str = setting(
        "hami-priority-resource", _RESOURCE_NAME, "HAMi's resource that is dropped.", default="nvidia.com/priority"
    )
    unlimited_cores: bool = setting(
        "hami-unlimited-cores",
        kinds.BOOLEAN,
        "A pod of HAMi's whose shares name no cores may borrow all idle time of their GPUs.",
        default=True,
    )

    @property
    def every(self) -> bool:
        """A pod that names `count` alone is translated too."""
        return self.scope is HamiScope.ALL

    @property
    def marks(self) -> tuple[str, ...]:
        """Resources that only HAMi has."""
        return (self.memory, self.memory_percentage, self.cores, self.priority)

    @property
    def resources(self) -> tuple[str, ...]:
        return (self.count, *self.marks)


@dataclass(frozen=True, slots=True)
class WebhookSettings:
    """What the webhook does to pods.

    `default_cores`: of each GPU, for a container that asks for memory alone; 0 denies the pod. `namespaces`: only
    these, all where it is empty; `ignored_namespaces` are left alone in either case. `names` follows from
    --resource-domain and is set by the scheduler.
    """

    scheduler_name: str = setting(
        "scheduler-name",
        _OPTIONAL_NAME,
        "What becomes of a GPU pod's schedulerName where it is the default; empty: it stays.",
        default="vcuda-scheduler",
    )
    configuration: str = setting(
        "webhook-configuration",
        _OPTIONAL_NAME,
        "MutatingWebhookConfiguration whose caBundle is kept right; empty: none.",
        default="vcuda-scheduler",
    )
    default_cores: int = setting(
        "default-cores",
        _CORES,
        "Cores of each GPU for a container that asks for memory alone; 0: such a pod is refused.",
        default=10,
    )
    share_memory: ShareMemory = setting(
        "share-memory",
        _MEMORY,
        "Memory of a share that names none: proportional (its part of the smallest GPU known), a number of blocks of "
        "each GPU, or off: such a pod is refused.",
        default=ShareMemory(),
    )
    hide_gpus: bool = setting(
        "hide-gpus",
        kinds.BOOLEAN,
        "Set NVIDIA_VISIBLE_DEVICES=none in containers that ask for no GPU, in pods that have one.",
        default=True,
    )
    library_path: bool = setting(
        "prefix-library-path",
        kinds.BOOLEAN,
        "Put our libraries first in the LD_LIBRARY_PATH that a GPU container sets.",
        default=True,
    )
    runtime_class: str = setting(
        "runtime-class", _OPTIONAL_NAME, "Runtime class of GPU pods that name none; empty: none.", default=""
    )
    namespaces: frozenset[str] = setting(
        "webhook-namespaces", _NAMESPACES, "Only pods of these namespaces are looked at; empty: of all.",
        default=frozenset[str](),
    )  # fmt: skip
    ignored_namespaces: frozenset[str] = setting(
        "webhook-ignored-namespaces", _NAMESPACES, "Pods of these are left alone.", default=frozenset[str]()
    )
    hami: HamiSettings = section(HamiSettings, "HAMi")
    names: ResourceNames = field(default_factory=ResourceNames)

    @property
    def opt_out_labels(self) -> tuple[str, ...]:
        """Their value is `ignore`; HAMi's is obeyed too."""
        return (f"{self.names.domain}/vcuda-webhook", "hami.io/webhook")

    def concerns(self, namespace: str) -> bool:
        return namespace not in self.ignored_namespaces and (not self.namespaces or namespace in self.namespaces)
