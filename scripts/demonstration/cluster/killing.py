"""SIGKILL for the scheduler between filter and bind: what it had chosen was in its memory alone."""

import asyncio
import time

from scripts.demonstration.cluster import promises, seen
from scripts.demonstration.cluster.cast import REPLICAS, Json
from scripts.demonstration.cluster.findings import Survivor
from scripts.demonstration.cluster.play import Play
from scripts.demonstration.cluster.starting import READY_S
from scripts.demonstration.failure import DemoError


async def kill(play: Play) -> None:
    play.show.act(f"SIGKILL for vcuda scheduler between filter and bind of {len(REPLICAS)} pods")
    await play.clear()
    stage = play.stage
    pods = [await play.submit(pod) for pod in REPLICAS]
    filtered = [await _filtered(play, pod) for pod in pods]
    reserved = round((await stage.scheduler.figures())["reservations"])
    await stage.scheduler.kill()
    refused = await stage.kube_scheduler.bind(pods[0], filtered[0])
    play.show.say(f"{reserved} choices were reserved, in its memory alone. A bind that comes now fails: {refused}")
    began = time.monotonic()
    await stage.scheduler.start()
    await stage.scheduler.wait_ready(deadline_s=READY_S)
    play.show.say(
        f"started again, ready after {time.monotonic() - began:.1f} s; the binds come, and each comes twice\n"
    )
    for _ in range(2):  # as when an answer was lost
        orders = (stage.kube_scheduler.bind(pod, node) for pod, node in zip(pods, filtered, strict=True))
        errors = [error for error in await asyncio.gather(*orders) if error]
        if errors:
            raise DemoError(f"bind failed after the restart: {errors[0]}")
    names = [pod["metadata"]["name"] for pod in pods]
    await play.running(*names)
    placed = await play.look(names)
    survivors = tuple(
        Survivor(name, node, seen.node_of(stage, name), seen.bindings(stage, name), seen.phase(stage, name))
        for name, node in zip(names, filtered, strict=True)
    )
    play.note(survivors=survivors)
    play.show.survivors(survivors, placed)
    play.keep(
        promises.nothing_is_lost(survivors),
    )


async def _filtered(play: Play, pod: Json) -> str:
    found = await play.stage.kube_scheduler.filter(pod)
    if not found.node:
        raise DemoError(f"pod {pod['metadata']['name']} found no node: {found.why}")
    return found.node
