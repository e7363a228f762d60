"""What must be left when everything has settled, and when every pod is gone.

In: the node, or what was read of it. Out: a sentence for everything that disagrees or is left over. Not here: waiting.
Invariant: what is left is looked for where it would lie (folders, files, mounts, cgroups), the ledger only as well.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.e2e.node.usage import ContainerUsage, Usage
from tests.e2e.soak.kubelet_checkpoint import Owner, recorded
from tests.e2e.soak.node import Node
from tests.e2e.soak.running import Running, pod_cgroups, running_now


@dataclass(frozen=True, slots=True)
class Remains:
    """What lies on the node."""

    holders: tuple[str, ...]
    counted: tuple[str, ...]
    grant_folders: tuple[str, ...]
    recorded: Mapping[Owner, frozenset[str]]
    mounts: tuple[str, ...]
    cgroups: tuple[str, ...]


def read_remains(node: Node, mounts_before: Collection[str]) -> Remains:
    usage = node.agent.usage()
    return Remains(
        holders=tuple(f"{each.pod}/{each.container} {each.grant}" for each in usage.containers),
        counted=tuple(gpu.uuid for gpu in usage.gpus if gpu.cores_allocated or gpu.blocks_allocated),
        grant_folders=tuple(node.agent.grant_folders()),
        recorded=recorded(node.kubelet_checkpoint) or {},
        mounts=tuple(sorted(set(mounts_of(node)) - set(mounts_before))),
        cgroups=tuple(sorted(pod_cgroups(node.cluster.layout.name))),
    )


def mounts_of(node: Node) -> list[str]:
    """Mount points and sources below the agent's folder, where containers are started and where this process runs."""
    folder = str(node.cluster.layout.root)
    tables = (node.mounts, Path("/proc/self/mounts"))
    lines = (line for table in tables for line in table.read_text().splitlines())
    return [" ".join(line.split()[:3]) for line in lines if folder in line and "/soak-" in line]


def left_over(remains: Remains, *, last: str) -> list[str]:
    """`last`: the UID of the last pod. Kubelet removes the entries of ended pods at its next Allocate only."""
    found = {
        "the ledger has": remains.holders,
        "the ledger counts something on": remains.counted,
        "grant folders are left": remains.grant_folders,
        "kubelet's checkpoint has entries of pods": tuple(sorted({uid for uid, _ in remains.recorded} - {last})),
        "mounts are left": remains.mounts,
        "cgroups are left of pods": remains.cgroups,
    }
    return [f"all pods are gone and {what}: {', '.join(which)}" for what, which in found.items() if which]


def read_disagreements(node: Node) -> list[str]:
    """Containers that ran before and after the ledger was asked are compared with it."""
    name = node.cluster.layout.name
    before = running_now(name)
    usage, folders = node.agent.usage(), node.agent.grant_folders()
    after = {(each.pid, each.began) for each in running_now(name)}
    return disagreements([each for each in before if (each.pid, each.began) in after], usage, folders)


def disagreements(found: Sequence[Running], usage: Usage, folders: Collection[str]) -> list[str]:
    """Between running containers, the ledger and the folders of grants. Those without any device have no entry."""
    held = {(each.uid, each.container): each for each in usage.containers}
    said = [] if len(held) == len(usage.containers) else ["a container stands twice in the ledger"]
    for each in found:
        if not each.has_nothing:
            said += _of_one(each, held.get((each.uid, each.container)))
    for gpu in usage.gpus:
        if gpu.cores_allocated > 100 or gpu.blocks_allocated > gpu.blocks:
            said.append(f"the ledger gives out more of a GPU than it has: {gpu}")
    grants = {each.grant for each in usage.containers}
    if missing := sorted(grants - set(folders)):
        said.append(f"grants without a folder: {', '.join(missing)}")
    if spare := sorted(set(folders) - grants):
        said.append(f"folders without a grant: {', '.join(spare)}")
    return said


def _of_one(each: Running, entry: ContainerUsage | None) -> list[str]:
    if entry is None:
        return [f"{each.where} runs and is not in the ledger"]
    said = []
    if entry.grant != each.grant:
        said.append(f"{each.where} mounts {each.grant} and the ledger has {entry.grant}")
    if tuple(sorted(gpu.uuid for gpu in entry.gpus)) != each.gpus:
        said.append(f"{each.where} sees {each.gpus} and the ledger has {[gpu.uuid for gpu in entry.gpus]}")
    if not entry.proved:
        said.append(f"{each.where} runs and its grant is not proved")
    return said
