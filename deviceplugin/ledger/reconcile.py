"""Decides what the ledger should change, by what kubelet and the API server show. No I/O, no clock.

In: the grants, kubelet's checkpoint, kubelet's pods and the API server's pods, each of them None if it was not
available. Out: `ReconcileActions` for the agent. No message says that a container ended, so this is how slots become
free. The rules, from certain to careful:

 * A grant is judged by the pod that kubelet's checkpoint names for it, and by its recorded owner only if the checkpoint
   names none. An owner that is not proved yet may be a wrong guess and is judged more slowly.
 * If kubelet shows names only, it says nothing of a pod in its checkpoint whose name nobody has told.
 * A pod that kubelet shows holds its slots until kubelet shows it terminal with no container running.
 * A pod that kubelet no longer shows has ended if the API server says so too; if the API server does not answer, after
   two rounds in a row.
 * If kubelet does not answer, the API server decides in two rounds in a row: the pod is terminal with no container
   running, or gone and not in kubelet's checkpoint, or gone and kubelet has no other pod to show.
 * Nothing is released because something could not be read.

`grants` must be read before the views: a pod is in kubelet's view before its Allocate, so a view that is younger than
the grant cannot lack its pod.

For a journal that was lost, the checkpoint proves grants exactly: the number of IDs is what the container asked for,
NVIDIA_VISIBLE_DEVICES in the recorded answer names its GPUs. IDs only hint at a GPU and are used if the answer names
none. Names and roles are not in the checkpoint. A container whose pod is not known has the role UNKNOWN and counts
beside everything in its pod, which can only count too much; `Ledger.describe` corrects it later. A container that
gpu-manager allocated gets a grant too: it really holds its GPUs. The directory that it mounts has the pod's UID as its
name, and so has the grant; where several containers of the pod mount it, it is none of theirs, and each grant's name
has more.
"""

import enum
from collections.abc import Iterable, Mapping, Set

import msgspec

from deviceplugin.ledger.grant import Checkpoint, Grant, GrantId, RecordedAnswer, Source
from deviceplugin.ledger.ledger import owner_named, share_for
from deviceplugin.model.allocation import Allocation, OwnerKey, PodRef, PodUid
from deviceplugin.model.gpu import GpuUuid, Inventory, gpu_keys, key_of
from deviceplugin.model.pod import ContainerState, Pod, PodContainer
from deviceplugin.model.request import Request
from deviceplugin.model.units import BLOCK_BYTES, CORES_PER_GPU, Resource
from deviceplugin.structs import replace


class Rebuilt(msgspec.Struct, frozen=True):
    """The grants that could be rebuilt, and a sentence for each container for which that failed."""

    grants: tuple[Grant, ...]
    failures: tuple[str, ...]


def rebuild(
    checkpoint: Checkpoint, inventory: Inventory, *, created: float, pods: Mapping[PodUid, Pod] | None = None
) -> Rebuilt:
    """Every container of the checkpoint; with `pods`, only those of pods that are there and have not ended.

    Without `pods` entries of ended pods may come back, since kubelet drops them late; `reconcile` releases them again.
    """
    grants: list[Grant] = []
    failures: list[str] = []
    for uid, container in checkpoint.containers:
        pod = pods.get(uid) if pods is not None else None
        if pods is not None and (pod is None or pod.is_terminal):
            continue
        grant = rebuild_one(checkpoint, uid, container, inventory, created=created, pod=pod)
        if grant is not None:
            grants.append(grant)
        else:
            failures.append(
                f"kubelet's checkpoint gives GPU devices to container {container} of pod {uid}, and the recorded "
                "answer does not say which GPU; its slots are not counted until the pod is created again"
            )
    return Rebuilt(tuple(grants), tuple(failures))


def rebuild_one(
    checkpoint: Checkpoint,
    uid: PodUid,
    container: str,
    inventory: Inventory,
    *,
    created: float = 0.0,
    pod: Pod | None = None,
) -> Grant | None:
    """The grant of one container; None if its recorded answer does not say what it holds."""
    answer = checkpoint.answer_of(uid, container)
    if answer is None:
        return None
    ids = {resource: checkpoint.ids_of(uid, container, resource) for resource in Resource}
    named = _named(answer, inventory)
    uuids = named or _hinted(frozenset().union(*ids.values()), inventory)
    request = _request(len(ids[Resource.CORE]), len(ids[Resource.MEMORY]), answer, len(named))
    if request is None or len(uuids) != request.gpus:
        return None
    owner, role, index = owner_named((uid, container), pod)
    shares = tuple(share_for(uuid, request, inventory) for uuid in uuids)
    return Grant(
        id=answer.grant or _gpu_managers_id(checkpoint, uid, container),
        allocation=Allocation(owner, role, request, shares, index),
        answered=frozenset(resource for resource in Resource if ids[resource]),
        source=Source.CHECKPOINT,
        proved=True,
        created=created,
    )


def _request(cores: int, blocks: int, answer: RecordedAnswer, gpus: int) -> Request | None:
    """Less than the GPUs have that the answer names is a share over all of them."""
    asked = cores or answer.cores or 0
    memory = blocks or (answer.memory_bytes or 0) // BLOCK_BYTES
    if gpus > 1 and 0 < asked < CORES_PER_GPU * gpus:
        return Request(asked, memory, gpus) if memory and not (asked % gpus or memory % gpus) else None
    if asked <= 0 or (asked > CORES_PER_GPU and asked % CORES_PER_GPU):
        return None
    return Request(asked, memory)


def _named(answer: RecordedAnswer, inventory: Inventory) -> tuple[GpuUuid, ...]:
    """UUIDs only: a GPU that is gone is still held, while words like `all` or `void` name none."""
    return tuple(dict.fromkeys(uuid for uuid in answer.gpus if inventory.gpu(uuid) or uuid.startswith("GPU-")))


def _hinted(ids: frozenset[str], inventory: Inventory) -> tuple[GpuUuid, ...]:
    keys, hinted = gpu_keys(gpu.uuid for gpu in inventory.gpus), set(map(key_of, ids))
    return tuple(gpu.uuid for gpu in inventory.gpus if keys[gpu.uuid] in hinted)


def _gpu_managers_id(checkpoint: Checkpoint, uid: PodUid, container: str) -> GrantId:
    is_alone = sum(key[0] == uid for key in checkpoint.containers) == 1
    return GrantId(uid if is_alone else f"{uid}.{container}")


PodName = tuple[str, str]
"""Namespace and name."""
_ROUNDS = 2


class PodsView(msgspec.Struct, frozen=True):
    """All pods of this node as one source shows them, by the UID that kubelet uses (static pods: not the mirror's).

    `complete` is False if absence proves nothing: kubelet just started and shows no pod of the API server yet.
    `by_name`: kubelet showed names only.
    """

    pods: Mapping[PodUid, Pod]
    complete: bool = True
    by_name: bool = False

    @classmethod
    def of(cls, pods: Iterable[Pod], *, complete: bool = True) -> "PodsView":
        return cls({pod.ref.uid: pod for pod in pods}, complete)

    @classmethod
    def of_kubelet(cls, pods: Iterable[Pod]) -> "PodsView":
        """A kubelet that shows a pod of the API server has read all of them; static pods come from its own files."""
        shown = tuple(pods)
        return cls.of(shown, complete=any(not pod.is_static for pod in shown))

    @classmethod
    def of_names(cls, names: Set[PodName], api: "PodsView | None", grants: Iterable[Grant]) -> "PodsView":
        """Kubelet's PodResources as its view if `GET /pods` is refused: it lists pods by namespace and name only.

        The API server adds their UIDs. A name that it does not know is the pod of the grant with that name, unless the
        API server has a new pod of that name.
        """
        known = {_name(pod.ref): pod for pod in api.pods.values()} if api is not None else {}
        listed = [known[name] for name in names if name in known]
        holders = {_name(grant.allocation.owner.pod): grant.allocation.owner.pod for grant in grants}
        unknown = [Pod(holders[name], (), phase="Running") for name in names if name in holders and name not in known]
        view = cls.of([*listed, *unknown], complete=any(not pod.is_static for pod in listed))
        return replace(view, by_name=True)


class Evidence(msgspec.Struct, frozen=True):
    """What one round reads. `suspects`: the result of the previous round."""

    grants: tuple[Grant, ...]
    checkpoint: Checkpoint | None
    kubelet: PodsView | None
    api: PodsView | None
    suspects: Mapping[GrantId, int] = msgspec.field(default_factory=dict)


class ReconcileActions(msgspec.Struct, frozen=True):
    """What to do, in this order: release, reassign, prove, describe, adopt. `suspects` is for the next round.

    `proved`: grants of which the checkpoint says more than the ledger: their owner, or which resources were answered.
    `disproved`: grants for which kubelet's checkpoint names another container, for `Ledger.reassign_to_owner`.
    `described`: grants without the names, role or index of their container, for `Ledger.describe`.
    """

    ended: tuple[Grant, ...]
    disproved: tuple[tuple[Grant, OwnerKey], ...]
    proved: tuple[tuple[GrantId, frozenset[Resource]], ...]
    described: tuple[tuple[GrantId, PodContainer], ...]
    adopt: tuple[Grant, ...]
    suspects: Mapping[GrantId, int]
    failures: tuple[str, ...]


class Verdict(enum.Enum):
    """The result of one round for a grant. LIKELY_ENDED ends it if the next round has the same result."""

    HELD = "held"
    LIKELY_ENDED = "likely ended"
    ENDED = "ended"


def decide(evidence: Evidence, inventory: Inventory, *, now: float) -> ReconcileActions:
    verdicts = {grant.id: verdict(grant, evidence) for grant in evidence.grants}
    suspects = {
        grant_id: evidence.suspects.get(grant_id, 0) + 1
        for grant_id, found in verdicts.items()
        if found is Verdict.LIKELY_ENDED
    }
    certain = {grant_id for grant_id, found in verdicts.items() if found is Verdict.ENDED}
    over = certain | {grant_id for grant_id, rounds in suspects.items() if rounds >= _ROUNDS}
    ended = tuple(grant for grant in evidence.grants if grant.id in over)
    staying = [grant for grant in evidence.grants if grant.id not in over]
    adopt, failures = _missing(evidence, inventory, now)
    return ReconcileActions(
        ended=ended,
        disproved=tuple((grant, key) for grant in staying if (key := _disproved(grant, evidence.checkpoint))),
        proved=tuple(
            (grant.id, recorded)
            for grant in staying
            if (recorded := _recorded(grant, evidence.checkpoint)) and not (grant.proved and recorded <= grant.answered)
        ),
        described=tuple(
            (grant.id, known)
            for grant in staying
            if not _disproved(grant, evidence.checkpoint) and (known := _described(grant, evidence))
        ),
        adopt=adopt,
        suspects={grant_id: rounds for grant_id, rounds in suspects.items() if grant_id not in over},
        failures=failures,
    )


def verdict(grant: Grant, evidence: Evidence) -> Verdict:
    checkpoint = evidence.checkpoint
    seen = _recorded_owner(grant, checkpoint)
    if seen is not None:
        return Verdict.HELD if _is_unnamed(grant, evidence.kubelet) else _pod_verdict(seen[0], evidence)
    found = _pod_verdict(grant.allocation.owner.pod.uid, evidence)
    if grant.proved:
        return Verdict.LIKELY_ENDED if found is Verdict.HELD and _is_orphan(grant, checkpoint) else found
    if checkpoint is None or not checkpoint.exists:
        return Verdict.HELD  # another container may really have it
    return Verdict.HELD if found is Verdict.HELD and not _is_orphan(grant, checkpoint) else Verdict.LIKELY_ENDED


def _is_unnamed(grant: Grant, kubelet: PodsView | None) -> bool:
    """Whether kubelet shows only names, and the pod was admitted while nobody told its name and UID together."""
    owner = grant.allocation.owner.pod
    is_by_name = kubelet is not None and kubelet.by_name
    return is_by_name and grant.source is not Source.CHECKPOINT and (owner.is_only_named or not owner.name)


def _pod_verdict(uid: PodUid, evidence: Evidence) -> Verdict:
    kubelet = evidence.kubelet
    if kubelet is not None and (pod := kubelet.pods.get(uid)) is not None:
        return Verdict.ENDED if _has_stopped(pod) else Verdict.HELD
    if kubelet is not None and kubelet.complete:
        return _absent_in_kubelet(uid, evidence.api)
    return _without_kubelet(uid, evidence)


def _absent_in_kubelet(uid: PodUid, api: PodsView | None) -> Verdict:
    if api is None:
        return Verdict.LIKELY_ENDED
    pod = api.pods.get(uid)
    return Verdict.ENDED if pod is None or pod.is_terminal else Verdict.HELD


def _without_kubelet(uid: PodUid, evidence: Evidence) -> Verdict:
    """Kubelet does not answer, or shows no pod of the API server yet."""
    api = evidence.api
    if api is None:
        return Verdict.HELD
    if (pod := api.pods.get(uid)) is not None:
        return Verdict.LIKELY_ENDED if _has_stopped(pod) else Verdict.HELD
    checkpoint = evidence.checkpoint
    forgotten = checkpoint is not None and checkpoint.exists and uid not in checkpoint.pods
    nothing_to_show = all(pod.is_terminal or pod.is_static for pod in api.pods.values())
    agrees = evidence.kubelet is not None and nothing_to_show
    return Verdict.LIKELY_ENDED if forgotten or agrees else Verdict.HELD


def _name(pod: PodRef) -> PodName:
    return (pod.namespace, pod.name)


def _has_stopped(pod: Pod) -> bool:
    """Terminal, and no container runs: a deleted pod with containers that still stop is neither."""
    return pod.is_terminal and all(each.state is not ContainerState.RUNNING for each in pod.containers)


def _is_orphan(grant: Grant, checkpoint: Checkpoint | None) -> bool:
    """Kubelet recorded another grant for this container and this one for nobody: its answer was dropped."""
    if checkpoint is None or checkpoint.owner_of_grant(grant.id) is not None:
        return False
    return checkpoint.grant_of(*grant.allocation.owner.key) is not None


def _recorded_owner(grant: Grant, checkpoint: Checkpoint | None) -> OwnerKey | None:
    return checkpoint.recorded_owner(grant.id, grant.allocation.owner.key) if checkpoint is not None else None


def _recorded(grant: Grant, checkpoint: Checkpoint | None) -> frozenset[Resource]:
    """The resources that the checkpoint gives to the owner, if it is the one that has this grant."""
    key = grant.allocation.owner.key
    if checkpoint is None or _recorded_owner(grant, checkpoint) != key:
        return frozenset()
    return checkpoint.resources_of(*key)


def _disproved(grant: Grant, checkpoint: Checkpoint | None) -> OwnerKey | None:
    """None too if the checkpoint gives that container two grants: then nothing says which one is its own."""
    seen = _recorded_owner(grant, checkpoint)
    if checkpoint is None or seen is None or seen == grant.allocation.owner.key:
        return None
    return seen if len(checkpoint.grants_of(*seen)) == 1 else None


def _described(grant: Grant, evidence: Evidence) -> PodContainer | None:
    held = grant.allocation
    owner = held.owner
    for view in (evidence.kubelet, evidence.api):
        pod = view.pods.get(owner.pod.uid) if view is not None else None
        found = pod.container(owner.name) if pod is not None else None
        if found is not None:
            changed = (found.ref, found.role, found.index) != (owner, held.role, held.index)
            return found if changed else None
    return None


def _missing(evidence: Evidence, inventory: Inventory, now: float) -> tuple[tuple[Grant, ...], tuple[str, ...]]:
    """Containers of live pods that kubelet recorded with a vcuda answer and that the ledger lacks."""
    views = (evidence.api, evidence.kubelet)
    if evidence.kubelet is not None and evidence.kubelet.complete:
        # Kubelet shows all of its pods then: what only the API server shows has no container here.
        views = (None, evidence.kubelet)
    pods = {uid: pod for view in views if view is not None for uid, pod in view.pods.items()}
    if evidence.checkpoint is None:
        return (), ()
    owners = {grant.allocation.owner.key for grant in evidence.grants}
    ids = {grant.id for grant in evidence.grants}
    found = rebuild(evidence.checkpoint.without(owners), inventory, created=now, pods=pods)
    return tuple(grant for grant in found.grants if grant.id not in ids), found.failures
