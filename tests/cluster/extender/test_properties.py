"""For any events in any order: no GPU is given twice, no pod is counted twice, and no hold stays without a reason.

The API server fails in every way, requests take effect late or twice, the watch is late, repeats itself and restarts,
the extender is killed or replaced, GPUs fail and nodes vanish, other schedulers bind pods, and owners write wrong
annotations. The extender cannot know what another scheduler or an earlier process has bound before the watch shows it;
it then reports overcommitted GPUs, and the node's agent rejects what does not fit.
"""

import os

from hypothesis import Phase
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from deviceplugin.cluster.extender.cache.node_info import NodeInfo
from deviceplugin.cluster.extender.cache.pod_hold import HoldState
from deviceplugin.config.scheduler import PlacementSettings
from deviceplugin.model.allocation import GpuShare, PodUid
from deviceplugin.model.gpu import GpuUuid
from deviceplugin.model.pod import ClusterPod, Gang
from deviceplugin.placement.snapshot import occupied
from deviceplugin.structs import replace
from tests.cluster.extender.api import Fate
from tests.cluster.extender.cluster import BLOCKS, Cluster, described, fits, written
from tests.cluster.extender.makers import NAMES, allocated, ask, deleting, ended, node, order, pod, refused
from tests.examples import examples, hour_where_thorough

NODES = ("a", "b")
GANG = Gang("d", "g")
SIZES = st.sampled_from([(30, 8), (50, 32), (60, 8), (100, BLOCKS), (90, 60)])
FATES = st.sampled_from([Fate.WORKS, *Fate])
READS = st.sampled_from([Fate.WORKS, Fate.WORKS, Fate.LATE])
WHICH = st.integers(0, 30)
NODE = st.sampled_from(NODES)
GANG_S, SINGLE_S = PlacementSettings().gang_reservation_time, PlacementSettings().reservation_time
ANNOTATIONS = {
    "none": {},
    "broken": {NAMES.allocation: "{"},
    "of another pod": {NAMES.allocation: '{"version":1,"pod":"x","containers":{"main":{"gpus":[]}}}'},
    "of a later version": {NAMES.allocation: '{"version":99,"pod":"x","containers":{}}'},
    "of another node": {NAMES.predicate_node: "elsewhere"},
}
NONSENSE = st.sampled_from(sorted(ANNOTATIONS))
CHANGES = st.sampled_from(["gone", "ill", "cordoned", "broken", "away", "other", "back", "back", "back"])


class Scheduling(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.cluster = Cluster(NODES)

    @initialize(sizes=st.lists(SIZES, min_size=2, max_size=4))
    def some_pods(self, sizes: list[tuple[int, int]]) -> None:
        for cores, blocks in sizes:
            self.cluster.api.put(pod(cores=cores, blocks=blocks))

    @rule(size=SIZES, gang=st.booleans(), nonsense=NONSENSE)
    def create(self, size: tuple[int, int], gang: bool, nonsense: str) -> None:
        made = pod(cores=size[0], blocks=size[1], gang=GANG if gang else None, annotations=ANNOTATIONS[nonsense])
        self.cluster.api.put(made)

    @rule(which=WHICH, names=st.lists(NODE, min_size=1, max_size=2, unique=True))
    def ask_filter(self, which: int, names: list[str]) -> None:
        if (found := self._waiting(which)) is not None:
            self._filter(found, *names)

    @rule(which=WHICH, name=NODE, stay=st.booleans(), fate=FATES, read=READS, turns=st.integers(0, 4))
    def bind(self, which: int, name: str, stay: bool, fate: Fate, read: Fate, turns: int) -> None:
        if (found := self._waiting(which)) is not None:
            self._bind(found, name, stay, fate, read, turns)

    @rule(which=WHICH, fate=FATES)
    def schedule(self, which: int, fate: Fate) -> None:
        """The usual course, undisturbed."""
        if (found := self._waiting(which)) is not None:
            self._filter(found, *NODES)
            self._bind(found, NODES[0], True, fate, Fate.WORKS, 0)
            self.cluster.spin(12)

    @rule(which=WHICH, name=NODE, how=CHANGES, other=WHICH, by_whom=st.booleans())
    def something_happens_between_filter_and_bind(
        self, which: int, name: str, how: str, other: int, by_whom: bool
    ) -> None:
        if (found := self._waiting(which)) is None:
            return
        self._filter(found, name)
        if by_whom:
            rivals = [each for each in self._all_waiting() if each.uid != found.uid]
            if rivals:
                self._binds_elsewhere(rivals[other % len(rivals)], name)
                self.the_watch_catches_up()
        else:
            self.a_node_changes(name, how)
        self._bind(found, name, True, Fate.WORKS, Fate.WORKS, 0)
        self.cluster.spin(12)

    @rule(
        which=WHICH,
        read=READS,
        then=FATES,
        seconds=st.sampled_from([5.0, 40.0, 80.0]),
        look=st.booleans(),
        slow=st.sampled_from([1, 12]),
    )
    def a_binding_gets_no_answer_and_is_sent_again(
        self, which: int, read: Fate, then: Fate, seconds: float, look: bool, slow: int
    ) -> None:
        if (found := self._waiting(which)) is None:
            return
        self._filter(found, *NODES)
        self._bind(found, NODES[0], True, Fate.LATE, read, 0)
        self.cluster.spin(12)
        self.cluster.pass_time(seconds)
        if look:
            self.what_is_in_doubt_is_looked_up(Fate.WORKS, 6, slow, True)
        self._bind(found, NODES[0], True, then, Fate.WORKS, 0)
        self.cluster.spin(12)

    @rule()
    def the_watch_catches_up(self) -> None:
        self.cluster.tell_all()

    @rule()
    def the_watch_begins_anew(self) -> None:
        self.cluster.list_anew()

    @rule(turns=st.integers(1, 6))
    def time_passes_in_the_loop(self, turns: int) -> None:
        self.cluster.spin(turns)

    @rule(which=WHICH)
    def the_watch_tells(self, which: int) -> None:
        if uids := sorted(uid for uid, news in self.cluster.api.news.items() if news):
            self.cluster.tell(uids[which % len(uids)])

    @rule(which=WHICH, at=WHICH)
    def the_watch_repeats_itself(self, which: int, at: int) -> None:
        if uids := sorted(uid for uid, told in self.cluster.api.told.items() if told):
            self.cluster.tell_again(uids[which % len(uids)], at)

    @rule(which=WHICH, again=st.booleans())
    def delete(self, which: int, again: bool) -> None:
        """Created again from its own YAML: the same name and annotations, and another UID."""
        if (found := self._any(which)) is None:
            return
        self.cluster.api.remove(found.uid)
        if again:
            main, ref = found.pod.containers[0], found.pod.ref
            self.cluster.api.put(pod(ref.name, main.cores, main.blocks, annotations=found.pod.annotations))

    @rule(which=WHICH, how=st.sampled_from(["Succeeded", "Failed", "deleting", "refused", "refused"]))
    def change(self, which: int, how: str) -> None:
        if (found := self._any(which)) is None or found.pod.is_terminal:
            return
        if how == "deleting":
            self.cluster.api.put(deleting(found))
        elif how == "refused":
            members = [each for each in self._all_waiting() if found.gang is not None and each.gang == found.gang]
            for each in members or [found]:
                if not each.pod.node:
                    self.cluster.api.put(refused(each, ""))
        elif found.pod.node:
            self.cluster.api.put(ended(found, how))

    @rule(which=WHICH, how=st.sampled_from(["deleting", "refused"]))
    def what_was_reserved_is_not_wanted_any_more(self, which: int, how: str) -> None:
        if (found := self._waiting(which)) is not None:
            self._filter(found, *NODES)
            self.cluster.api.put(deleting(found) if how == "deleting" else refused(found, ""))
            self.the_watch_catches_up()

    @rule(which=WHICH, other=WHICH, name=NODE, claimed=NODE, copied=st.booleans())
    def somebody_binds_what_says_nothing_of_itself(
        self, which: int, other: int, name: str, claimed: str, copied: bool
    ) -> None:
        """Its annotations are those of another pod, or of itself on another node; then a vcuda pod comes."""
        if (found := self._waiting(which)) is None:
            return
        main = found.pod.containers[0]
        share = GpuShare(GpuUuid(f"GPU-{claimed}-0"), main.cores, main.blocks)
        text = allocated(found, {"main": (share,)}, uid="uid-of-another" if copied else "")
        self._binds_elsewhere(found, name, text | ({} if copied else {NAMES.predicate_node: "elsewhere"}))
        self.the_watch_catches_up()
        if (ours := self._waiting(other)) is not None:
            self._filter(ours, name)
            self._bind(ours, name, True, Fate.WORKS, Fate.WORKS, 0)
            self.cluster.spin(12)

    @rule(which=WHICH, name=NODE, claims=st.booleans(), nonsense=NONSENSE | st.just("too much"))
    def somebody_else_binds(self, which: int, name: str, claims: bool, nonsense: str) -> None:
        """Perhaps with an allocation of its own, whether there is room or not, or one that claims too much."""
        if (found := self._waiting(which)) is not None:
            main, gpu = found.pod.containers[0], GpuUuid(f"GPU-{name}-0")
            text = allocated(found, {"main": (GpuShare(gpu, main.cores, main.blocks),)})
            more = allocated(found, {"main": (GpuShare(gpu, 100, BLOCKS),), "absent": (GpuShare(gpu, 100, BLOCKS),)})
            self._binds_elsewhere(found, name, text if claims else ANNOTATIONS.get(nonsense, more))

    @rule(which=WHICH)
    def an_agent_places_a_pod(self, which: int) -> None:
        """It sees the pods of its node in time."""
        pods = self.cluster.api.pods
        uids = sorted(
            uid for uid, each in pods.items() if each.pod.node and not each.pod.is_terminal and not written(each)
        )
        if uids:
            self.cluster.agent_places(uids[which % len(uids)])

    @precondition(lambda self: self.cluster.late)
    @rule()
    def a_binding_arrives_late(self) -> None:
        self.cluster.arrive_late()

    @rule(seconds=st.sampled_from([1.0, 30.0, 61.0, 80.0, 601.0]))
    def time_passes(self, seconds: float) -> None:
        self.cluster.pass_time(seconds)

    @rule(read=READS, turns=st.integers(1, 6), slow=st.sampled_from([1, 12]), again=st.booleans())
    def what_is_in_doubt_is_looked_up(self, read: Fate, turns: int, slow: int, again: bool) -> None:
        """Perhaps so slowly that it is bound meanwhile."""
        cluster = self.cluster
        cluster.api.read_turns = slow
        cluster.api.read_fates[:] = [read]
        cluster.start(cluster.extender.resolve())
        cluster.spin(turns)
        cluster.api.read_turns = 1
        for found in self._all_waiting() if again else ():
            if found.uid in cluster.extender.unconfirmed._pending:
                self._bind(found, NODES[0], True, Fate.WORKS, Fate.WORKS, 0)
        cluster.spin(12 if again else 0)

    @rule(name=NODE, how=CHANGES)
    def a_node_changes(self, name: str, how: str) -> None:
        if how == "gone":
            self.cluster.drop_node(name)
            return
        ill, cordon = [0] if how == "ill" else [], ["0"] if how == "cordoned" else []
        changed = node(name, 1, blocks=BLOCKS, ill=ill, cordon=cordon, text="{" if how == "broken" else None)
        if how == "other":
            changed = described(name, f"new-{name}")
        self.cluster.put_node(replace(changed, cores=0) if how == "away" else changed)

    @rule(outlives=st.booleans())
    def the_extender_is_killed(self, outlives: bool) -> None:
        self.cluster.restart(outlives=outlives)

    @rule()
    def another_replica_leads(self) -> None:
        self.cluster.take_over()

    @invariant()
    def no_binding_gave_what_was_not_there(self) -> None:
        assert self.cluster.wrong == []

    @invariant()
    def no_gpu_is_given_twice(self) -> None:
        for name in NODES:
            for uuid, use in self.cluster.given(name).items():
                assert fits(use), (uuid, use)

    @invariant()
    def a_bound_pod_is_counted_once_and_as_it_says(self) -> None:
        cache = self.cluster.extender.cache
        for uid in self.cluster.api.told:
            held = list(cache.holds(uid))
            seen = self.cluster.seen(uid)
            if seen is None:
                assert not held
            elif seen.pod.node and (held or not self._is_over(uid)):  # else a read was faster than the watch
                assert [(each.node, each.state) for each in held] == [(seen.pod.node, HoldState.BOUND)]

    def _is_over(self, uid: PodUid) -> bool:
        known = self.cluster.api.pods.get(uid)
        return known is None or known.pod.is_terminal

    @invariant()
    def what_others_bound_too_much_is_said(self) -> None:
        cluster = self.cluster
        cluster.extender.overcommit.check()
        bound = list(cluster.known_bound())
        wrong = 0
        for name, there in cluster.nodes.items():
            use = occupied(one for each in bound if each.pod.node == name for one in written(each))
            wrong += sum(f'"{uuid}"' in there.inventory and not fits(each) for uuid, each in use.items())
        assert cluster.extender.overcommit.gpus == wrong

    @invariant()
    def a_state_that_is_kept_is_that_of_now(self) -> None:
        cache = self.cluster.extender.cache
        for name, kept in cache.usable.items():
            node_info = cache.nodes[name]
            assert node_info.problem is None
            assert node_info.node is not None
            fresh = NodeInfo(name, {})
            fresh.describe(node_info.node)
            for hold in node_info.holds.values():
                fresh.put_hold(hold)
            now = fresh.state
            assert (kept.snapshot, kept.cordoned, kept.spare) == (now.snapshot, now.cordoned, now.spare)

    @invariant()
    def a_pod_is_on_a_node_or_waits_for_one(self) -> None:
        cache = self.cluster.extender.cache
        assert not [uid for uid in cache.waiting if cache.bound_to(uid) is not None or cache.is_over(uid)]

    @invariant()
    def no_reservation_outlives_its_reason(self) -> None:
        cluster = self.cluster
        cluster.extender.expire()
        for name, node_info in cluster.extender.cache.nodes.items():
            for uid, held in node_info.holds.items():
                if held.state is not HoldState.RESERVED:
                    continue
                asked, then = cluster.asked_at[uid]
                seen, known = cluster.seen(uid), cluster.api.pods.get(uid)
                gang = (seen or known) is not None and (seen or known).gang is not None  # type: ignore[union-attr]
                assert asked <= cluster.now < asked + (GANG_S if gang else SINGLE_S), (name, uid)
                if seen is not None and int(seen.pod.resource_version) > int(then.pod.resource_version):
                    # An older refusal still stands while the pod is tried again: only another one is news, and not
                    # that of an earlier attempt, which may be written after this one has begun.
                    assert not seen.is_refused or seen.condition == then.condition or uid in cluster.unanswered, (
                        name,
                        uid,
                    )
                    assert not seen.pod.deleting, (name, uid)

    @invariant()
    def what_only_we_say_is_somebodys_business(self) -> None:
        bind = self.cluster.extender._binder
        for node_info in self.cluster.extender.cache.nodes.values():
            for uid, held in node_info.holds.items():
                if held.state in (HoldState.ASSUMED, HoldState.UNCONFIRMED):
                    assert uid in bind._in_flight or uid in bind.unconfirmed._pending

    def teardown(self) -> None:
        try:
            self._everything_comes_to_rest()
        finally:
            self.cluster.close()

    def _everything_comes_to_rest(self) -> None:
        """When all events have arrived and no request comes, holds equal bound pods."""
        cluster = self.cluster
        cluster.api.fates.clear()
        cluster.api.read_fates.clear()
        for _ in range(60):
            cluster.spin(10)
        assert all(task.done() for task in cluster.tasks)
        if cluster.life % 2:
            cluster.list_anew()
        cluster.tell_all()
        for _ in range(3):
            cluster.pass_time(2 * GANG_S)
            cluster.start(cluster.extender.resolve())
            cluster.spin(20)
        assert cluster.wrong == []
        found = {
            (uid, held.node)
            for node_info in cluster.extender.cache.nodes.values()
            for uid, held in node_info.holds.items()
        }
        live = cluster.api.pods.values()
        assert found == {(each.uid, each.pod.node) for each in live if each.pod.node and not each.pod.is_terminal}
        assert len(cluster.extender.unconfirmed) == 0

    def _filter(self, found: ClusterPod, *names: str) -> None:
        answer = self.cluster.extender.filter(ask(found, *names))
        assert set(answer.names) <= set(names)
        refused = set(answer.failed) | set(answer.unresolvable)
        assert refused <= set(names) - set(answer.names)
        assert answer.names or refused == set(names), "a pod that waits is told why, of every node"
        if answer.names:
            self.cluster.asked_at[found.uid] = self.cluster.now, found
        self.cluster.attempted(found)

    def _bind(self, found: ClusterPod, name: str, stay: bool, fate: Fate, read: Fate, turns: int) -> None:
        """`stay`: to the node that filter has chosen, as kube-scheduler does."""
        cluster = self.cluster
        if stay:
            name = next((each.node for each in cluster.extender.cache.holds(found.uid)), name)
        cluster.api.fates.append(fate)
        cluster.api.read_fates.append(read)
        cluster.api.turns = turns
        cluster.start(cluster.extender.bind(order(found, name)))

    def _binds_elsewhere(self, found: ClusterPod, name: str, text: dict[str, str] | None = None) -> None:
        self.cluster.outsiders.add(found.uid)
        changed = replace(found.pod, node=name, annotations={**found.pod.annotations, **(text or {})})
        self.cluster.api.put(replace(found, pod=changed))

    def _all_waiting(self) -> list[ClusterPod]:
        return [each for each in self.cluster.api.pods.values() if not each.pod.node and not each.pod.is_terminal]

    def _any(self, which: int) -> ClusterPod | None:
        pods = list(self.cluster.api.pods.values())
        return pods[which % len(pods)] if pods else None

    def _waiting(self, which: int) -> ClusterPod | None:
        waiting = self._all_waiting()
        return waiting[which % len(waiting)] if waiting else None


TestScheduling = hour_where_thorough()(Scheduling.TestCase)
_PHASES = [Phase.explicit, Phase.reuse, Phase.generate, *([] if os.environ.get("VCUDA_NO_SHRINK") else [Phase.shrink])]
TestScheduling.settings = examples(1000, steps=40, phases=_PHASES)
