"""What no moment may show of containers that run side by side.

In: the running GPU containers, and how many memory blocks each GPU has. Out: a sentence for each promise broken; a
container that runs without anything of ours is forgiven if kubelet gave it nothing and the agent tells it.
Not here: looking (`running`).
Invariant: sums are made of what containers have in their hands, so a wrong ledger cannot hide a wrong grant.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from tests.e2e.node.limits import BLOCK_BYTES
from tests.e2e.node.workload import WHOLE
from tests.e2e.soak.kubelet_checkpoint import Owner
from tests.e2e.soak.running import Running


def violations(found: Sequence[Running], blocks_of: Mapping[str, int]) -> list[str]:
    return [
        *(sentence for each in found for sentence in _of_one(each)),
        *_grants_twice(found),
        *_over_committed(found, blocks_of),
        *_shared_whole(found),
    ]


def _of_one(each: Running) -> Iterator[str]:
    share = each.cores < WHOLE
    if each.limits is None:
        yield f"{each.where} runs without a limits file (grant {each.grant or 'none'}, GPUs {each.gpus or 'none'})"
        return
    has = each.limits
    right = (has.pod_uid, has.container, has.cores, has.enforced) == (each.uid, each.container, each.cores, share)
    if not right or (share and has.memory_bytes != each.blocks * BLOCK_BYTES):
        yield f"{each.where} asked for {each.cores} cores and {each.blocks} blocks and its limits file says {has}"
    wanted = max(1, each.cores // WHOLE)
    if len(each.gpus) != wanted or len(each.device_nodes) != wanted:
        yield f"{each.where} asked for {wanted} GPUs and has {each.gpus} with device nodes {each.device_nodes}"


def _grants_twice(found: Iterable[Running]) -> Iterator[str]:
    users = defaultdict(list)
    for each in found:
        if each.grant:
            users[each.grant].append(each.where)
    for grant, where in users.items():
        if len(where) > 1:
            yield f"grant {grant} is mounted by {' and '.join(sorted(where))}"


def _over_committed(found: Iterable[Running], blocks_of: Mapping[str, int]) -> Iterator[str]:
    cores: Counter[str] = Counter()
    blocks: Counter[str] = Counter()
    for each in found:
        for gpu in each.gpus:
            cores[gpu] += min(each.cores, WHOLE)
            blocks[gpu] += each.blocks if each.cores < WHOLE else blocks_of.get(gpu, 0)
    for gpu in cores:
        if gpu not in blocks_of:
            yield f"containers use GPU {gpu}, which the node does not have"
        elif cores[gpu] > WHOLE or blocks[gpu] > blocks_of[gpu]:
            yield f"GPU {gpu} is over-committed: {cores[gpu]} cores, {blocks[gpu]} of {blocks_of[gpu]} blocks"


def _shared_whole(found: Iterable[Running]) -> Iterator[str]:
    users = defaultdict(list)
    for each in found:
        for gpu in each.gpus:
            users[gpu].append(each)
    for gpu, sharing in users.items():
        if len(sharing) > 1 and any(each.cores >= WHOLE for each in sharing):
            names = " and ".join(sorted(each.where for each in sharing))
            yield f"GPU {gpu} was asked for as a whole and is used by {names}"


# ---- containers that asked for a GPU and run without anything of ours ----


TOLD_WITHIN_S = 90.0
"""The agent compares every second; a busy machine and a fault may keep it from doing so for a while."""
Key = tuple[str, str, str]
"""Pod UID, container, and when its first process began."""


@dataclass(slots=True)
class WithoutDevices:
    """Those that were seen so far, with the time of the first look."""

    since: dict[Key, float] = field(default_factory=dict)
    told: set[Key] = field(default_factory=set)

    def look(
        self,
        found: Sequence[Running],
        entries: Collection[Owner],
        is_told: Callable[[Running], bool],
        now: float,
    ) -> list[str]:
        said = []
        for each in found:
            key = each.key
            self.since.setdefault(key, now)
            if (each.uid, each.container) in entries:
                said.append(f"{each.where} runs without its GPU, for which kubelet has devices")
            elif key not in self.told and is_told(each):
                self.told.add(key)
            elif key not in self.told and now - self.since[key] > TOLD_WITHIN_S:
                said.append(f"{each.where} runs without its GPU, and the agent does not tell it")
        return said
