"""A pod finds no GPU: `vcuda explain` says why, something ends, and the pod runs."""

import time

from sandbox.scheduler import explain
from scripts.demonstration.cluster import promises, seen
from scripts.demonstration.cluster.cast import NAMESPACE, WAITING
from scripts.demonstration.cluster.findings import Waited
from scripts.demonstration.cluster.play import Play

ENDS = "hami"
NAME = "llm"


async def wait(play: Play) -> None:
    play.show.act("A pod finds no GPU: why it waits, and what would help")
    stage = play.stage
    async with stage.kube_scheduler.at_work():
        await play.submit(WAITING)
        await play.until(
            lambda: seen.condition(stage, NAME) != seen.UNSCHEDULED, lambda: f"pod {NAME} was not looked at"
        )
        condition = seen.condition(stage, NAME)
        play.show.say(f"{NAME} asks for 75 cores; `kubectl describe pod` would show: [yellow]{condition}[/]\n")
        explanation = await explain(stage.scheduler, f"{NAMESPACE}/{NAME}", stage.authority)
        play.show.command(f"vcuda explain {NAMESPACE}/{NAME}", explanation)
        node, phase = seen.node_of(stage, NAME), ""
        began = time.monotonic()
        if not node:
            stage.server.store.delete("pods", ENDS, namespace=NAMESPACE)
            await play.running(NAME)
            node, phase = seen.node_of(stage, NAME), seen.phase(stage, NAME)
    placed = await play.look(seen.names(stage))
    gpus = ", ".join(str(gpu) for each in placed if each.pod == NAME for gpu in each.gpus)
    play.show.say(
        f"\n{ENDS} is deleted: {time.monotonic() - began:.1f} s later {NAME} runs on {node}, GPU {gpus}; nobody had to "
        "touch it"
    )
    waited = Waited(NAME, condition, explanation, ENDS, node, phase)
    play.note(waited=waited)
    play.keep(
        promises.is_explained(waited, gpus=("GPU 0", "GPU 1"), nodes=tuple(stage.nodes)),
        promises.runs_when_there_is_room(waited),
    )
