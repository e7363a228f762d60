"""The node's half from beginning to end.

In: a play. Out: the same play with everything that was found, also where it broke off.
"""

import time

from scripts.demonstration.document import Ledgers
from scripts.demonstration.node.killing import kill
from scripts.demonstration.node.leaving import pods_go
from scripts.demonstration.node.play import Play
from scripts.demonstration.node.sharing import pods_come, start
from scripts.demonstration.node.taking import greedy_pods


async def perform(play: Play) -> None:
    began = time.monotonic()
    await start(play)
    await pods_come(play)
    before, after = await kill(play)
    end = await pods_go(play)
    play.ledgers = Ledgers(before, after, end)
    await greedy_pods(play)
    await play.stage.agent.stop()
    play.seconds["total"] = round(time.monotonic() - began, 3)
