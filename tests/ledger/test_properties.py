"""No sequence of requests, frees, repairs and crashes over-commits a GPU or loses a granted slot.

Hypothesis plays the agent: it grants, answers, settles, releases and rewrites in any order and with any sizes, and at
any time the journal is cut at any byte of what was written since some transition. The model is a plain dictionary.
"""

import shutil
import tempfile
from pathlib import Path

import hypothesis.strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from deviceplugin.errors import CapacityError, LedgerError, OwnershipError
from deviceplugin.ledger.grant import Grant, GrantId
from deviceplugin.ledger.journal import Journal
from deviceplugin.ledger.ledger import Ledger
from deviceplugin.model.allocation import ContainerRole
from deviceplugin.model.pod import PodLimits
from deviceplugin.model.units import CORES_PER_GPU, Resource
from deviceplugin.placement.fit import GpuAmount
from deviceplugin.structs import replace
from tests.examples import examples
from tests.ledger.crash.scenario import JOURNAL
from tests.ledger.makers import BLOCKS, claimant, grant, inventory, open_journal, scanned
from tests.placement.nodes import free_for, view_of

NODE = inventory(3)
sizes = st.one_of(
    st.tuples(st.integers(1, 99), st.integers(1, BLOCKS)),
    st.just((100, 0)),
    st.just((200, 0)),
    st.just((300, 0)),
)
pods = st.sampled_from(["a", "b", "c", "d"])
containers = st.sampled_from(["one", "two", "three"])
places = st.tuples(st.sampled_from(ContainerRole), st.integers(0, 2))
State = dict[GrantId, Grant]


class LedgerMachine(RuleBasedStateMachine):
    """`history`: the journal's size after each transition since it was last rewritten, and the state there."""

    @initialize()
    def begin(self) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="vc-", dir="/tmp"))
        self.serial = 0
        self.open()

    def teardown(self) -> None:
        if hasattr(self, "ledger"):
            self.ledger.close()
            shutil.rmtree(self.directory)

    def open(self) -> None:
        self.journal: Journal = open_journal(self.directory)
        self.ledger = Ledger(self.journal)
        self.history: list[tuple[int, State]] = []
        self.remember()

    def remember(self) -> None:
        state = {each.id: each for each in self.ledger.grants()}
        self.history.append(((self.directory / JOURNAL).stat().st_size, state))

    @property
    def state(self) -> State:
        return self.history[-1][1]

    def one(self, data: st.DataObject) -> Grant:
        return data.draw(st.sampled_from(sorted(self.state.values(), key=lambda each: each.id)))

    @rule(pod=pods, container=containers, size=sizes, first=st.integers(0, 2), place=places)
    def allocate(
        self, pod: str, container: str, size: tuple[int, int], first: int, place: tuple[ContainerRole, int]
    ) -> None:
        self.serial += 1
        role, index = place
        cores, blocks = size
        minors = [(first + step) % 3 for step in range(max(1, cores // CORES_PER_GPU))]
        asked = grant(
            pod,
            cores=cores,
            blocks=blocks,
            on=minors,
            container=container,
            role=role,
            index=index,
            grant_id=f"g-{self.serial}",
        )
        held = {each.allocation.owner.key for each in self.state.values()}
        fits = self.has_room_for(asked)
        try:
            self.ledger.grant(asked, NODE)
        except CapacityError:
            assert not fits
            self.same()
        except LedgerError:
            assert asked.allocation.owner.key in held
            self.same()
        else:
            assert fits
            assert asked.allocation.owner.key not in held
            self.remember()
            assert self.state[asked.id] == asked

    def has_room_for(self, asked: Grant) -> bool:
        """As placement would see it."""
        allocation = asked.allocation
        others = (each.allocation for each in self.state.values())
        free = free_for(NODE, others, allocation.owner.pod.uid, allocation.role, allocation.index)
        return all(
            view_of(free, each.uuid).free.covers(GpuAmount(each.cores, each.blocks)) for each in allocation.shares
        )

    @precondition(lambda self: self.state)
    @rule(data=st.data(), resource=st.sampled_from(Resource), again=st.booleans())
    def answer(self, data: st.DataObject, resource: Resource, again: bool) -> None:
        before = self.one(data)
        after = (self.ledger.repeat if again else self.ledger.answer)(before.id, resource)
        assert after.answered == ({resource} if again else before.answered | {resource})
        self.remember()
        assert self.state[before.id] == after

    @precondition(lambda self: self.state)
    @rule(data=st.data(), pod=pods, container=containers, size=sizes)
    def settle(self, data: st.DataObject, pod: str, container: str, size: tuple[int, int]) -> None:
        before = self.one(data)
        to = claimant(pod, container=container, cores=size[0], blocks=size[1])
        try:
            fixed = self.ledger.reassign_to_owner(before.id, to, NODE)
        except OwnershipError:
            assert to.request.gpus != len(before.allocation.shares)
            self.same()
        except CapacityError:
            self.same()
        else:
            ids = set(self.state)
            self.remember()
            assert set(self.state) == ids
            assert self.ledger.of_owner(to.owner.key) == fixed == self.state[before.id]
            assert fixed.allocation.uuids == before.allocation.uuids

    @precondition(lambda self: self.state)
    @rule(data=st.data(), count=st.integers(1, 3))
    def release(self, data: st.DataObject, count: int) -> None:
        ending = [self.one(data).id for _ in range(count)]
        rest = {key: each for key, each in self.state.items() if key not in ending}
        self.ledger.release(ending, why="their pods ended")
        self.remember()
        assert self.state == rest

    @precondition(lambda self: self.state)
    @rule(data=st.data(), count=st.integers(1, 3), soft=st.integers(0, 2), mib=st.integers(0, 2))
    def follow_limits(self, data: st.DataObject, count: int, soft: int, mib: int) -> None:
        wanted = {self.one(data).id: PodLimits(soft, mib) for _ in range(count)}
        expected = {
            key: replace(each, limits=wanted[key]) if key in wanted else each for key, each in self.state.items()
        }
        changed = self.ledger.follow_limits(wanted)
        assert {each.id for each in changed} == {key for key in wanted if self.state[key] != expected[key]}
        if changed:
            self.remember()
        assert self.state == expected

    @rule()
    def rewrite(self) -> None:
        state = self.state
        self.journal.rewrite()
        self.history.clear()
        self.remember()
        assert self.state == state

    @rule()
    def restart(self) -> None:
        state = self.state
        self.ledger.close()
        self.open()
        assert self.state == state

    @rule(data=st.data())
    def crash(self, data: st.DataObject) -> None:
        """The last transitions may not have reached the disk; those before them must be there to the last byte."""
        last = data.draw(st.integers(max(0, len(self.history) - 3), len(self.history) - 1))
        (start, state), *later = self.history[last:]
        cut = data.draw(st.integers(start, self.history[-1][0]))
        whole = [each for size, each in later if size <= cut]
        self.ledger.close()
        with (self.directory / JOURNAL).open("r+b") as file:
            file.truncate(cut)
        self.open()
        assert self.journal.warnings == ()
        assert self.state == (whole[-1] if whole else state)

    def same(self) -> None:
        assert {each.id: each for each in self.ledger.grants()} == self.state
        assert (self.directory / JOURNAL).stat().st_size == self.history[-1][0]

    @invariant()
    def no_gpu_is_over_committed(self) -> None:
        if hasattr(self, "ledger"):
            assert self.ledger.over_commitments(NODE) == ()

    @invariant()
    def a_replay_says_what_memory_says(self) -> None:
        if hasattr(self, "ledger"):
            found = scanned((self.directory / JOURNAL).read_bytes())
            assert list(found.grants.values()) == list(self.ledger.grants())
            assert found.first_damage is None

    @invariant()
    def every_container_holds_one_grant_at_most(self) -> None:
        if hasattr(self, "ledger"):
            keys = [each.allocation.owner.key for each in self.ledger.grants()]
            assert len(keys) == len(set(keys))
            assert all(self.ledger.of_owner(each.allocation.owner.key) == each for each in self.ledger.grants())


TestLedger = LedgerMachine.TestCase
TestLedger.settings = examples(120, steps=30)
