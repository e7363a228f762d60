"""Acts 1 and 2: the agent starts, and pods get their parts of its GPUs."""

from deviceplugin.observe.usage import Usage
from scripts.demonstration.document import SeenPod
from scripts.demonstration.node import promises, seen
from scripts.demonstration.node.cast import COMPANY, IMPOSSIBLE, Role
from scripts.demonstration.node.play import Play
from scripts.demonstration.node.stage import GPUS


async def start(play: Play) -> None:
    play.show.act("The agent starts and registers with kubelet")
    play.seconds["first_start"] = await play.start_agent()
    cores, blocks = (play.stage.kubelet.allocatable(name) for name in (seen.CORE, seen.MEMORY))
    play.show.say(
        f"ready after {play.seconds['first_start']:.1f} s: {GPUS} GPUs are on offer as "
        f"[bold]{cores} cores[/] (100 are one GPU) and [bold]{blocks} blocks[/] of 256 MiB"
    )


async def pods_come(play: Play) -> None:
    play.show.act("Pods come, and every one gets its part of a GPU")
    rows: list[tuple[Role, SeenPod, Usage]] = []
    for role in (*COMPANY, IMPOSSIBLE):
        pod = await play.run(role)
        rows.append((role, pod, await play.stage.agent.usage()))
    play.show.shares(rows)
    play.show.say(f"[red]{IMPOSSIBLE.name} was refused:[/] {_sentence(play.pods[IMPOSSIBLE.name])}")
    play.show.picture(await play.stage.agent.graph())
    play.keep(promises.refused_in_words(play.refuse(IMPOSSIBLE.name), words="150"))


def _sentence(pod: SeenPod) -> str:
    """The agent's own words, without what kubelet puts around them."""
    return pod.message.rpartition(" desc = ")[2].removesuffix(", which is unexpected") or "no reason was given"
