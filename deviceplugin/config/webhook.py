"""The settings of the webhook: a branch of the tree of `vcuda scheduler`, and what `cluster.webhook` receives.

In: nothing. Out: `WebhookSettings`, frozen, whose leaves are parsed values. What each does to pods: docs/webhook.md.
"""

# ruff: noqa: RUF009 - `setting` is dataclasses.field with a description

import enum
from dataclasses import dataclass, field, fields

from deviceplugin.config import param_types as types
from deviceplugin.config.command import section, setting
from deviceplugin.errors import ParseError
from deviceplugin.model.allocation import NODE_STATE
from deviceplugin.model.units import CORES_PER_GPU, ResourceNames, ShareMemory, parse_share_memory


class HamiScope(enum.Enum):
    """Which pods with HAMi's resources the webhook translates; the values are those of flag and chart.

    MARKED: pods with anything that only HAMi has (memory, cores, priority, an annotation, its scheduler). ALL: also
    pods that name a number of GPUs and nothing else; `nvidia.com/gpu` is also the resource of NVIDIA's device plugin.
    """

    OFF = "off"
    MARKED = "marked"
    ALL = "all"


@dataclass(frozen=True, slots=True)
class HamiResources:
    """The names of HAMi's resources; all but `count`, the number of GPUs, and `priority` are of each GPU."""

    count: str = "nvidia.com/gpu"
    memory: str = "nvidia.com/gpumem"
    memory_percentage: str = "nvidia.com/gpumem-percentage"
    cores: str = "nvidia.com/gpucores"
    priority: str = "nvidia.com/priority"

    @property
    def marks(self) -> tuple[str, ...]:
        """Resources that only HAMi has."""
        return (self.memory, self.memory_percentage, self.cores, self.priority)

    @property
    def all(self) -> tuple[str, ...]:
        return (self.count, *self.marks)


_RESOURCES = {each.name.replace("_", "-"): each.name for each in fields(HamiResources)}


def _read_resources(text: str) -> HamiResources:
    return HamiResources(**{_RESOURCES[word]: name for word, name in types.pairs(text, _read_pair, "word").items()})


def _read_pair(text: str) -> str:
    word, _, name = text.partition("=")
    if word not in _RESOURCES:
        raise ValueError(f"{word[:40]!r} is unknown; give {', '.join(_RESOURCES)}")
    types.read_resource(name)
    return text


def _show_resources(resources: HamiResources) -> str:
    return types.as_text({word: getattr(resources, name) for word, name in _RESOURCES.items()})


def _read_share_memory(text: str) -> ShareMemory:
    try:
        return parse_share_memory("off" if text == "false" else text)  # YAML turns off into false
    except ParseError as error:
        raise ValueError(error.message) from None


def _read_scope(text: str) -> HamiScope:
    return _SCOPES.read({"false": "off", "true": "all"}.get(text, text))  # YAML turns off and on into booleans


_SCOPES = types.choice(HamiScope)
_SCOPE = types.SettingType(_SCOPES.what, _SCOPES.metavar, _read_scope, yaml=(str, bool))
_CORES = types.number(
    "a number of cores", "CORES", 0, CORES_PER_GPU, f"is not a number of cores; give 0 to {CORES_PER_GPU}"
)
_MEMORY = types.SettingType(
    "proportional, off or a number of blocks", "MEMORY", _read_share_memory, yaml=(str, int, bool)
)


@dataclass(frozen=True, slots=True)
class HamiSettings:
    """What happens to pods with HAMi's resources.

    `unlimited_cores`: a share that names no cores may use all idle time of its GPU, as with HAMi (a soft limit of
    100 %); otherwise `default_cores` of the webhook are its limit.
    """

    scope: HamiScope = setting(
        "translate-hami",
        HamiScope.MARKED,
        "Pods with HAMi's resources that the webhook translates: marked (pods with memory, cores, an annotation or the "
        "scheduler of HAMi), all (also pods with only nvidia.com/gpu, which NVIDIA's plugin offers too), or off.",
        _SCOPE,
    )
    resources: HamiResources = setting(
        "hami-resources",
        HamiResources(),
        "Names of HAMi's resources in this cluster, by the words count, memory, memory-percentage, cores and priority; "
        "one that is left out keeps the name that HAMi gives it.",
        types.SettingType("names of resources", "WORD=NAME,...", _read_resources, _show_resources, yaml=(dict, str)),
    )
    unlimited_cores: bool = setting(
        "hami-unlimited-cores", True, "A HAMi pod whose shares name no cores may use all idle time of their GPUs."
    )


@dataclass(frozen=True, slots=True)
class WebhookSettings:
    """What the webhook does to pods.

    `default_cores`: of each GPU, for a container that asks for memory alone; 0 denies the pod. `names` follows from
    --resource-domain and `one_node` from --node-choice; both are set by the scheduler.
    """

    scheduler_name: str = setting(
        "scheduler-name",
        "vcuda-scheduler",
        "schedulerName that a GPU pod gets in place of the default one; empty: the default stays.",
        types.OPTIONAL_NAME,
    )
    configuration: str = setting(
        "webhook-configuration",
        "vcuda-scheduler",
        "MutatingWebhookConfiguration in which the scheduler writes the caBundle; empty: the chart or another "
        "tool writes it.",
        types.OPTIONAL_NAME,
    )
    default_cores: int = setting(
        "default-cores",
        10,
        "Cores of each GPU for a container that requests only memory; 0: such a pod is denied.",
        _CORES,
    )
    share_memory: ShareMemory = setting(
        "share-memory",
        ShareMemory(),
        "Memory of a share that requests none: proportional (to its cores, of the smallest known GPU), a number of "
        "256 MiB blocks of each GPU, or off: such a pod is denied.",
        _MEMORY,
    )
    hide_gpus: bool = setting(
        "hide-gpus", True, "Set NVIDIA_VISIBLE_DEVICES=none in the containers of a GPU pod that request no GPU."
    )
    claims: bool = setting(
        "translate-to-claims",
        False,
        "Turn requests for vcuda's resources into ResourceClaims, for nodes whose agents have --dra; the scheduler "
        "keeps the templates.",
    )
    runtime_class: str = setting(
        "runtime-class", "", "Runtime class for GPU pods that name none; empty: none.", types.OPTIONAL_NAME
    )
    state_directory: str = setting(
        "state-directory",
        NODE_STATE,
        "Directory of vcuda on the nodes; the webhook warns about a GPU container that mounts it. Empty: never.",
        types.ABSOLUTE,
    )
    hami: HamiSettings = section(HamiSettings, "HAMi")
    names: ResourceNames = field(default_factory=ResourceNames)
    one_node: bool = False

    @property
    def opt_out_labels(self) -> tuple[str, ...]:
        """Their value is `ignore`; HAMi's is obeyed too."""
        return (f"{self.names.domain}/vcuda-webhook", "hami.io/webhook")
