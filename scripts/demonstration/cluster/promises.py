"""What the cluster's half promises, checked on what API server, agents and containers show independently.

In: findings. Out: one `Promise` for each, held or not, with what was found. Pure.
"""

from collections import Counter
from collections.abc import Iterable, Sequence

from scripts.demonstration.cluster.findings import Gang, Placed, PolicyRun, Simulated, Survivor, Waited
from scripts.demonstration.document import Promise
from scripts.demonstration.promised import promised

CORES_PER_GPU = 100
WHOLE_POLICY = "fragmentation"


def agents_obey(moments: Iterable[Iterable[Placed]]) -> Promise:
    """Annotation, ledger and the container's own environment name the same GPUs, and the first two the same parts."""
    listed = [each for moment in moments for each in moment]
    wrong = [f"{each.pod} {fault}" for each in listed for fault in _disobedience(each)]
    return promised("containers get the very GPUs that the extender chose", wrong, f"{len(listed)} containers")


def nothing_is_chosen_twice(moments: Iterable[Iterable[Placed]]) -> Promise:
    """At each moment, over all pods that were looked at, by their annotations."""
    listed = [_cores(moment) for moment in moments]
    wrong = [
        f"{count} cores of {uuid} are given out"
        for cores in listed
        for uuid, count in cores.items()
        if count > CORES_PER_GPU
    ]
    most = max((count for cores in listed for count in cores.values()), default=0)
    return promised("the extender gives no GPU out twice", wrong, f"{most} of 100 cores of one GPU at most")


def every_arrival_runs(runs: Iterable[PolicyRun]) -> Promise:
    listed = list(runs)
    wrong = [f"{', '.join(run.waiting)} found no place by {run.policy}" for run in listed if run.waiting]
    return promised("all small pods find a place by every policy", wrong, ", ".join(run.policy for run in listed))


def fragmentation_keeps_a_node_whole(runs: Iterable[PolicyRun]) -> Promise:
    large = {run.policy: run.large for run in runs}
    wrong = [] if large.get(WHOLE_POLICY) else [f"by {WHOLE_POLICY} the pod for 8 GPUs waits"]
    if large.get("spread"):
        wrong.append("by spread the pod for 8 GPUs found a whole node too")
    return promised(
        "fragmentation keeps a node whole for 8 GPUs where spread does not", wrong, large.get(WHOLE_POLICY, "")
    )


def is_explained(waited: Waited, *, nodes: Iterable[str], gpus: Iterable[str]) -> Promise:
    """By node and GPU, with what would have to change."""
    wrong = [
        f"vcuda explain does not say {each!r}"
        for each in (*(f"node {name}" for name in nodes), *gpus, "must become free")
        if each not in waited.explanation
    ]
    return promised("vcuda explain says what is missing, by node and GPU", wrong, waited.pod)


def runs_when_there_is_room(waited: Waited) -> Promise:
    wrong = []
    if waited.phase != "Running":
        wrong.append(f"{waited.pod} is {waited.phase or 'not there'} after {waited.ended} has ended")
    if not waited.condition.startswith("0/"):
        wrong.append(f"{waited.pod} did not wait: {waited.condition}")
    return promised("a waiting pod runs as soon as there is room", wrong, f"{waited.pod} after {waited.ended}")


def nothing_is_lost(survivors: Sequence[Survivor]) -> Promise:
    """Each runs, on the node that kube-scheduler had chosen, and its Binding was written once."""
    wrong = []
    for each in survivors:
        if each.phase != "Running":
            wrong.append(f"{each.pod} is {each.phase or 'not there'}")
        if each.bound != each.filtered:
            wrong.append(f"{each.pod} was meant for {each.filtered} and is on {each.bound or 'no node'}")
        if each.writes != 1:
            wrong.append(f"{each.pod} was bound {each.writes} times")
    found = f"{len(survivors)} pods run, each bound once"
    return promised("SIGKILL between filter and bind loses nothing and doubles nothing", wrong, found)


def leaves_nothing_behind(gang: Gang) -> Promise:
    wrong = []
    if gang.found != gang.size - 1 or not gang.reserved:
        wrong.append(f"{gang.found} of {gang.size} members found a node, with {gang.reserved} reservations")
    if gang.bound:
        wrong.append(f"{', '.join(gang.bound)} were bound")
    if gang.left:
        wrong.append(f"{gang.left} reservations are left")
    found = f"{gang.reserved} reservations were given back"
    return promised("a gang that does not fit leaves nothing behind", wrong, found)


def is_bound_whole(gang: Gang) -> Promise:
    wrong = [] if len(gang.bound) == gang.size else [f"{len(gang.bound)} of {gang.size} are bound: {gang.why}"]
    return promised("a gang that fits is bound whole", wrong, f"{len(gang.bound)} pods")


def fragmentation_allocates_most(simulated: Iterable[Simulated]) -> Promise:
    percent = {each.policy: each.allocated_percent_at_130 for each in simulated}
    best = max(percent, key=lambda name: percent[name], default="")
    wrong = [] if best == WHOLE_POLICY else [f"{best or 'nothing'} does"]
    found = f"{percent.get(WHOLE_POLICY, 0):.1f} % of all GPUs"
    return promised("on the example fragmentation allocates most", wrong, found)


def _cores(moment: Iterable[Placed]) -> Counter[str]:
    cores: Counter[str] = Counter()
    for each in moment:
        cores.update({share.uuid: share.cores for share in each.chosen})
    return cores


def _disobedience(placed: Placed) -> Iterable[str]:
    if placed.phase != "Running":
        yield f"is {placed.phase or 'not there'}"
    if not placed.chosen:
        yield "has no allocation of its own in its annotation"
    if placed.held != placed.chosen:
        yield f"was promised {_words(placed)}, and the agent on {placed.node or 'no node'} gave something else"
    if placed.visible != tuple(sorted(share.uuid for share in placed.chosen)):
        yield f"was promised {_words(placed)} and sees {', '.join(placed.visible) or 'nothing'}"


def _words(placed: Placed) -> str:
    return ", ".join(f"{share.cores} cores of {share.uuid}" for share in placed.chosen) or "nothing"
