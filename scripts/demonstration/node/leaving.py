"""Act 4: the pods go, and the ledger is empty."""

import time

from deviceplugin.observe.usage import Usage
from scripts.demonstration.node import promises
from scripts.demonstration.node.play import EMPTY_S, RUN_S, Play


async def pods_go(play: Play) -> Usage:
    play.show.act("Pods go")
    for name in play.names():
        play.delete(name)
    await play.stage.server.until(lambda: not play.names(), seconds=RUN_S)

    async def empty() -> bool:
        return not (await play.stage.agent.usage()).containers

    began = time.monotonic()
    await play.stage.agent.until(empty, what="the ledger is empty", deadline_s=EMPTY_S)
    play.seconds["given_back"] = round(time.monotonic() - began, 3)
    usage = await play.stage.agent.usage()
    play.show.say(f"all deleted; the ledger was empty {play.seconds['given_back']:.1f} s after the last one ended")
    play.keep(promises.ledger_is_empty(usage))
    return usage
