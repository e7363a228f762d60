"""Claims become grants, exactly once, whatever kubelet repeats and whatever is away; and all of them end."""

import asyncio
import errno
import os
import time
from collections.abc import Awaitable, Callable, Sequence, Set
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path

import pytest

from deviceplugin.errors import (
    CapacityError,
    ClaimError,
    ContainerError,
    KubeError,
    KubeNotFoundError,
    LedgerError,
    VcudaError,
)
from deviceplugin.kubelet.dra.claim_grants import ClaimsOfCall, PreparedDevice
from deviceplugin.kubelet.dra.prepare import Claims
from deviceplugin.kubelet.dra.state_file import PreparedClaim
from deviceplugin.ledger.grant import Grant, GrantId
from deviceplugin.ledger.ledger import Ledger
from deviceplugin.model.allocation import PodUid
from deviceplugin.model.claims import Claim, ClaimedDevice, ClaimRef, ClaimUid, ContainerClaim
from deviceplugin.model.pod import Pod, PodContainer
from deviceplugin.model.units import BLOCK_BYTES
from deviceplugin.structs import replace
from tests.kubelet.makers import pod as pod_of
from tests.ledger.makers import BLOCKS, grant, inventory, open_ledger, uuid

DRIVER, POOL = "gpu.vcuda.tencent.com", "node-a"
NODE = inventory(4)


@dataclass
class MemoryFiles:
    """`refusals`: how many of the next calls fail. `written` counts the calls of each grant."""

    written: dict[GrantId, int] = field(default_factory=dict)
    dropped: list[GrantId] = field(default_factory=list)
    refusals: int = 0

    async def ready(self, grant: Grant, container: PodContainer | None) -> str:
        if self.refusals:
            self.refusals -= 1
            raise ContainerError("the disk is full")
        self.written[grant.id] = self.written.get(grant.id, 0) + 1
        return f"tencent.com/vcuda={grant.id}"

    def drop(self, grant: Grant) -> None:
        self.dropped.append(grant.id)
        self.written.pop(grant.id, None)


@dataclass
class Heard:
    """`kubelet.dra.prepare.ClaimReport`: the sentences of refusals, and what was prepared for which pods."""

    prepared: list[tuple[GrantId, tuple[str, ...]]] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    took_s: list[float] = field(default_factory=list)

    def claim_prepared(
        self, grants: Sequence[Grant], devices: Sequence[PreparedDevice], pods: Sequence[Pod], *, seconds: float
    ) -> None:
        assert seconds >= 0
        self.prepared.extend((grant.id, tuple(each.device for each in devices)) for grant in grants)

    def claim_refused(self, error: VcudaError, *, seconds: float) -> None:
        self.refused.append(error.message)
        self.took_s.append(seconds)


@dataclass
class Scene:
    """`known`: the claims of the API server. `faults`: what the next reads raise. `pods`: those of the node."""

    folder: Path
    ledger: Ledger
    files: MemoryFiles = field(default_factory=MemoryFiles)
    report: Heard = field(default_factory=Heard)
    known: dict[str, Claim] = field(default_factory=dict)
    faults: list[Exception] = field(default_factory=list)
    pods: dict[PodUid, Pod] = field(default_factory=dict)
    reads: int = 0
    slow_s: float = 0.0
    claims: Claims = field(init=False)

    def __post_init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """The agent is killed and starts again: the journal is all that is left."""
        self.ledger.close()
        self.ledger = open_ledger(self.folder)
        self.claims = Claims(
            ledger=self.ledger,
            inventory=lambda: NODE,
            get_claim=self.get,
            get_pods=self.find,
            files=self.files,
            report=self.report,
            driver=DRIVER,
            pool=POOL,
            wait_s=0.6,
            look_s=0.05,
        )

    async def get(self, ref: ClaimRef) -> Claim:
        self.reads += 1
        await asyncio.sleep(self.slow_s)
        if self.faults:
            raise self.faults.pop(0)
        found = self.known.get(ref.name)
        if found is None or (ref.uid and found.ref.uid != ref.uid):
            raise KubeNotFoundError(f"claim {ref} is gone", code=404)
        return found

    async def find(self, uids: Set[PodUid]) -> dict[PodUid, Pod]:
        return {uid: self.pods[uid] for uid in uids if uid in self.pods}

    def put(self, name: str, *devices: ClaimedDevice, uid: str = "") -> ClaimRef:
        """With a pod that has a container for each request."""
        ref = ClaimRef(ClaimUid(uid or f"uid-{name}"), "research", name)
        given = devices or (device(0),)
        self.known[name] = Claim(ref, given, frozenset({f"pod-{name}"}))
        self.use(
            f"pod-{name}", *((ContainerClaim(name, each),) for each in dict.fromkeys(one.request for one in given))
        )
        return ref

    def use(self, pod: str, *containers: tuple[ContainerClaim, ...], deleting: bool = False) -> None:
        """A pod whose containers name these claims."""
        made = pod_of(pod, *((f"c{at}", 0, 0) for at in range(len(containers))), deleting=deleting)
        named = zip(made.containers, containers, strict=True)
        claiming = tuple(replace(container, claims=claims) for container, claims in named)
        ref = replace(made.ref, uid=PodUid(pod), namespace="research")
        self.pods[PodUid(pod)] = replace(made, ref=ref, containers=claiming)

    def held(self) -> dict[int, int]:
        """Cores by GPU."""
        shares = [share for each in self.ledger.allocations() for share in each.shares]
        return {at: sum(each.cores for each in shares if each.uuid == uuid(at)) for at in range(4)}


def device(at: int, cores: int = 20, blocks: int = 8, *, request: str = "gpu", share: str = "s") -> ClaimedDevice:
    consumed = {"cores": Fraction(cores), "memory": Fraction(blocks * BLOCK_BYTES)}
    return ClaimedDevice(request, DRIVER, POOL, f"gpu-{at}", share, consumed)


@pytest.fixture
def scene(short_tmp: Path) -> Scene:
    return Scene(short_tmp, open_ledger(short_tmp))


async def test_a_share_is_granted_and_its_files_are_ready(scene: Scene) -> None:
    ref = scene.put("one")
    (prepared,) = await scene.claims.prepare(ref)
    (held,) = scene.ledger.grants()
    assert prepared == PreparedDevice("gpu", POOL, "gpu-0", "s", f"tencent.com/vcuda={held.id}")
    assert (held.allocation.owner.pod.uid, held.allocation.owner.name, held.proved) == (PodUid(ref.uid), "gpu", True)
    assert [(each.uuid, each.cores, each.blocks) for each in held.allocation.shares] == [(uuid(0), 20, 8)]
    assert scene.files.written == {held.id: 1}


async def test_a_repeated_call_writes_the_same_files_again_and_grants_nothing(scene: Scene) -> None:
    ref = scene.put("one")
    first = await scene.claims.prepare(ref)
    assert await scene.claims.prepare(ref) == first
    scene.restart()
    assert await scene.claims.prepare(ref) == first
    assert list(scene.files.written.values()) == [3]
    (held,) = scene.ledger.grants()
    assert scene.report.prepared == [(held.id, ("gpu-0",))], "told once"


async def test_a_refusal_is_reported(scene: Scene) -> None:
    with pytest.raises(ClaimError, match="research/bad") as refused:
        await scene.claims.prepare(scene.put("bad", device(0, 150)))
    assert scene.report.refused == [refused.value.message]
    assert scene.report.prepared == []


async def test_two_pods_that_start_together_on_one_claim_share_its_grant(scene: Scene) -> None:
    ref = scene.put("shared")
    answers = await asyncio.gather(*(scene.claims.prepare(ref) for _ in range(5)))
    assert len(set(answers)) == len(scene.ledger.grants()) == 1


async def test_several_gpus_have_one_name_and_whole_gpus_all_their_memory(scene: Scene) -> None:
    ref = scene.put("four", *(device(at, 100, BLOCKS) for at in range(4)))
    prepared = await scene.claims.prepare(ref)
    assert [(each.device, bool(each.cdi)) for each in prepared] == [
        ("gpu-0", True),
        ("gpu-1", False),
        ("gpu-2", False),
        ("gpu-3", False),
    ]
    assert scene.held() == {0: 100, 1: 100, 2: 100, 3: 100}


async def test_each_request_has_its_own_grant_and_name(scene: Scene) -> None:
    ref = scene.put("two", device(0, request="main"), device(0, 30, request="side"))
    prepared = await scene.claims.prepare(ref)
    assert len({each.cdi for each in prepared}) == 2
    assert scene.held()[0] == 50


async def test_requests_that_do_not_fit_together_leave_nothing(scene: Scene) -> None:
    ref = scene.put("two", device(0, 60, request="main"), device(0, 60, request="side"))
    with pytest.raises(CapacityError, match=r"has 100 cores and .* free and the request needs 120 cores"):
        await scene.claims.prepare(ref)
    assert (scene.ledger.grants(), scene.files.written) == ((), {})


async def test_unprepare_ends_it_also_twice_and_when_the_claim_is_gone(scene: Scene) -> None:
    ref = scene.put("one", device(0, request="a"), device(1, request="b"))
    await scene.claims.prepare(ref)
    scene.known.clear()
    for _ in range(2):
        await scene.claims.unprepare(ref)
    assert scene.ledger.grants() == ()
    assert len(scene.files.dropped) == 2
    assert scene.reads == 1, "the API server is not asked"


async def test_nothing_is_answered_before_the_ledger_is_on_the_disk(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kubelet repeats a call that failed, and gets the answer when the disk has what the first one decided."""
    ref = scene.put("one")
    failing = iter([True, False, True])

    def wait(_: int) -> None:
        if next(failing, False):
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fdatasync", wait)
    for call in (scene.claims.prepare, scene.claims.unprepare):
        with pytest.raises(LedgerError, match="nothing is answered until it can be"):
            await call(ref)
        held = [each.id for each in scene.ledger.grants()]
        await call(ref)
        assert held == [each.id for each in scene.ledger.grants()]
    assert (held, len(scene.files.dropped)) == ([], 1)


async def test_room_is_waited_for(scene: Scene) -> None:
    """Kubelet asks again only after a minute, and the former holder ends within seconds."""
    former, later = scene.put("former", device(0, 80)), scene.put("later", device(0, 80))
    await scene.claims.prepare(former)
    waiting = asyncio.create_task(scene.claims.prepare(later))
    await asyncio.sleep(0.2)
    assert not waiting.done()
    await scene.claims.unprepare(former)
    assert len(await waiting) == 1
    assert scene.held()[0] == 80


async def test_room_that_a_pod_of_the_device_plugin_holds_is_waited_for_too(scene: Scene) -> None:
    scene.ledger.grant(grant("pod", cores=90, blocks=8), NODE)
    waiting = asyncio.create_task(scene.claims.prepare(scene.put("later")))
    await asyncio.sleep(0.1)
    assert not waiting.done()
    scene.ledger.release([GrantId("g-pod-main")], why="its pod ended")
    assert len(await waiting) == 1


async def test_after_the_wait_kubelet_is_told_what_is_free(scene: Scene) -> None:
    await scene.claims.prepare(scene.put("former", device(0, 90)))
    with pytest.raises(CapacityError, match=r"has 10 cores and .* free and the request needs 20 cores"):
        await scene.claims.prepare(scene.put("later"))


@pytest.mark.parametrize(
    "change",
    [{"deleting": True}, {"consumers": frozenset()}, {"devices": None}],
    ids=["deleted", "unreserved", "freed"],
)
async def test_nobody_waits_for_a_claim_that_is_not_needed_any_more(scene: Scene, change: dict[str, object]) -> None:
    """A deleted pod stays until its call has ended."""
    await scene.claims.prepare(scene.put("former", device(0, 90)))
    ref = scene.put("later")
    waiting = asyncio.create_task(scene.claims.prepare(ref))
    await asyncio.sleep(0.1)
    scene.known["later"] = replace(scene.known["later"], **change)  # type: ignore[arg-type]
    with pytest.raises(ClaimError, match="is not needed any more"):
        await asyncio.wait_for(waiting, 0.3)
    assert scene.held()[0] == 90


async def test_nobody_waits_for_a_claim_whose_pods_are_deleted(scene: Scene) -> None:
    """The claim goes after its pod, and the pod waits for this call."""
    await scene.claims.prepare(scene.put("former", device(0, 90)))
    waiting = asyncio.create_task(scene.claims.prepare(scene.put("later")))
    await asyncio.sleep(0.1)
    scene.use("pod-later", (ContainerClaim("later"),), deleting=True)
    with pytest.raises(ClaimError, match="is not needed any more"):
        await asyncio.wait_for(waiting, 0.3)


async def test_a_claim_that_is_allocated_again_while_it_waits_gets_what_it_has_now(scene: Scene) -> None:
    """Its pod is deleted, kube-scheduler gives it another GPU for another pod, and the first GPU to another claim."""
    former, moved = scene.put("former", device(0, 80)), scene.put("moved", device(0, 80))
    await scene.claims.prepare(former)
    waiting = asyncio.create_task(scene.claims.prepare(moved))
    await asyncio.sleep(0.02)
    scene.known["moved"] = replace(scene.known["moved"], devices=(device(1, 80),))
    await scene.claims.unprepare(former)
    (prepared,) = await waiting
    assert (prepared.device, scene.held()) == ("gpu-1", {0: 0, 1: 80, 2: 0, 3: 0})
    assert await scene.claims.prepare(scene.put("next", device(0, 80)))


async def test_a_claim_that_is_allocated_again_while_its_pod_is_awaited_gets_what_it_has_now(scene: Scene) -> None:
    now = [0.0]
    scene.claims.clock, scene.claims.wait_s = lambda: now[0], 40.0
    ref = scene.put("one", device(0))
    pod = scene.pods.pop(PodUid("pod-one"))
    waiting = asyncio.create_task(scene.claims.prepare(ref))
    await asyncio.sleep(0.05)
    scene.known["one"] = replace(scene.known["one"], devices=(device(1),))
    scene.pods[PodUid("pod-one")] = pod
    now[0] = 20.0
    (prepared,) = await waiting
    assert (prepared.device, scene.reads) == ("gpu-1", 2)


async def test_changes_of_the_ledger_that_give_no_room_cost_the_api_server_nothing(scene: Scene) -> None:
    scene.claims.look_s = scene.claims.wait_s = 10.0
    former, later = scene.put("former", device(0, 80)), scene.put("later", device(0, 80))
    await scene.claims.prepare(former)
    waiting = asyncio.create_task(scene.claims.prepare(later))
    for at in range(5):
        await asyncio.sleep(0.01)
        scene.ledger.grant(grant(f"pod-{at}", cores=5, blocks=1, on=(1,)), NODE)
    assert scene.reads == 2
    await scene.claims.unprepare(former)
    await waiting
    assert scene.reads == 3, "again, for the wait"


@pytest.mark.parametrize("named", ["", "main"])
async def test_a_container_with_two_parts_of_one_claim_is_refused(scene: Scene, named: str) -> None:
    """Of two CDI devices with the same mounts the last wins: two GPUs with the limits of one."""
    ref = scene.put("two", device(0, request="main"), device(1, request="side"))
    scene.use("pod-two", (ContainerClaim("two", named), ContainerClaim("two", "side")))
    with pytest.raises(
        ClaimError, match=r"c0 would have 2 parts of GPUs \(two/main, two/side\), and a container may have"
    ):
        await scene.claims.prepare(ref)
    assert scene.ledger.grants() == ()


async def test_a_container_with_parts_of_two_claims_is_refused(scene: Scene) -> None:
    one, other = scene.put("one"), scene.put("other", device(1))
    both = (ContainerClaim("one"), ContainerClaim("other"))
    scene.known = {name: replace(claim, consumers=frozenset({"both"})) for name, claim in scene.known.items()}
    scene.use("both", both)
    for ref in (one, other):
        with pytest.raises(ClaimError, match="would have 2 parts of GPUs"):
            await scene.claims.prepare(ref)


async def test_claims_of_other_drivers_beside_ours_are_nothing_to_us(scene: Scene) -> None:
    ref = scene.put("one")
    scene.put("network", replace(device(0), driver="net.example.org"))
    scene.use("pod-one", (ContainerClaim("one"), ContainerClaim("network"), ContainerClaim("not-there-yet")))
    assert len(await scene.claims.prepare(ref)) == 1


async def test_a_pod_whose_claims_are_not_all_read_is_refused_before_others_are_read(scene: Scene) -> None:
    """The second part could be among them."""
    ref = scene.put("one")
    scene.use("pod-one", tuple(ContainerClaim(name) for name in ("one", *(f"n{at}" for at in range(100)))))
    scene.pods[PodUid("pod-one")] = replace(scene.pods[PodUid("pod-one")], has_unread_claims=True)
    with pytest.raises(ClaimError, match="more than 256 claims, or its containers name them more than 1,024 times"):
        await scene.claims.prepare(ref)
    assert (scene.reads, scene.ledger.grants()) == (1, ())


def beside_networks(scene: Scene, ours: int, networks: int) -> list[ClaimRef]:
    """A pod with containers that have a claim of ours each, and all of another driver's."""
    others = [scene.put(f"n{at}", replace(device(0), driver="net.example.org")) for at in range(networks)]
    refs = [scene.put(f"c{at}", device(at % 4, 1, 1)) for at in range(ours)]
    named = tuple(ContainerClaim(each.name) for each in others)
    scene.use("pod", *((ContainerClaim(each.name), *named) for each in refs))
    scene.known = {name: replace(each, consumers=frozenset({"pod"})) for name, each in scene.known.items()}
    return refs


async def test_one_call_reads_each_claim_once(scene: Scene) -> None:
    refs, of_call = beside_networks(scene, ours=20, networks=30), ClaimsOfCall()
    await asyncio.gather(*(scene.claims.prepare(each, claims=of_call) for each in refs))
    assert (scene.reads, len(scene.ledger.grants())) == (20 + 30, 20)


async def test_others_have_their_turn_between_two_claims_of_a_call(scene: Scene) -> None:
    """The loop waits for the disk at each."""
    refs, turns, granted_at = [scene.put(f"c{at}", device(at % 4, 1, 1)) for at in range(20)], [0], list[int]()
    scene.ledger.subscribe(lambda: granted_at.append(turns[0]))

    async def others() -> None:
        while True:
            turns[0] += 1
            await asyncio.sleep(0)

    beside = asyncio.create_task(others())
    await asyncio.gather(*map(scene.claims.prepare, refs))
    beside.cancel()
    assert len(set(granted_at)) == len(granted_at) == 20


async def test_after_one_claim_too_many_no_other_one_is_read(scene: Scene) -> None:
    refs, of_call = [scene.put(f"c{at}", device(at % 4, 1, 1)) for at in range(50)], ClaimsOfCall()
    scene.use("pod", tuple(ContainerClaim(each.name) for each in refs))
    scene.known = {name: replace(each, consumers=frozenset({"pod"})) for name, each in scene.known.items()}
    with pytest.raises(ClaimError, match="would have 2 parts"):
        await scene.claims.prepare(refs[0])
    assert scene.reads == 2
    answers = await asyncio.gather(
        *(scene.claims.prepare(each, claims=of_call) for each in refs), return_exceptions=True
    )
    assert {type(each) for each in answers} == {ClaimError}
    assert scene.reads <= 2 + 2 * 50


async def test_no_other_claim_is_read_after_the_deadline(scene: Scene) -> None:
    (ref,) = beside_networks(scene, ours=1, networks=100)
    scene.claims.clock, scene.claims.wait_s = lambda: float(scene.reads), 10.0
    with pytest.raises(KubeError, match=r"did not show claim research/n.* in time"):
        await scene.claims.prepare(ref)
    assert scene.reads <= 10


async def test_a_pod_that_is_shown_late_is_waited_for(scene: Scene) -> None:
    ref = scene.put("one")
    pod = scene.pods.pop(PodUid("pod-one"))
    waiting = asyncio.create_task(scene.claims.prepare(ref))
    await asyncio.sleep(0.1)
    scene.pods[PodUid("pod-one")] = pod
    assert len(await waiting) == 1


async def test_nothing_is_granted_before_the_ledger_has_what_kubelet_recorded(scene: Scene) -> None:
    known = [False]
    scene.claims.is_complete = lambda: known[0]
    waiting = asyncio.create_task(scene.claims.prepare(scene.put("one")))
    await asyncio.sleep(0.2)
    assert not waiting.done()
    known[0] = True
    assert len(await waiting) == 1


async def test_what_kubelet_recorded_is_rebuilt_under_its_name(scene: Scene) -> None:
    ref = scene.put("two", device(0, request="main"), device(1, 30, request="side"))
    names = {"main": "tencent.com/vcuda=g-1", "side": "tencent.com/vcuda=g-2"}
    claim = scene.known["two"]
    adopted = scene.claims.adopt(PreparedClaim(ref, frozenset({"pod-two"}), names), claim)
    assert {each.id for each in adopted} == {"g-1", "g-2"}
    assert scene.claims.adopt(PreparedClaim(ref, frozenset({"pod-two"}), names), claim) == ()
    await scene.claims.write(claim)
    assert scene.files.written == {"g-1": 1, "g-2": 1}
    assert (scene.held()[0], scene.held()[1]) == (20, 30)
    assert [each.cdi for each in await scene.claims.prepare(ref)] == list(names.values())


async def test_an_api_server_that_is_away_is_asked_again(scene: Scene) -> None:
    ref = scene.put("one")
    scene.faults += [KubeError("no answer"), KubeError("busy", code=500)]
    assert len(await scene.claims.prepare(ref)) == 1
    assert scene.reads == 3


async def test_an_api_server_that_stays_away_is_said(scene: Scene) -> None:
    scene.faults += [KubeError("no answer")] * 100
    with pytest.raises(KubeError, match="no answer"):
        await scene.claims.prepare(scene.put("one"))
    assert scene.ledger.grants() == ()


async def test_an_api_server_that_does_not_answer_is_said_before_kubelet_ends_the_call(scene: Scene) -> None:
    ref = scene.put("one")
    scene.slow_s = 60
    async with asyncio.timeout(20):
        with pytest.raises(KubeError, match="the API server did not show claim research/one in time"):
            await scene.claims.prepare(ref)


async def test_what_the_call_has_waited_already_is_not_waited_again(scene: Scene) -> None:
    scene.claims.wait_s = 60
    full, late = scene.put("full", device(0, 90)), scene.put("late")
    await scene.claims.prepare(full)
    async with asyncio.timeout(20):
        with pytest.raises(CapacityError):
            await scene.claims.prepare(late, waited_s=60)


async def test_another_claim_of_the_same_name_is_another_claim(scene: Scene) -> None:
    old = scene.put("one", uid="old")
    await scene.claims.prepare(old)
    new = scene.put("one", device(1), uid="new")
    await scene.claims.prepare(new)
    with pytest.raises(ClaimError, match="is gone"):
        await scene.claims.prepare(old)
    await scene.claims.unprepare(old)
    assert scene.held() == {0: 0, 1: 20, 2: 0, 3: 0}


async def test_a_claim_that_was_allocated_again_waits_for_its_first_end(scene: Scene) -> None:
    ref = scene.put("one", device(0))
    await scene.claims.prepare(ref)
    scene.put("one", device(1))
    with pytest.raises(ClaimError, match="it was prepared with other devices, which kubelet has not ended yet"):
        await scene.claims.prepare(ref)
    await scene.claims.unprepare(ref)
    await scene.claims.prepare(ref)
    assert scene.held()[1] == 20


async def test_files_that_cannot_be_written_are_said_and_the_next_call_writes_them(scene: Scene) -> None:
    ref = scene.put("one")
    scene.files.refusals = 1
    with pytest.raises(ContainerError, match="the disk is full"):
        await scene.claims.prepare(ref)
    (prepared,) = await scene.claims.prepare(ref)
    assert prepared.cdi
    assert len(scene.ledger.grants()) == 1


async def test_a_call_that_kubelet_gave_up_leaves_nothing_behind(scene: Scene) -> None:
    await scene.claims.prepare(scene.put("former", device(0, 90)))
    ref = scene.put("later")
    waiting = asyncio.create_task(scene.claims.prepare(ref))
    await asyncio.sleep(0.1)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await scene.claims.unprepare(ref)
    assert scene.ledger.of_pod(PodUid(ref.uid)) == ()
    assert scene.claims._locks == {}


@dataclass
class SlowFiles(MemoryFiles):
    """A thread writes them, whatever becomes of the call."""

    async def ready(self, grant: Grant, container: PodContainer | None) -> str:
        return await asyncio.to_thread(self._write, grant)

    def _write(self, grant: Grant) -> str:
        time.sleep(0.1)
        self.written[grant.id] = 1
        return f"tencent.com/vcuda={grant.id}"


async def test_a_call_that_is_given_up_while_files_are_written_leaves_none_after_its_end(scene: Scene) -> None:
    scene.claims.files = files = SlowFiles()
    ref = scene.put("one")
    call = asyncio.create_task(scene.claims.prepare(ref))
    await asyncio.sleep(0.05)
    call.cancel()
    await scene.claims.unprepare(ref)
    assert (call.cancelled(), len(files.dropped), files.written) == (True, 1, {})
    await asyncio.sleep(0.1)
    assert files.written == {}


async def test_calls_for_one_claim_take_turns(scene: Scene) -> None:
    """A prepare and an unprepare of kubelets that restart, in any order: the books agree with the last one."""
    ref = scene.put("one")
    calls: list[Callable[[ClaimRef], Awaitable[object]]] = [scene.claims.prepare, scene.claims.unprepare] * 10
    results = await asyncio.gather(*(call(ref) for call in calls), return_exceptions=True)
    assert [each for each in results if isinstance(each, VcudaError)] == []
    assert (scene.ledger.grants(), scene.files.written, scene.claims._locks) == ((), {}, {})
