"""Kubelet's record of claims and the ledger: what one claim lacks is nothing to the others; nothing is given twice."""

import asyncio
import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from deviceplugin.agent.claim_reconciler import ClaimReconciler
from deviceplugin.errors import CapacityError, KubeError, ParseError, VcudaError
from deviceplugin.kubelet.dra.state_file import PreparedClaim, PreparedClaims
from deviceplugin.ledger.grant import Grant, GrantId
from deviceplugin.model.claims import Claim, ClaimedDevice, ClaimRef, ClaimUid
from deviceplugin.model.pod import PodContainer
from deviceplugin.structs import replace
from tests.kubelet.dra.test_prepare import MemoryFiles, Scene, device
from tests.ledger.makers import inventory, open_ledger, uuid
from tests.waiting import until


@dataclass
class RefusingFiles(MemoryFiles):
    """`refused`: the grants whose files cannot be written."""

    refused: set[str] = field(default_factory=set)

    async def ready(self, grant: Grant, container: PodContainer | None) -> str:
        if grant.id in self.refused:
            raise ParseError("its LD_LIBRARY_PATH has more than 4,096 bytes")
        return await super().ready(grant, container)


@dataclass
class Node:
    """`recorded` is kubelet's record; `unreadable` are claims whose read fails.

    `looks`: a look for processes begins with `looking`, and lasts until `may_end_look`.
    """

    scene: Scene
    files: RefusingFiles
    recorded: dict[ClaimUid, PreparedClaim] = field(default_factory=dict)
    unreadable: dict[str, VcudaError] = field(default_factory=dict)
    looks: bool = False
    looking: threading.Event = field(default_factory=threading.Event)
    may_end_look: threading.Event = field(default_factory=threading.Event)
    reconciler: ClaimReconciler = field(init=False)

    def __post_init__(self) -> None:
        self.scene.claims.files = self.files
        self.reconciler = ClaimReconciler(
            self.scene.ledger,
            self.scene.claims,
            self,  # type: ignore[arg-type]  # it reads a record, as `StateFile` does
            running=self.running,
            get_claim=self.get,
            pods=lambda: self.scene.pods.values(),
            report_joined=lambda container, pod, held: None,
            period_s=1.0,
        )
        self.scene.claims.is_complete = self.reconciler.is_complete

    def read(self) -> PreparedClaims:
        return PreparedClaims(dict(self.recorded))

    def running(self, grants: Iterable[Grant]) -> frozenset[str]:
        """In a thread."""
        if self.looks:
            self.looking.set()
            assert self.may_end_look.wait(10)
        return frozenset()

    async def get(self, ref: ClaimRef) -> Claim:
        if ref.name in self.unreadable:
            raise self.unreadable[ref.name]
        return await self.scene.get(ref)

    def lost(self, name: str, *devices: ClaimedDevice) -> ClaimRef:
        """A claim that kubelet has as prepared, and the journal lost."""
        ref = self.scene.put(name, *devices)
        self.recorded[ref.uid] = PreparedClaim(ref, frozenset({f"pod-{name}"}), {"gpu": f"tencent.com/vcuda=g-{name}"})
        return ref

    def held(self) -> set[str]:
        return {each.id for each in self.scene.ledger.grants()}


@pytest.fixture
def node(short_tmp: Path) -> Node:
    return Node(Scene(short_tmp, open_ledger(short_tmp)), RefusingFiles())


async def test_a_claim_whose_files_cannot_be_written_keeps_no_other_one_waiting(node: Node) -> None:
    node.lost("odd", device(0))
    node.lost("good", device(1))
    node.files.refused.add("g-odd")
    await node.reconciler.reconcile()
    assert node.held() == {"g-odd", "g-good"}
    assert await node.scene.claims.prepare(node.scene.put("fresh", device(2)))
    node.files.refused.clear()
    await node.reconciler.reconcile()
    assert node.files.written[GrantId("g-odd")] == 1, "tried again"


async def test_a_claim_that_cannot_be_read_hides_no_other_one_and_nothing_is_granted_before_it(node: Node) -> None:
    unread = node.lost("unread", device(0))
    node.lost("good", device(1))
    node.unreadable["unread"] = KubeError("it is too long")
    await node.reconciler.reconcile()
    assert node.held() == {"g-good"}
    with pytest.raises(CapacityError, match="has not yet read"):
        await node.scene.claims.prepare(node.scene.put("fresh", device(2)))
    node.unreadable.clear()
    await node.reconciler.reconcile()
    assert node.held() == {"g-unread", "g-good"}
    assert await node.scene.claims.prepare(unread)


@pytest.mark.parametrize("rounds", [0, 1])
async def test_a_gpu_that_comes_back_belongs_to_the_claim_that_was_prepared_with_it(node: Node, rounds: int) -> None:
    """Also before a round has seen it."""
    node.lost("running", device(0, 100, 64))
    after = node.scene.put("next", device(0, 100, 64))
    node.scene.claims.inventory = lambda: inventory(0)
    await node.reconciler.reconcile()
    assert (node.held(), node.reconciler.awaits_gpus) == (set(), True)
    node.scene.claims.inventory = lambda: inventory(4)
    for _ in range(rounds):
        await node.reconciler.reconcile()
    with pytest.raises(CapacityError, match="has 0 cores"):
        await node.scene.claims.prepare(after)
    await node.reconciler.reconcile()
    assert (node.held(), node.reconciler.awaits_gpus) == ({"g-running"}, False)
    assert node.files.written == {"g-running": 1}


async def test_a_call_for_a_claim_whose_gpu_came_back_answers_its_old_name(node: Node) -> None:
    ref = node.lost("running", device(0, 60))
    node.scene.claims.inventory = lambda: inventory(0)
    await node.reconciler.reconcile()
    node.scene.claims.inventory = lambda: inventory(4)
    (prepared,) = await node.scene.claims.prepare(ref)
    assert prepared.cdi == "tencent.com/vcuda=g-running"


async def test_a_call_that_waits_for_the_record_answers_the_old_name(node: Node) -> None:
    """Kubelet calls for a running claim again, before its claim could be read."""
    ref = node.lost("running", device(0))
    node.lost("unread", device(1))
    node.unreadable["unread"] = KubeError("no answer")
    waiting = asyncio.create_task(node.scene.claims.prepare(ref))
    await asyncio.sleep(0.05)
    await node.reconciler.reconcile()
    (prepared,) = await waiting
    assert prepared.cdi == "tencent.com/vcuda=g-running"


async def test_of_two_gpus_the_one_that_is_here_is_kept_and_the_other_one_follows(node: Node) -> None:
    node.lost("two", device(0, 60), device(3, 60))
    node.scene.claims.inventory = lambda: inventory(2)
    await node.reconciler.reconcile()
    with pytest.raises(CapacityError, match="has 40 cores"):
        await node.scene.claims.prepare(node.scene.put("next", device(0, 60)))
    assert await node.scene.claims.prepare(node.scene.put("beside", device(1, 60)))
    node.scene.claims.inventory = lambda: inventory(4)
    assert node.reconciler.is_complete()
    assert node.scene.held() == {0: 60, 1: 60, 2: 0, 3: 60}
    (found,) = (each for each in node.scene.ledger.grants() if each.id == "g-two")
    assert found.allocation.uuids == {uuid(0), uuid(3)}


async def test_a_claim_of_which_nothing_is_said_waits_alone(node: Node) -> None:
    """It is not allocated any more, while kubelet still has it; then the API server says again what it has."""
    node.lost("odd", device(0))
    said = node.scene.known["odd"]
    for devices in (None, (), (replace(device(0), driver="net.example.org"),), (replace(device(0), pool="node-b"),)):
        node.scene.known["odd"] = replace(said, devices=devices)
        await node.reconciler.reconcile()
        assert node.reconciler.is_complete()
    assert await node.scene.claims.prepare(node.scene.put("fresh", device(2)))
    node.scene.known["odd"] = replace(said, consumers=frozenset())
    await node.reconciler.reconcile()
    assert "g-odd" in node.held(), "kubelet's record has its pods"


async def test_a_claim_that_is_gone_is_given_up(node: Node) -> None:
    ref = node.lost("gone", device(0))
    del node.scene.known["gone"]
    await node.reconciler.reconcile()
    assert (node.held(), node.reconciler.is_complete(), node.scene.reads) == (set(), True, 1)
    await node.reconciler.reconcile()
    assert node.scene.reads == 1, "not asked again"
    assert await node.scene.claims.prepare(node.scene.put("fresh", device(0, 100, 64)))
    assert ref.uid in node.recorded


async def test_what_kubelet_ends_while_it_is_read_is_not_adopted(node: Node) -> None:
    """Kubelet removes it from its record after the call."""
    ref = node.lost("ending", device(0))
    node.scene.slow_s = 0.1
    first_round = asyncio.create_task(node.reconciler.reconcile())
    await asyncio.sleep(0.05)
    await node.scene.claims.unprepare(ref)
    await first_round
    await node.reconciler.reconcile()
    assert (node.held(), node.reconciler.is_complete()) == (set(), True)
    assert ref.uid in node.recorded


async def test_a_claim_that_a_new_pod_uses_since_the_round_looked_is_not_ended(node: Node) -> None:
    """Kubelet lost its record, and the pods are gone; while /proc is searched it calls for another pod."""
    ref = node.scene.put("one")
    await node.scene.claims.prepare(ref)
    said = node.scene.known["one"]
    node.scene.known["one"] = replace(said, consumers=frozenset())
    await node.reconciler.reconcile()
    node.looks = True
    second_round = asyncio.create_task(node.reconciler.reconcile())
    await until(node.looking.is_set)
    node.scene.known["one"] = said
    node.recorded[ref.uid] = PreparedClaim(ref, frozenset({"pod-one"}))
    call = asyncio.create_task(node.scene.claims.prepare(ref))
    await asyncio.sleep(0.05)
    node.may_end_look.set()
    await second_round
    (prepared,) = await call
    assert {f"tencent.com/vcuda={each}" for each in node.held()} == {prepared.cdi}
    assert node.files.dropped == []


async def test_a_claim_that_nobody_has_is_ended_whatever_cannot_be_read_of_another_one(node: Node) -> None:
    unread, forgotten = node.scene.put("unread"), node.scene.put("forgotten", device(1))
    for each in (unread, forgotten):
        await node.scene.claims.prepare(each)
    del node.scene.known["forgotten"]
    node.unreadable["unread"] = KubeError("it is too long")
    for _ in range(3):
        await node.reconciler.reconcile()
    assert node.scene.held() == {0: 20, 1: 0, 2: 0, 3: 0}
