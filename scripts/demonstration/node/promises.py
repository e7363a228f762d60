"""What the node's half promises, checked on what kubelet, containers and ledger show independently of each other.

In: seen pods, usage documents. Out: one `Promise` for each, held or not, with what was found. Pure.
"""

from collections import Counter
from collections.abc import Iterable

from deviceplugin.observe.usage import ContainerUsage, Usage
from scripts.demonstration.document import Promise, SeenContainer, SeenPod
from scripts.demonstration.promised import promised

GRANT_MOUNT = "/etc/vcuda"
LIMITS_BYTES = 8240
Key = tuple[str, str]


def all_run(pods: Iterable[SeenPod]) -> Promise:
    listed = list(pods)
    idle = [f"{pod.name} is {pod.phase} {pod.message}".rstrip() for pod in listed if pod.phase != "Running"]
    return promised("every pod that fits runs", idle, f"{len(listed)} pods run")


def answers_are_their_own(pods: Iterable[SeenPod], usage: Usage) -> Promise:
    """Each container sees exactly the GPUs that the ledger has for it, and a limits file with its own name in it."""
    entries = {(entry.uid, entry.container): entry for entry in usage.containers}
    wrong: list[str] = []
    grants: Counter[str] = Counter()
    count = 0
    for pod in pods:
        for container in pod.containers:
            grants[_mount(container)] += 1
            count += 1
            entry = entries.get((pod.uid, container.name))
            if entry is not None:
                wrong += [f"{pod.name}/{container.name} {fault}" for fault in _faults(container, entry)]
            elif not container.init:
                wrong.append(f"{pod.name}/{container.name} runs and is not in the ledger")
    wrong += [f"{times} containers mount {path}" for path, times in grants.items() if times > 1]
    return promised("every container's answer is its own", wrong, f"{count} containers")


def nothing_is_given_twice(usage: Usage) -> Promise:
    """At most 100 cores and its own blocks from each GPU, a whole GPU to one pod only, and sums that agree."""
    wrong: list[str] = []
    for gpu in usage.gpus:
        cores, blocks = _taken(usage, gpu.uuid)
        if cores > 100 or blocks > gpu.blocks:
            wrong.append(f"GPU {gpu.minor} has given {cores} cores and {blocks} blocks of {gpu.blocks}")
        if (cores, blocks) != (gpu.cores_allocated, gpu.blocks_allocated):
            wrong.append(f"GPU {gpu.minor} reports {gpu.cores_allocated} cores, its holders have {cores}")
    taken = sum(gpu.cores_allocated for gpu in usage.gpus)
    return promised("no GPU is given out twice", wrong, f"{taken} of {100 * len(usage.gpus)} cores in use")


def same_ledger(before: Usage, after: Usage, *, refused: Iterable[str] = ()) -> Promise:
    """Every grant with its owner and its slots, but for pods (by UID) that kubelet refused when the agent died."""
    gone = set(refused)
    old = {entry.grant: _essence(entry) for entry in before.containers if entry.uid not in gone}
    new = {entry.grant: _essence(entry) for entry in after.containers}
    wrong = [f"{old[grant][1]} was lost" for grant in old.keys() - new.keys()]
    wrong += [f"{new[grant][1]} appeared" for grant in new.keys() - old.keys()]
    wrong += [f"{old[grant][1]} changed" for grant in old.keys() & new.keys() if old[grant] != new[grant]]
    return promised(
        "SIGKILL changed nothing in the ledger", wrong, f"{len(old)} grants before, the same {len(new)} after"
    )


def still_running(expected: Iterable[Key], running: Iterable[Key]) -> Promise:
    stopped = [f"{uid}/{container} stopped" for uid, container in set(expected) - set(running)]
    return promised("no container noticed the kill", stopped, f"{len(set(running))} kept running")


def refused_in_words(pod: SeenPod, *, words: str) -> Promise:
    wrong = []
    if pod.phase != "Failed" or words not in pod.message or "Traceback" in pod.message:
        wrong.append(f"{pod.name} is {pod.phase}: {pod.message or 'no message'}")
    return promised("what no GPU can serve is refused in one sentence", wrong, pod.name)


def ledger_is_empty(usage: Usage) -> Promise:
    left = [f"{entry.namespace}/{entry.pod}/{entry.container} still holds its part" for entry in usage.containers]
    left += [f"GPU {gpu.minor} has {gpu.cores_allocated} cores taken" for gpu in usage.gpus if gpu.cores_allocated]
    return promised("deleted pods give everything back", left, "the ledger is empty")


def share_one_gpu(pods: Iterable[SeenPod]) -> Promise:
    places = {pod.name: pod.gpus for pod in pods}
    apart = [] if len(set(places.values())) == 1 else [f"{name} is on GPU {gpus}" for name, gpus in places.items()]
    return promised("small pods are put together", apart, f"{' and '.join(places)} share a GPU")


def _faults(container: SeenContainer, entry: ContainerUsage) -> list[str]:
    faults = []
    uuids = ",".join(share.uuid for share in entry.gpus)
    if sorted(container.env.get("NVIDIA_VISIBLE_DEVICES", "").split(",")) != sorted(uuids.split(",")):
        faults.append(f"is told {container.env.get('NVIDIA_VISIBLE_DEVICES')!r}, the ledger says {uuids!r}")
    if sorted(container.gpus) != sorted(share.minor for share in entry.gpus if share.minor is not None):
        faults.append(f"has the device nodes of GPUs {container.gpus}, not the ledger's")
    if not _mount(container).endswith(f"/{entry.grant}"):
        faults.append(f"mounts {_mount(container)!r}, not its grant {entry.grant}")
    if (entry.cores, entry.blocks) != (container.cores, container.blocks):
        faults.append(f"asked for {container.cores}/{container.blocks}, the ledger has {entry.cores}/{entry.blocks}")
    if (container.core_ids, container.memory_ids) != (container.cores, container.blocks):
        faults.append(f"holds {container.core_ids} core and {container.memory_ids} memory IDs at kubelet")
    if container.limits_file != LIMITS_BYTES:
        faults.append(f"has a limits file of {container.limits_file} bytes that names it, not {LIMITS_BYTES}")
    return faults


def _mount(container: SeenContainer) -> str:
    return next((mount.host_path for mount in container.mounts if mount.container_path == GRANT_MOUNT), "nothing")


def _taken(usage: Usage, uuid: str) -> tuple[int, int]:
    """What the holders have of one GPU; init containers run before the others and share their pod's room."""
    pods: dict[str, list[ContainerUsage]] = {}
    for entry in usage.containers:
        pods.setdefault(entry.uid, []).append(entry)
    sums = [_room(entries, uuid) for entries in pods.values()]
    return sum(cores for cores, _ in sums), sum(blocks for _, blocks in sums)


def _room(entries: list[ContainerUsage], uuid: str) -> tuple[int, int]:
    apps, inits = (0, 0), (0, 0)
    for entry in entries:
        for share in entry.gpus:
            if share.uuid != uuid:
                continue
            if entry.role == "init":
                inits = (max(inits[0], share.cores), max(inits[1], share.blocks))
            else:
                apps = (apps[0] + share.cores, apps[1] + share.blocks)
    return max(apps[0], inits[0]), max(apps[1], inits[1])


def _essence(entry: ContainerUsage) -> tuple[str, str, int, int, tuple[tuple[str, int, int], ...]]:
    shares = tuple(sorted((share.uuid, share.cores, share.blocks) for share in entry.gpus))
    return entry.uid, f"{entry.namespace}/{entry.pod}/{entry.container}", entry.cores, entry.blocks, shares
