"""Over a node's life nothing that runs loses its slots, no GPU is over-committed, and in the end all slots are free.

Hypothesis plays the node: pods are bound, admitted, run, finish and are deleted; kubelet restarts and stops answering,
the API server lags or is silent, the checkpoint is stale or unreadable; owners are guessed wrong in pairs; the agent
crashes, also with its journal gone. The ledger, the rebuild and the reconciliation are the real ones.
"""

import shutil
import tempfile
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import hypothesis.strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from deviceplugin.errors import CapacityError
from deviceplugin.ledger.grant import Checkpoint, CheckpointEntry, GrantId
from deviceplugin.ledger.reconcile import Evidence, PodsView, decide, rebuild
from deviceplugin.model.allocation import PodUid
from deviceplugin.model.pod import ContainerState, Pod
from deviceplugin.model.request import Request
from deviceplugin.model.units import Resource
from deviceplugin.structs import replace
from tests.examples import examples
from tests.ledger.crash.scenario import JOURNAL
from tests.ledger.makers import claimant, grant, inventory, open_ledger, pod
from tests.ledger.test_rebuild import recorded
from tests.placement.nodes import free_for

NODE = inventory(3)
sizes = st.tuples(st.integers(1, 60), st.integers(1, 40))


@dataclass
class SimulatedPod:
    """`phase`: bound, running, finished (in kubelet's eyes), gone. `granted`: what the container really mounts."""

    name: str
    size: tuple[int, int]
    phase: str = "bound"
    deleting: bool = False
    granted: GrantId | None = None
    entries: tuple[CheckpointEntry, ...] = ()
    shares: frozenset[str] = field(default_factory=frozenset)

    @property
    def uid(self) -> PodUid:
        return PodUid(f"uid-{self.name}")

    def shown(self) -> Pod:
        state = {"running": ContainerState.RUNNING, "finished": ContainerState.TERMINATED}
        phase = {"bound": "Pending", "running": "Running", "finished": "Succeeded"}[self.phase]
        return pod(self.name, phase=phase, state=state.get(self.phase, ContainerState.UNKNOWN), deleting=self.deleting)


class NodeMachine(RuleBasedStateMachine):
    """Rounds of the agent happen between the events of the node."""

    @initialize()
    def begin(self) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="vc-", dir="/tmp"))
        self.ledger = open_ledger(self.directory)
        self.pods: list[SimulatedPod] = []
        self.written: dict[str, tuple[CheckpointEntry, ...]] = {}
        self.suspects: dict[GrantId, int] = {}
        self.kubelet_is_fresh = False
        self.has_lost_a_journal = False
        self.serial = 0
        self.told = PodsView.of([])

    def teardown(self) -> None:
        if hasattr(self, "ledger"):
            self.calm_down()
            self.ledger.close()
            shutil.rmtree(self.directory)

    def in_phase(self, *phases: str) -> list[SimulatedPod]:
        return [each for each in self.pods if each.phase in phases]

    @rule(size=sizes)
    def bind(self, size: tuple[int, int]) -> None:
        self.serial += 1
        self.pods.append(SimulatedPod(f"p{self.serial}", size))

    @precondition(lambda self: self.in_phase("bound"))
    @rule(data=st.data())
    def admit(self, data: st.DataObject) -> None:
        found = data.draw(st.sampled_from(self.in_phase("bound")), label="pod")
        self.allocate(found, named=found)
        self.write_checkpoint()
        self.kubelet_is_fresh = False

    @rule(one=sizes, other=sizes)
    def admit_two_taken_for_each_other(self, one: tuple[int, int], other: tuple[int, int]) -> None:
        self.bind(one)
        self.bind(other)
        first, second = self.pods[-2:]
        for true, named in ((first, second), (second, first)):
            self.allocate(true, named=named)
            self.write_checkpoint()
        self.kubelet_is_fresh = False

    def allocate(self, true: SimulatedPod, *, named: SimulatedPod) -> None:
        """The agent places and records for `named`; the container of `true` mounts it. A refused pod has finished."""
        cores, blocks = named.size
        free = free_for(NODE, self.ledger.allocations(), named.uid).gpus
        minor = next((v.gpu.minor for v in free if v.free_cores >= cores and v.free_blocks >= blocks), None)
        if minor is None:
            true.phase = "finished"
            return
        made = grant(named.name, cores=cores, blocks=blocks, on=(minor,), grant_id=f"g-{self.serial}-{true.name}")
        self.ledger.grant(made, NODE)
        self.ledger.answer(made.id, Resource.MEMORY)
        asked = replace(
            made,
            allocation=replace(made.allocation, owner=pod(true.name).containers[0].ref, request=Request(*true.size)),
        )
        true.phase, true.granted, true.entries = "running", made.id, recorded(asked)
        true.shares = frozenset(made.allocation.uuids)

    @precondition(lambda self: self.in_phase("running"))
    @rule(data=st.data())
    def start(self, data: st.DataObject) -> None:
        """PreStartContainer: kubelet's checkpoint proves the owner, or the start fails and is tried again."""
        found = data.draw(st.sampled_from(self.in_phase("running")), label="pod")
        assert found.granted is not None
        self.reassign_to_owner(found.granted, found)

    def reassign_to_owner(self, grant_id: GrantId, found: SimulatedPod) -> None:
        with suppress(CapacityError):  # the true owner does not fit where it was put: its start fails
            self.ledger.reassign_to_owner(
                grant_id, claimant(found.name, cores=found.size[0], blocks=found.size[1]), NODE
            )

    @precondition(lambda self: self.in_phase("running"))
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        data.draw(st.sampled_from(self.in_phase("running")), label="pod").phase = "finished"

    @precondition(lambda self: self.in_phase("bound", "running"))
    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        data.draw(st.sampled_from(self.in_phase("bound", "running")), label="pod").deleting = True

    @precondition(lambda self: self.in_phase("finished"))
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        data.draw(st.sampled_from(self.in_phase("finished")), label="pod").phase = "gone"

    @rule()
    def write_checkpoint(self) -> None:
        """Kubelet drops entries of pods that ended only here."""
        self.written = {each.name: each.entries for each in self.in_phase("running") if each.entries}

    @rule()
    def restart_kubelet(self) -> None:
        self.kubelet_is_fresh = True

    @rule()
    def kubelet_hears_from_the_api_server(self) -> None:
        self.kubelet_is_fresh = False

    @rule(lose_journal=st.booleans(), pods_are_known=st.booleans())
    def restart_agent(self, lose_journal: bool, pods_are_known: bool) -> None:
        self.ledger.close()
        self.suspects = {}
        if lose_journal:
            self.has_lost_a_journal = True
            (self.directory / JOURNAL).unlink()
        self.ledger = open_ledger(self.directory)
        if lose_journal:
            pods = self.kubelet_view().pods if pods_are_known and not self.kubelet_is_fresh else None
            self.ledger.adopt(rebuild(self.checkpoint(), NODE, created=1000.0, pods=pods).grants)

    @rule(
        kubelet_answers=st.booleans(),
        api=st.sampled_from(["now", "late", "silent"]),
        checkpoint_is_read=st.booleans(),
    )
    def round(self, kubelet_answers: bool, api: str, checkpoint_is_read: bool) -> None:
        now = PodsView.of([each.shown() for each in self.in_phase("bound", "running", "finished")])
        evidence = Evidence(
            grants=self.ledger.grants(),
            checkpoint=self.checkpoint() if checkpoint_is_read else None,
            kubelet=self.kubelet_view() if kubelet_answers else None,
            api={"now": now, "late": self.told, "silent": None}[api],
            suspects=self.suspects,
        )
        self.told = now
        self.carry_out(evidence)

    def carry_out(self, evidence: Evidence) -> None:
        found = decide(evidence, NODE, now=1000.0)
        self.suspects = dict(found.suspects)
        self.ledger.release_ended(found.ended, why="its pod ended")
        for wrong, (uid, _) in found.disproved:
            self.reassign_to_owner(wrong.id, next(each for each in self.pods if each.uid == uid))
        for grant_id, resources in found.proved:
            self.ledger.prove(grant_id, resources)
        for grant_id, container in found.described:
            self.ledger.describe(grant_id, container, NODE)
        self.ledger.adopt(found.adopt)

    def checkpoint(self) -> Checkpoint:
        return Checkpoint(tuple(entry for entries in self.written.values() for entry in entries))

    def kubelet_view(self) -> PodsView:
        if self.kubelet_is_fresh:
            return PodsView.of_kubelet([])
        return PodsView.of_kubelet([each.shown() for each in self.in_phase("bound", "running", "finished")])

    def calm_down(self) -> None:
        """Everything ends and every source answers: after three rounds at most nothing is held."""
        for each in self.pods:
            each.phase = "gone"
        self.write_checkpoint()
        nobody = PodsView.of([])
        for _ in range(3):
            self.carry_out(Evidence(self.ledger.grants(), self.checkpoint(), nobody, nobody, self.suspects))
        assert self.ledger.grants() == ()

    @invariant()
    def what_runs_holds_its_slots(self) -> None:
        if not hasattr(self, "ledger"):
            return
        for each in self.in_phase("running"):
            assert each.granted is not None
            held = self.ledger.get(each.granted)
            assert held is not None, f"{each.name} runs and its grant was released"
            assert held.allocation.uuids == each.shares

    @invariant()
    def no_gpu_is_over_committed(self) -> None:
        """With the journal gone, wrong guesses that were not proved yet come back in their containers' true sizes."""
        if hasattr(self, "ledger") and not self.has_lost_a_journal:
            assert self.ledger.over_commitments(NODE) == ()

    @invariant()
    def no_container_holds_two_grants(self) -> None:
        if hasattr(self, "ledger"):
            keys = [each.allocation.owner.key for each in self.ledger.grants()]
            assert len(keys) == len(set(keys))


TestNode = NodeMachine.TestCase
TestNode.settings = examples(100, steps=40)
