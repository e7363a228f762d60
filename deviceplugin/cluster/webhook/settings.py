"""What the operator chose for the webhook, and what is known of the cluster's GPUs.

In: settings as `config` reads them, inventories as the nodes carry them. Out: frozen values. Not here: what follows
from them. An empty `KnownGpus` is an honest one: then nothing is reckoned in parts of a GPU's memory and no warning is
given.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from deviceplugin.model.gpu import Inventory
from deviceplugin.model.share_memory import ShareMemory
from deviceplugin.model.units import ResourceNames, blocks_in


@dataclass(frozen=True, slots=True)
class HamiSettings:
    """HAMi's resources by the names that its chart was given here.

    `every`: a pod that names `count` alone is HAMi's too. `unlimited_cores`: a share that names no cores may, as with
    HAMi, use all idle time of its GPU (a soft limit of 100 %); otherwise `default_cores` are its limit.
    """

    count: str = "nvidia.com/gpu"
    memory: str = "nvidia.com/gpumem"
    memory_percentage: str = "nvidia.com/gpumem-percentage"
    cores: str = "nvidia.com/gpucores"
    priority: str = "nvidia.com/priority"
    every: bool = False
    unlimited_cores: bool = True

    @property
    def marks(self) -> tuple[str, ...]:
        """Resources that nobody but HAMi has."""
        return (self.memory, self.memory_percentage, self.cores, self.priority)

    @property
    def resources(self) -> tuple[str, ...]:
        return (self.count, *self.marks)


@dataclass(frozen=True, slots=True)
class WebhookSettings:
    """Each by its default; `hami` None leaves `nvidia.com/gpu` to whoever else offers it.

    `default_cores`: of each GPU, for a container that asks for memory alone; 0 denies it. `namespaces`: only these,
    all where it is empty; `ignored_namespaces` are left alone in either case. An empty `runtime_class` sets none.
    """

    names: ResourceNames = field(default_factory=ResourceNames)
    scheduler_name: str = "vcuda-scheduler"
    default_cores: int = 10
    share_memory: ShareMemory = field(default_factory=ShareMemory)
    hide_gpus: bool = False
    library_path: bool = True
    runtime_class: str = ""
    hami: HamiSettings | None = None
    namespaces: frozenset[str] = frozenset()
    ignored_namespaces: frozenset[str] = frozenset()

    @property
    def opt_out_label(self) -> str:
        return f"{self.names.domain}/vcuda-webhook"

    @property
    def opt_out_labels(self) -> tuple[str, ...]:
        """Their value is `ignore`; HAMi's is obeyed too."""
        return (self.opt_out_label, "hami.io/webhook")

    def concerns(self, namespace: str) -> bool:
        return namespace not in self.ignored_namespaces and (not self.namespaces or namespace in self.namespaces)


@dataclass(frozen=True, slots=True)
class KnownGpus:
    """What all nodes' inventories say together; `most` is the largest number of GPUs of one node."""

    smallest_blocks: int = 0
    largest_blocks: int = 0
    most: int = 0
    models: frozenset[str] = frozenset()

    @classmethod
    def of(cls, inventories: Iterable[Inventory]) -> "KnownGpus":
        """Unhealthy GPUs count: they may come back, and a pod can wait for them."""
        counts, blocks, models = [0], set[int](), set[str]()
        for inventory in inventories:
            counts.append(len(inventory.gpus))
            blocks.update(blocks_in(gpu.memory_bytes) for gpu in inventory.gpus)
            models.update(gpu.model for gpu in inventory.gpus)
        return cls(min(blocks, default=0), max(blocks, default=0), max(counts), frozenset(models))

    @property
    def is_empty(self) -> bool:
        return self.most == 0
