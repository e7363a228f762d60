"""kube-scheduler and Volcano ask about the same pods and nodes in any order: no GPU is given twice, no promise stays.

Everything that happens to the extender happens here too (`tests/cluster/extender/test_properties.py`): a late watch,
kills, failing GPUs, other schedulers. Volcano's sessions are discarded, carried out, or cut off by a death between the
choice and the Binding; the annotation with the GPUs comes after the Binding, and the watch may show both at once.
"""

import asyncio

from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule

from deviceplugin.cluster.extender.bind import binding_annotations
from deviceplugin.cluster.extender.cache.pod_hold import HoldState
from deviceplugin.cluster.extender.extender import Extender
from deviceplugin.cluster.volcano.tasks import VolcanoTasks
from deviceplugin.model.pod import ClusterPod
from deviceplugin.model.units import ResourceNames
from deviceplugin.structs import replace
from tests.cluster.extender.test_properties import NODE, NODES, SINGLE_S, WHICH, Scheduling
from tests.cluster.volcano.makers import task
from tests.examples import examples, hour_where_thorough

ENDS = st.sampled_from(["carried out", "carried out", "seen at once", "discarded", "cut off"])


class BothSchedulers(Scheduling):
    """A session of Volcano is one step: it takes milliseconds."""

    def _tasks(self) -> VolcanoTasks:
        """Of the process that lives now."""
        extender: Extender = self.cluster.extender
        return VolcanoTasks(extender.snapshot, clock=lambda: self.cluster.now)

    @rule(members=st.lists(WHICH, min_size=1, max_size=3), name=NODE, end=ENDS)
    def volcano_tries_a_gang(self, members: list[int], name: str, end: str) -> None:
        tasks, gang = self._tasks(), self._gang(members)
        placed = [each for each in gang if self._is_placed(tasks, each, name)]
        if end == "discarded" or (end != "cut off" and len(placed) < len(gang)):
            for each in reversed(placed):
                tasks.deallocate(task(each, name))
                assert not [one for one in self._reserved(name) if one == each.uid]
        elif end != "cut off":
            for each in placed:
                self._volcano_binds(each, name, at_once=end == "seen at once")

    @rule(members=st.lists(WHICH, min_size=1, max_size=2), name=NODE)
    def volcano_looks_for_victims(self, members: list[int], name: str) -> None:
        """It changes nothing."""
        gang = self._gang(members)
        running = [each for each in self.cluster.api.pods.values() if each.pod.node == name]
        for each in gang:
            chosen = asyncio.run(self._tasks().victims(task(each), [task(one, name) for one in running]))
            assert {one.uid for one in chosen} <= {one.uid for one in running}

    def _gang(self, members: list[int]) -> list[ClusterPod]:
        found = {each.uid: each for which in members if (each := self._waiting(which)) is not None}
        return list(found.values())

    def _is_placed(self, tasks: VolcanoTasks, found: ClusterPod, name: str) -> bool:
        if tasks.predicate(task(found), name).reason or tasks.allocate(task(found, name)):
            return False
        held = self.cluster.extender.cache.on(name, found.uid)
        if held is None or not held.announced:
            return False  # by the watch it is bound there already
        self.cluster.asked_at[found.uid] = self.cluster.now, found
        return True

    def _reserved(self, name: str) -> list[str]:
        info = self.cluster.extender.cache.nodes.get(name)
        held = info.holds.items() if info is not None else ()
        return [uid for uid, each in held if each.state is HoldState.RESERVED]

    def _volcano_binds(self, found: ClusterPod, name: str, *, at_once: bool) -> None:
        """And the watch tells of it."""
        api, cache = self.cluster.api, self.cluster.extender.cache
        held = cache.on(name, found.uid)
        live = api.pods.get(found.uid)
        if held is None or live is None or live.pod.node or live.pod.deleting or live.pod.is_terminal:
            return
        text = binding_annotations(held, cache.nodes[name].inventory, now_ns=1, names=ResourceNames())
        annotations = {**live.pod.annotations, **text}
        before = annotations if at_once else live.pod.annotations
        bound = api.put(replace(live, pod=replace(live.pod, node=name, annotations=before)))
        self._tell(found)
        if not at_once:
            kept = cache.on(name, found.uid)
            assert kept is None or kept.allocations == held.allocations or not kept.announced
            api.put(replace(bound, pod=replace(bound.pod, annotations=annotations)))
            self._tell(found)

    def _tell(self, found: ClusterPod) -> None:
        while self.cluster.api.news.get(found.uid):
            self.cluster.tell(found.uid)

    @invariant()
    def no_reservation_outlives_its_reason(self) -> None:
        """Volcano says itself when it takes a placement back, so what its pods' conditions say does not count."""
        cluster = self.cluster
        cluster.extender.expire()
        for name in NODES:
            info = cluster.extender.cache.nodes.get(name)
            for uid, held in info.holds.items() if info is not None else ():
                if held.state is HoldState.RESERVED and held.announced:
                    asked, _ = cluster.asked_at[uid]
                    assert asked <= cluster.now < asked + SINGLE_S, (name, uid)
                    last = cluster.extender.cache.waiting.get(
                        uid
                    )  # what a lagging watch said again counts until it catches up
                    assert last is None or not last.pod.deleting, (name, uid)


TestBothSchedulers = hour_where_thorough()(BothSchedulers.TestCase)
TestBothSchedulers.settings = examples(400, steps=40)
