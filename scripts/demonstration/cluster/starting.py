"""The scheduler starts, makes its certificate and is trusted; two agents report their GPUs."""

import asyncio
import time

from sandbox.admission import authority_of_webhook
from scripts.demonstration.cluster import webhook_promises
from scripts.demonstration.cluster.cast import CORE
from scripts.demonstration.cluster.play import Play
from scripts.demonstration.cluster.stage import GPUS, authority_in_secret

READY_S = 25.0


async def start(play: Play) -> None:
    play.show.act("vcuda scheduler starts, and two agents report their GPUs")
    stage, began = play.stage, time.monotonic()
    await stage.scheduler.start()
    agents = (node.start_agent(deadline_s=READY_S) for node in stage.nodes.values())
    await asyncio.gather(stage.scheduler.wait_ready(deadline_s=READY_S), *agents)
    gpus = GPUS * len(stage.nodes)
    await stage.scheduler.wait_figure("gpus", gpus, what="the agents' GPUs are known", deadline_s=READY_S)
    await play.until(lambda: _offered(play), lambda: "kubelet does not offer the GPUs of both nodes")
    await play.until(lambda: bool(authority_of_webhook(stage.server)), lambda: "the webhook has no caBundle")
    seconds = round(time.monotonic() - began, 3)
    uuids = {
        name: tuple(gpu.uuid for gpu in (await node.agent.usage()).gpus) for name, node in sorted(stage.nodes.items())
    }
    play.note(nodes=uuids, seconds={"start": seconds})
    play.show.say(
        f"ready after {seconds:.1f} s: {len(stage.nodes)} nodes with {GPUS} GPUs each. The scheduler is asked over "
        "TLS; it made its own authority for that, and wrote it into the webhook's caBundle"
    )
    play.keep(webhook_promises.is_trusted(authority_in_secret(stage.server), authority_of_webhook(stage.server)))


def _offered(play: Play) -> bool:
    nodes = play.stage.server.store.objects("nodes")
    offered = [int((node["status"].get("allocatable") or {}).get(CORE, 0)) for node in nodes]
    return offered == [100 * GPUS] * len(play.stage.nodes)
