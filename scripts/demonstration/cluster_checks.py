"""What the cluster's show promises, checked on what API server, agents and containers show independently.

In: pods in JSON, and the values of `cluster_inspect`. Out: one `Check` each. Pure.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from scripts.demonstration.cluster_inspect import Gang, Placed, PolicyRun, Survivor
from scripts.demonstration.output import Check, check
from scripts.demonstration.pods import CORE, MEMORY, Json, name_of
from scripts.demonstration.volcano_steps import Abandoned, Tried

SCHEDULER = "vcuda-scheduler"
FRAGMENTATION, SPREAD = "fragmentation", "spread"
Moments = Iterable[Iterable[Placed]]


def ca_is_trusted(ca: str, bundle: str) -> Check:
    """The CA in the Secret, which kube-scheduler reads, is in the webhook's caBundle."""
    wrong = [] if ca and ca.strip() in bundle else ["the webhook's caBundle does not have it"]
    return check("the webhook's caBundle has the CA of vcuda scheduler", wrong, "as the Secret has it")


def sent_to_vcuda_scheduler(stored: Iterable[Json]) -> Check:
    names = {name_of(pod): pod["spec"].get("schedulerName") for pod in stored}
    wrong = [f"{pod} is for {name}" for pod, name in names.items() if name != SCHEDULER]
    return check(f"the webhook assigns GPU pods to {SCHEDULER}", wrong, " and ".join(names))


def hami_is_translated(stored: Json) -> Check:
    """Two GPUs with 30 cores and 4 GiB each, in vcuda's resources, and nothing left of HAMi's."""
    wanted = {CORE: "60", MEMORY: "32"}
    (container,) = stored["spec"]["containers"]
    wrong = []
    for part in ("limits", "requests"):
        found = {key: str(count) for key, count in container["resources"].get(part, {}).items()}
        if found != wanted:
            wrong.append(f"its {part} are {found}, not {wanted}")
    parts = (stored["metadata"].get("annotations") or {}).get("tencent.com/vcuda-gpus")
    if parts != "main=2":
        wrong.append(f"tencent.com/vcuda-gpus is {parts!r}, not 'main=2'")
    return check("a pod written for HAMi needs no change", wrong, "2 GPUs with 30 cores and 4 GiB each")


def refused_in_words(name: str, refusal: str, *, words: str) -> Check:
    wrong = [] if words in refusal and "\n" not in refusal else [refusal or f"{name} was accepted"]
    return check("the webhook refuses a pod that can never run, and says what to write", wrong, name)


def agents_obey(moments: Moments) -> Check:
    """Annotation, ledger and the container's environment name the same GPUs, and the first two the same parts."""
    listed = [each for moment in moments for each in moment]
    wrong = [f"{each.pod} {fault}" for each in listed for fault in _disobedience(each)]
    return check("containers see exactly the GPUs that the extender chose", wrong, f"{len(listed)} containers")


def nothing_is_chosen_twice(moments: Moments) -> Check:
    """At each moment, over all pods that were looked at, by their annotations."""
    taken = [count for moment in moments for count in _cores(moment).items()]
    wrong = [f"{cores} cores of {uuid} are allocated" for uuid, cores in taken if cores > 100]
    most = max((cores for _, cores in taken), default=0)
    return check("the extender allocates no GPU twice", wrong, f"at most {most} of 100 cores of one GPU")


def every_arrival_runs(runs: Sequence[PolicyRun]) -> Check:
    wrong = [f"{run.nodes.count('')} pods found no place with {run.policy}" for run in runs if "" in run.nodes]
    return check("every policy finds a place for all small pods", wrong, ", ".join(run.policy for run in runs))


def fragmentation_keeps_a_node_whole(runs: Iterable[PolicyRun]) -> Check:
    large = {run.policy: run.large for run in runs}
    wrong = [] if large.get(FRAGMENTATION) else [f"with {FRAGMENTATION} the pod for 8 GPUs is Pending"]
    if large.get(SPREAD):
        wrong.append(f"with {SPREAD} the pod for 8 GPUs found a node too")
    promise = f"{FRAGMENTATION} keeps a node free for 8 GPUs, {SPREAD} does not"
    return check(promise, wrong, large.get(FRAGMENTATION, ""))


def is_explained(pod: str, explanation: str, *, nodes: Iterable[str], gpus: Iterable[str]) -> Check:
    """By node and GPU, with what would have to change."""
    wanted = (*(f"node {name}" for name in nodes), *gpus, "must become free")
    wrong = [f"vcuda explain does not say {each!r}" for each in wanted if each not in explanation]
    return check("vcuda explain names the nodes, the GPUs and what is missing", wrong, pod)


def runs_when_there_is_room(pod: str, condition: str, phase: str) -> Check:
    """`condition`: of kube-scheduler, before another pod was deleted; `phase`: afterwards."""
    wrong = [] if phase == "Running" else [f"{pod} is {phase or 'not there'}"]
    if not condition.startswith("0/"):
        wrong.append(f"{pod} did not wait: {condition}")
    return check("a Pending pod runs as soon as there is room", wrong, pod)


def nothing_is_lost(survivors: Sequence[Survivor]) -> Check:
    """Each runs on the node that filter named, and its Binding was written once."""
    wrong = []
    for each in survivors:
        if each.phase != "Running":
            wrong.append(f"{each.pod} is {each.phase or 'not there'}")
        if each.bound != each.filtered:
            wrong.append(f"filter named {each.filtered} for {each.pod}, and it is on {each.bound or 'no node'}")
        if each.writes != 1:
            wrong.append(f"{each.pod} was bound {each.writes} times")
    promise = "SIGKILL between filter and bind loses no pod and binds none twice"
    return check(promise, wrong, f"{len(survivors)} pods run, each bound once")


def leaves_nothing_behind(gang: Gang) -> Check:
    wrong = []
    if gang.found != gang.size - 1 or not gang.reserved:
        wrong.append(f"{gang.found} of {gang.size} members found a node, with {gang.reserved} reservations")
    if gang.bound:
        wrong.append(f"{', '.join(gang.bound)} were bound")
    if gang.left:
        wrong.append(f"{gang.left} reservations are left")
    return check("a gang that does not fit leaves nothing behind", wrong, f"{gang.reserved} reservations were released")


def is_bound_whole(gang: Gang) -> Check:
    wrong = [] if len(gang.bound) == gang.size else [f"{len(gang.bound)} of {gang.size} are bound: {gang.why}"]
    return check("a gang that fits is bound as a whole", wrong, f"{len(gang.bound)} pods")


def sums_are_not_enough(gang: Tried) -> Check:
    wrong = [f"{', '.join(gang.bound)} were bound"] if gang.bound else []
    wrong += [f"{gang.left} reservations are left"] if gang.left else []
    return check("a gang of Volcano that fits only by sums leaves nothing behind", wrong, f"{gang.size} pods")


def mixed_gang_fills_gpus(gang: Tried, seen: Iterable[Placed], *, gpus: int) -> Check:
    cores = _cores(seen)
    wrong = [] if len(gang.bound) == gang.size else [f"{len(gang.bound)} of {gang.size} pods are bound"]
    if sorted(cores.values()) != [100] * gpus:
        wrong.append(f"of {len(cores)} GPUs {', '.join(map(str, cores.values())) or 'no'} cores are allocated")
    return check("a gang of Volcano with mixed sizes fills every GPU", wrong, f"{gang.size} pods on {gpus} GPUs")


def promises_of_the_dead_end(lost: Abandoned, again: Tried) -> Check:
    """What Volcano's scheduler had reserved when it died."""
    wrong = [f"{lost.bound} pods were bound"] if lost.bound else []
    if lost.reserved != lost.size or lost.left:
        wrong.append(f"of {lost.size} pods {lost.reserved} had reservations, and {lost.left} are left")
    if len(again.bound) != again.size:
        wrong.append(f"afterwards {len(again.bound)} of {again.size} pods were bound")
    promise = "reservations end if Volcano's scheduler dies before it binds"
    return check(promise, wrong, f"{lost.reserved} reservations")


def fragmentation_allocates_most(percent: Mapping[str, float]) -> Check:
    """Of all GPUs, by policy."""
    best = max(percent, key=lambda name: percent[name], default="")
    wrong = [] if best == FRAGMENTATION else [f"{best or 'nothing'} does"]
    promise = f"in the simulated example {FRAGMENTATION} allocates most"
    return check(promise, wrong, f"{percent.get(FRAGMENTATION, 0):.1f} % of all GPUs")


def _cores(moment: Iterable[Placed]) -> Counter[str]:
    cores: Counter[str] = Counter()
    for each in moment:
        cores.update({share.uuid: share.cores for share in each.chosen})
    return cores


def _disobedience(placed: Placed) -> Iterable[str]:
    chosen = ", ".join(f"{share.cores} cores of {share.uuid}" for share in placed.chosen) or "nothing"
    if placed.phase != "Running":
        yield f"is {placed.phase or 'not there'}"
    if not placed.chosen:
        yield "has no allocation in its annotation"
    if placed.granted != placed.chosen:
        yield f"was allocated {chosen}, and the agent on {placed.node or 'no node'} allocated something else"
    if placed.visible != tuple(sorted(share.uuid for share in placed.chosen)):
        yield f"was allocated {chosen} and sees {', '.join(placed.visible) or 'nothing'}"
