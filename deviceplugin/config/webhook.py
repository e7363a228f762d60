"""The settings of the webhook, a branch of the tree of `vcuda scheduler`.

In: nothing. Out: `WebhookSettings`, frozen, whose leaves are parsed values. What each does to pods: docs/webhook.md.
"""

# ruff: noqa: RUF009 - `setting` is dataclasses.field with a description

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeVar

from deviceplugin.config import kinds
from deviceplugin.config.kinds import Kind
from deviceplugin.config.setting import setting
from deviceplugin.errors import ParseError
from deviceplugin.model.hami_scope import HamiScope
from deviceplugin.model.share_memory import ShareMemory, parse_share_memory
from deviceplugin.model.units import CORES_PER_GPU

T = TypeVar("T")
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
class WebhookSettings:
    """What is done to pods on their way in."""

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
    prefix_library_path: bool = setting(
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
    translate_hami: HamiScope = setting(
        "translate-hami",
        _SCOPE,
        "Pods with HAMi's resources become ours: marked (those with memory, cores, an annotation or the scheduler of "
        "HAMi's), all (also those with nvidia.com/gpu alone, which is NVIDIA's plugin's too), or off.",
        default=HamiScope.MARKED,
    )
    hami_count: str = setting(
        "hami-count-resource", _RESOURCE_NAME, "HAMi's resource for a number of GPUs.", default="nvidia.com/gpu"
    )
    hami_memory: str = setting(
        "hami-memory-resource", _RESOURCE_NAME, "HAMi's resource for MiB of each GPU.", default="nvidia.com/gpumem"
    )
    hami_percentage: str = setting(
        "hami-memory-percentage-resource",
        _RESOURCE_NAME,
        "HAMi's resource for a part of the memory of each GPU.",
        default="nvidia.com/gpumem-percentage",
    )
    hami_cores: str = setting(
        "hami-cores-resource", _RESOURCE_NAME, "HAMi's resource for cores of each GPU.", default="nvidia.com/gpucores"
    )
    hami_priority: str = setting(
        "hami-priority-resource", _RESOURCE_NAME, "HAMi's resource that is dropped.", default="nvidia.com/priority"
    )
    hami_unlimited_cores: bool = setting(
        "hami-unlimited-cores",
        kinds.BOOLEAN,
        "A pod of HAMi's whose shares name no cores may borrow all idle time of their GPUs.",
        default=True,
    )
