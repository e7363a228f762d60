"""What Volcano asks about a pod is charged to the pod's namespace."""

import json
from functools import partial

from deviceplugin.cluster.extender.extender import Extender
from deviceplugin.cluster.extender.turns import LEAST, Turns
from deviceplugin.cluster.http.server import Verb
from deviceplugin.cluster.volcano.tasks import Announcements, VolcanoTasks
from deviceplugin.model.allocation import ContainerRole
from deviceplugin.model.pod import Gang
from deviceplugin.model.units import ResourceNames
from deviceplugin.placement.budget import AT_ONCE
from deviceplugin.scheduler.service import VolcanoService
from tests.cluster.extender.api import MemoryApi
from tests.cluster.extender.makers import node, pod
from tests.cluster.volcano.test_announcements import Written


def service(extender: Extender, turns: Turns) -> VolcanoService:
    tasks = VolcanoTasks(extender.snapshot, clock=lambda: 0.0)
    return VolcanoService(tasks, Announcements(extender.cache, Written(), names=ResourceNames()), turns)


async def test_a_namespace_that_allocates_for_large_gangs_again_and_again_uses_its_part_up() -> None:
    extender, turns = Extender(MemoryApi(), clock=lambda: 0.0), Turns(clock=lambda: 0.0)
    extender.put_node(node("n", 8))
    gang = Gang("d", "g")
    more = [(f"c{at}", ContainerRole.INIT, 20, 1) for at in range(20)]
    members = [pod(cores=20, blocks=1, gang=gang), *(pod(cores=21 + at, gang=gang, more=more) for at in range(40))]
    for each in members:
        extender.put_pod(each)
    verbs = {each.name: each.answer for each in service(extender, turns).verbs(partial(Verb))}
    body = json.dumps({"task": {"UID": members[0].uid, "Pod": {}, "NodeName": "n"}}).encode()
    for _ in range(200):
        assert (await verbs["volcano/allocate"](body)).outcome == "reserved"
    assert turns.budget("d").most == LEAST
    assert turns.budget("another").most == AT_ONCE
