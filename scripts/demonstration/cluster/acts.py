"""The cluster's half from beginning to end.

In: a play. Out: the same play with everything that was found, also where it broke off.
"""

import time

from scripts.demonstration.cluster import promises
from scripts.demonstration.cluster.gangs import gather
from scripts.demonstration.cluster.killing import kill
from scripts.demonstration.cluster.placing import place
from scripts.demonstration.cluster.play import Play
from scripts.demonstration.cluster.policies import compare
from scripts.demonstration.cluster.reviewing import review
from scripts.demonstration.cluster.simulating import simulate
from scripts.demonstration.cluster.starting import start
from scripts.demonstration.cluster.waiting import wait


async def perform(play: Play) -> None:
    began = time.monotonic()
    for act in (start, review, place, wait, compare, kill, gather, simulate):
        await act(play)
    play.keep(promises.agents_obey(play.moments), promises.nothing_is_chosen_twice(play.moments))
    await play.stage.scheduler.stop()
    for node in play.stage.nodes.values():
        await node.agent.stop()
    play.note(seconds={**play.found.seconds, "total": round(time.monotonic() - began, 3)})
