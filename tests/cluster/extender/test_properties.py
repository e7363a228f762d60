"""Whatever happens in whatever order: no GPU is given twice, nobody is counted twice, nothing is kept for nothing.

The API server fails in every way there is, the watch is late and repeats itself, the extender is started anew, other
schedulers bind pods beside it. What a Binding that outlives the process may do is not looked at here: between two
processes only the node's agent stands guard. The watch is not silent for a minute: a doubt lasts a quarter of a minute
longer than the API server works on a request, and a watch that is silent for longer is not followed here.
"""

from dataclasses import replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from deviceplugin.cluster.extender.holding import Hold
from deviceplugin.cluster.extender.reservations import Patience
from deviceplugin.model.cluster_pod import ClusterPod
from deviceplugin.model.gang import Gang
from tests.cluster.extender.api import Fate
from tests.cluster.extender.cluster import BLOCKS, GPUS, REQUEST_SECONDS, Cluster
from tests.cluster.extender.makers import ask, deleting, ended, node, order, pod, refused

NAMES = ("a", "b")
SIZES = st.sampled_from([(30, 8), (50, 32), (60, 8), (100, BLOCKS), (90, 60)])
NODES = st.lists(st.sampled_from(NAMES), min_size=1, max_size=2, unique=True)
WHICH = st.integers(0, 30)
PATIENCE = Patience()


class Scheduling(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.cluster = Cluster(NAMES)

    @initialize(sizes=st.lists(SIZES, min_size=1, max_size=4))
    def some_pods(self, sizes: list[tuple[int, int]]) -> None:
        for cores, blocks in sizes:
            self.cluster.api.put(pod(cores=cores, blocks=blocks))

    @rule(size=SIZES, priority=st.integers(0, 2), gang=st.booleans())
    def create(self, size: tuple[int, int], priority: int, gang: bool) -> None:
        group = Gang("d", "g") if gang else None
        self.cluster.api.put(pod(cores=size[0], blocks=size[1], priority=priority, gang=group))

    @rule(which=WHICH, names=NODES)
    def ask_filter(self, which: int, names: list[str]) -> None:
        if (found := self._waiting(which)) is None:
            return
        answer = self.cluster.extender.filter(ask(found, *names))
        assert set(answer.names) <= set(names)
        refused = set(answer.failed) | set(answer.unresolvable)
        assert refused <= set(names) - set(answer.names)
        assert answer.names or refused == set(names), "a pod that waits is told why, of every node"
        self.cluster.filtered_at[found.uid] = self.cluster.now

    @rule(
        which=WHICH,
        name=st.sampled_from(NAMES),
        fate=st.sampled_from([Fate.WORKS, *Fate]),
        read=st.sampled_from([Fate.WORKS, Fate.WORKS, Fate.LATE]),
        turns=st.integers(0, 4),
    )
    def bind(self, which: int, name: str, fate: Fate, read: Fate, turns: int) -> None:
        if (found := self._waiting(which)) is None:
            return
        cluster = self.cluster
        held = next((each.node for each in cluster.extender.books.holdings(found.uid)), name)
        cluster.api.fates.append(fate)
        cluster.api.read_fates.append(read)
        cluster.api.turns = turns
        cluster.binds.append(cluster.loop.create_task(cluster.extender.bind(order(found, held))))

    @rule(which=WHICH, fate=st.sampled_from([Fate.WORKS, *Fate]))
    def schedule(self, which: int, fate: Fate) -> None:
        """The usual course, undisturbed."""
        self.ask_filter(which, list(NAMES))
        self.bind(which, NAMES[0], fate, Fate.WORKS, 0)
        self.cluster.spin(12)

    @rule()
    def the_watch_catches_up(self) -> None:
        for uid in tuple(self.cluster.api.news):
            while self.cluster.api.news[uid]:
                self.cluster.tell(uid)

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

    @rule(which=WHICH)
    def delete(self, which: int) -> None:
        if (found := self._any(which)) is not None:
            self.cluster.api.remove(found.uid)

    @rule(which=WHICH, how=st.sampled_from(["Succeeded", "Failed", "deleting", "refused"]))
    def change(self, which: int, how: str) -> None:
        if (found := self._any(which)) is None or found.pod.is_terminal:
            return
        if how == "deleting":
            self.cluster.api.put(deleting(found))
        elif how == "refused":
            if not found.pod.node:
                self.cluster.api.put(refused(found, ""))
        elif found.pod.node:
            self.cluster.api.put(ended(found, how))

    @rule(which=WHICH, name=st.sampled_from(NAMES))
    def somebody_else_binds(self, which: int, name: str) -> None:
        if (found := self._waiting(which)) is not None:
            self.cluster.api.put(replace(found, pod=replace(found.pod, node=name)))

    @rule(which=WHICH)
    def an_agent_places_a_pod(self, which: int) -> None:
        uids = sorted(
            uid
            for uid, each in self.cluster.api.pods.items()
            if each.pod.node and not each.pod.is_terminal and not each.pod.annotations
        )
        told = [uid for uid in uids if (seen := self.cluster.seen(uid)) is not None and seen.pod.node]
        if told:
            self.cluster.agent_places(told[which % len(told)])

    @precondition(lambda self: self.cluster.api.late)
    @rule()
    def a_binding_arrives_late(self) -> None:
        self.cluster.arrive_late()

    @rule(seconds=st.sampled_from([1.0, 30.0, 61.0, 80.0, 601.0]))
    def time_passes(self, seconds: float) -> None:
        self.cluster.now += seconds
        if seconds >= REQUEST_SECONDS:
            self.cluster.api.late.clear()
            self.the_watch_catches_up()
        self.cluster.extender.lapse()

    @rule(name=st.sampled_from(NAMES), how=st.sampled_from(["gone", "back", "ill", "cordoned", "broken"]))
    def a_node_changes(self, name: str, how: str) -> None:
        if how == "gone":
            self.cluster.extender.drop_node(name)
            return
        ill, cordon, text = [0] if how == "ill" else [], ["0"] if how == "cordoned" else [], None
        changed = node(name, GPUS, blocks=BLOCKS, ill=ill, cordon=cordon, text="{" if how == "broken" else text)
        self.cluster.extender.put_node(changed)

    @rule()
    def restart(self) -> None:
        self.cluster.restart()

    @invariant()
    def no_gpu_is_given_twice(self) -> None:
        for name in NAMES:
            for uuid, use in self.cluster.used(name, also_under_way=True).items():
                assert use.cores <= 100, (uuid, use)
                assert use.blocks <= BLOCKS, (uuid, use)

    @invariant()
    def a_bound_pod_is_counted_once(self) -> None:
        books = self.cluster.extender.books
        for uid in self.cluster.api.told:
            held = [each.node for each in books.holdings(uid) if each.hold is Hold.BOUND]
            seen = self.cluster.seen(uid)
            if seen is None or seen.pod.is_terminal:
                assert not list(books.holdings(uid))
            elif seen.pod.node:
                assert held == [seen.pod.node]
                assert len(list(books.holdings(uid))) == 1

    @invariant()
    def no_reservation_outlives_its_reason(self) -> None:
        cluster = self.cluster
        cluster.extender.lapse()
        for name, book in cluster.extender.books.nodes.items():
            for uid, held in book.holdings.items():
                if held.hold is Hold.RESERVED:
                    patience = PATIENCE.gang if held.expires - cluster.filtered_at[uid] > 60 else PATIENCE.reservation
                    assert cluster.filtered_at[uid] <= cluster.now < cluster.filtered_at[uid] + patience, (name, uid)
                elif held.hold is Hold.DOUBTFUL:
                    assert held.expires > cluster.now

    def teardown(self) -> None:
        """When everybody has been told and no one asks any more, what is held is what is bound."""
        cluster = self.cluster
        for _ in range(60):
            cluster.spin(10)
        assert all(task.done() for task in cluster.binds)
        for uid in tuple(cluster.api.news):
            while cluster.api.news[uid]:
                cluster.tell(uid)
        cluster.now += 2 * PATIENCE.gang
        cluster.extender.lapse()
        found = {
            (uid, held.node) for book in cluster.extender.books.nodes.values() for uid, held in book.holdings.items()
        }
        live = cluster.api.pods.values()
        assert found == {(each.uid, each.pod.node) for each in live if each.pod.node and not each.pod.is_terminal}
        cluster.close()

    def _any(self, which: int) -> ClusterPod | None:
        pods = list(self.cluster.api.pods.values())
        return pods[which % len(pods)] if pods else None

    def _waiting(self, which: int) -> ClusterPod | None:
        waiting = [each for each in self.cluster.api.pods.values() if not each.pod.node and not each.pod.is_terminal]
        return waiting[which % len(waiting)] if waiting else None


TestScheduling = Scheduling.TestCase
TestScheduling.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
