"""What the node's show promises, checked on what kubelet, containers and ledger show independently of each other.

In: seen pods, usage documents, greedy programs. Out: one `Check` each. Pure.
"""

from collections.abc import Iterable, Sequence

from deviceplugin.observe.usage import ContainerUsage, Usage
from sandbox.consistency import SeenPod, given_twice, wrong_answers
from scripts.demonstration.greedy import Slice
from scripts.demonstration.output import Check, check

BLOCK_BYTES = 256 << 20
REFUSAL = "CUDA_ERROR_OUT_OF_MEMORY"
POINTS = 3.0
Key = tuple[str, str]


def all_run(pods: Iterable[SeenPod]) -> Check:
    listed = list(pods)
    idle = [f"{pod.name} is {pod.phase} {pod.message}".rstrip() for pod in listed if pod.phase != "Running"]
    return check("every pod that fits runs", idle, f"{len(listed)} pods run")


def answers_are_their_own(pods: Sequence[SeenPod], usage: Usage) -> Check:
    count = sum(len(pod.containers) for pod in pods)
    return check("every container gets its own share", wrong_answers(pods, usage), f"{count} containers")


def nothing_is_allocated_twice(usage: Usage) -> Check:
    taken = sum(gpu.cores_allocated for gpu in usage.gpus)
    return check("no GPU is allocated twice", given_twice(usage), f"{taken} of {100 * len(usage.gpus)} cores in use")


def same_ledger(before: Usage, after: Usage, *, refused: Iterable[str] = (), admitted: Iterable[str] = ()) -> Check:
    """Every grant with its owner and its parts, except those of pods (by UID) that kubelet refused.

    Pods that were `admitted` about when the agent was killed may have got theirs after `before` was read.
    """
    gone, later = set(refused), set(admitted)
    owners = {entry.grant: entry.uid for entry in after.containers}
    old = {entry.grant: _essence(entry) for entry in before.containers if entry.uid not in gone}
    new = {entry.grant: _essence(entry) for entry in after.containers}
    wrong = [f"{old[grant][1]} was lost" for grant in old.keys() - new.keys()]
    wrong += [f"{new[grant][1]} appeared" for grant in new.keys() - old.keys() if owners[grant] not in later]
    wrong += [f"{old[grant][1]} changed" for grant in old.keys() & new.keys() if old[grant] != new[grant]]
    return check("SIGKILL changes nothing in the ledger", wrong, f"{len(old)} grants before, {len(new)} after")


def still_running(expected: Iterable[Key], running: Iterable[Key]) -> Check:
    stopped = [f"{uid}/{container} stopped" for uid, container in set(expected) - set(running)]
    return check("no container stops when the agent is killed", stopped, f"{len(set(running))} kept running")


def refused_in_words(pod: SeenPod, *, words: str) -> Check:
    refused = pod.phase == "Failed" and words in pod.message and "Traceback" not in pod.message
    wrong = [] if refused else [f"{pod.name} is {pod.phase}: {pod.message or 'no message'}"]
    return check("a pod that no GPU can serve is refused in one sentence", wrong, pod.name)


def ledger_is_empty(usage: Usage) -> Check:
    left = [f"{entry.namespace}/{entry.pod}/{entry.container} still has its part" for entry in usage.containers]
    left += [f"GPU {gpu.minor} has {gpu.cores_allocated} cores taken" for gpu in usage.gpus if gpu.cores_allocated]
    return check("deleted pods give everything back", left, "the ledger is empty")


def share_one_gpu(pods: Iterable[SeenPod]) -> Check:
    places = {pod.name: pod.gpus for pod in pods}
    apart = [] if len(set(places.values())) == 1 else [f"{name} is on GPU {gpus}" for name, gpus in places.items()]
    return check("small pods share one GPU", apart, f"{' and '.join(places)}")


def memory_ends_at_the_limit(slices: Iterable[Slice]) -> Check:
    """The request is the limit and the size that CUDA and NVML report; the program gets all of it and nothing more."""
    listed = list(slices)
    wrong = [f"{each.pod} {fault}" for each in listed for fault in _memory_faults(each)]
    return check("no container gets more memory than it asked for", wrong, f"{len(listed)} stopped with {REFUSAL}")


def time_is_shared_as_asked(slices: Iterable[Slice]) -> Check:
    """Never more; less only by the time for which this machine had no processor for the program."""
    listed = list(slices)
    wrong = [
        f"{each.pod} asked for {each.cores} % of the GPU's time, was limited to {each.limit_cores} % and got "
        f"{each.report.share_percent:.1f} %"
        for each in listed
        if each.limit_cores != each.cores or not is_near(each)
    ]
    off = max((abs(each.report.share_percent - each.cores) for each in listed), default=0.0)
    promise = f"every container gets its share of the GPU's time, within {POINTS:g} points"
    return check(promise, wrong, f"at most {off:.1f} points off")


def is_near(each: Slice) -> bool:
    missed = each.limit_cores * min(1.0, each.cpu_wait_s / each.report.seconds)
    return -POINTS - missed <= each.report.share_percent - each.limit_cores <= POINTS


def _memory_faults(each: Slice) -> Iterable[str]:
    asked, report = each.blocks * BLOCK_BYTES, each.report
    if each.limit_bytes != asked:
        yield f"asked for {asked} bytes and has a limit of {each.limit_bytes}"
    if report.total_bytes != asked:
        yield f"sees {report.total_bytes} bytes of memory, not {asked}"
    if report.nvml is None or report.nvml.total_bytes != asked:
        yield f"sees {report.nvml.total_bytes if report.nvml else 'no'} bytes in NVML, not {asked}"
    if report.refusal != REFUSAL:
        yield f"was stopped with {report.refusal}, not {REFUSAL}"
    if max(each.held_bytes, report.got_bytes) > asked:
        yield f"got {max(each.held_bytes, report.got_bytes)} bytes of {asked}"
    if report.got_bytes < report.free_bytes:
        yield f"had {report.free_bytes} free bytes and got only {report.got_bytes}"


def _essence(entry: ContainerUsage) -> tuple[str, str, int, int, tuple[tuple[str, int, int], ...]]:
    shares = tuple(sorted((share.uuid, share.cores, share.blocks) for share in entry.gpus))
    return entry.uid, f"{entry.namespace}/{entry.pod}/{entry.container}", entry.cores, entry.blocks, shares
