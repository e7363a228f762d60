"""The pods of the scenarios: what they ask for, as data, and the manifests made of it.

In: how many. Out: `GpuPod` values. Not here: creating them. Invariant: every container of a burst asks for another
(cores, blocks) pair than its neighbours, so that a mix-up shows; the whole burst fits on eight GPUs in any order.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from sandbox.cluster import pods
from sandbox.cluster.client import JsonObject
from tests.e2e.node.view import SHOW, SHOW_AND_STAY

CORE = "tencent.com/vcuda-core"
MEMORY = "tencent.com/vcuda-memory"
WHOLE = 100
BURST = 18
"""Three of each kind. Kubelet calls Allocate for several of them before it starts the first."""
NO_ENVIRONMENT: Mapping[str, str] = {}


@dataclass(frozen=True, slots=True)
class GpuContainer:
    """One container and its slice; `blocks` may be 0 for whole GPUs."""

    name: str
    cores: int
    blocks: int

    @property
    def is_share(self) -> bool:
        return self.cores < WHOLE

    @property
    def gpus(self) -> int:
        return max(1, self.cores // WHOLE)

    def limits(self) -> dict[str, int]:
        return {CORE: self.cores, **({MEMORY: self.blocks} if self.blocks else {})}


@dataclass(frozen=True, slots=True)
class GpuPod:
    """A pod: `init` run one after the other and end, `sidecars` start before `containers` and stay."""

    name: str
    containers: tuple[GpuContainer, ...]
    init: tuple[GpuContainer, ...] = ()
    sidecars: tuple[GpuContainer, ...] = ()

    @property
    def all_containers(self) -> tuple[GpuContainer, ...]:
        return (*self.init, *self.sidecars, *self.containers)

    @property
    def staying(self) -> tuple[GpuContainer, ...]:
        """Those that hold their slice as long as the pod runs."""
        return (*self.sidecars, *self.containers)

    def manifest(self, **metadata: object) -> JsonObject:
        init = [pods.container(each.name, SHOW, each.limits()) for each in self.init]
        sidecars = [
            pods.container(each.name, SHOW_AND_STAY, each.limits(), restartPolicy="Always") for each in self.sidecars
        ]
        main = [pods.container(each.name, SHOW_AND_STAY, each.limits()) for each in self.containers]
        manifest = pods.pod(self.name, main, init=[*init, *sidecars])
        manifest["metadata"].update(metadata)
        return manifest


def burst(prefix: str) -> list[GpuPod]:
    """18 pods: single and double containers, init containers, sidecars and one whole GPU; at most 24 cores a share.

    At most 430 cores in all: were every one of eight GPUs left with the 23 cores that the largest share cannot use,
    616 would still fit, and one GPU stays free for the whole one.
    """
    shares = [_share_pod(f"{prefix}-{number:02}", number) for number in range(BURST - 1)]
    return [*shares, GpuPod(f"{prefix}-whole", (GpuContainer("main", WHOLE, 0),))]


def crowd(prefix: str, count: int) -> list[GpuPod]:
    """Up to 110 pods of 2 to 4 cores and 3 to 11 blocks: single and double containers, init containers, sidecars."""
    return [_small_pod(f"{prefix}-{number:03}", number) for number in range(count)]


def lookalikes(prefix: str) -> list[GpuPod]:
    """12 pods that share either their cores or their blocks with many others; together they fit on one GPU."""
    return [share(f"{prefix}-{number:02}", 4 + number % 2, 8 + number % 3) for number in range(12)]


def share(name: str, cores: int, blocks: int) -> GpuPod:
    return GpuPod(name, (GpuContainer("main", cores, blocks),))


def _share_pod(name: str, number: int) -> GpuPod:
    more = number % 7  # another amount of memory for each neighbour of the same shape
    main, side = GpuContainer("main", 10, 8 + more), GpuContainer("side", 6, 1 + more)
    match number % 6:
        case 0:
            return share(name, 14, 6 + more)
        case 1:
            return GpuPod(name, (GpuContainer("main", 16, 9 + more), side))
        case 2:
            return GpuPod(name, (GpuContainer("main", 18, 10 + more),), init=(GpuContainer("first", 18, 10 + more),))
        case 3:
            init = (GpuContainer("first", 8, 2 + more), GpuContainer("second", 12, 3 + more))
            return GpuPod(name, (GpuContainer("main", 8, 5 + more), GpuContainer("side", 12, 7 + more)), init=init)
        case 4:
            return share(name, 24, 13 + more)
        case _:
            return GpuPod(name, (main,), sidecars=(side,))


def _small_pod(name: str, number: int) -> GpuPod:
    more = number % 7
    main, side = GpuContainer("main", 2, 2 + more % 4), GpuContainer("side", 1 + more % 2, 1 + more % 3)
    match number % 5:
        case 0:
            return share(name, 3, 3 + more)
        case 1:
            return GpuPod(name, (main, side))
        case 2:
            return GpuPod(name, (main,), init=(GpuContainer("first", 3, 3 + more),))
        case 3:
            return GpuPod(name, (main,), sidecars=(side,))
        case _:
            return share(name, 4, 1 + more)
