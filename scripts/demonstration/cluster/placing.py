"""kube-scheduler asks the extender for node and GPUs, and the agents carry out exactly that."""

from scripts.demonstration.cluster.cast import COMPANY
from scripts.demonstration.cluster.play import Play


async def place(play: Play) -> None:
    play.show.act("The extender chooses node and GPUs; the agent carries out exactly that")
    names = ["share", "hami"]
    async with play.stage.kube_scheduler.at_work():
        await play.running(*names)
        for pod in COMPANY:
            name = pod["metadata"]["name"]
            await play.submit(pod)
            await play.running(name)
            names.append(name)
    placed = await play.look(names)
    play.note(placed=placed)
    play.show.placed(placed)
    play.show.say("embed and rerank ask for the emptiest node by annotation; the others take the fullest that fits")
