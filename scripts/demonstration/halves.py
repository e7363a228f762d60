"""The two halves, each from its stage to its last act.

In: what was found so far, a console, the numbers of the acts. Out: the same document with this half's findings. A half
that breaks off says why in the verdict's `problem`, and keeps what it has found.
"""

import asyncio
from collections.abc import Awaitable, Iterator
from typing import Protocol

import msgspec
from rich.console import Console

from scripts.demonstration.cluster import acts as cluster_acts
from scripts.demonstration.cluster.play import Play as ClusterPlay
from scripts.demonstration.cluster.stage import set_up as cluster_stage
from scripts.demonstration.cluster.tables import Tables as ClusterTables
from scripts.demonstration.document import Document, Verdict
from scripts.demonstration.failure import TROUBLE
from scripts.demonstration.node import acts as node_acts
from scripts.demonstration.node.play import Play as NodePlay
from scripts.demonstration.node.stage import GPUS, NODE, PROFILE
from scripts.demonstration.node.stage import set_up as node_stage
from scripts.demonstration.node.tables import Tables as NodeTables

PLAY_S = 60.0


class Half(Protocol):
    """One of them."""

    async def __call__(self, found: Document, console: Console, numbers: Iterator[int], *, keep: bool) -> Document: ...


async def node_half(found: Document, console: Console, numbers: Iterator[int], *, keep: bool) -> Document:
    show = NodeTables(console, numbers)
    show.title(
        f"vcuda, one node: {GPUS} emulated A100 GPUs, shared between pods",
        (
            ("real", "vcuda agent, and the library that it puts into containers"),
            ("stand-ins", "kubelet and API server: they speak the real protocols"),
            ("emulated", "the driver"),
        ),
    )
    async with node_stage(keep=keep) as stage:
        play = NodePlay(stage, show)
        problem = await _until_it_breaks(node_acts.perform(play))
    if keep:
        show.say(f"[dim]everything is kept in {stage.home}[/]")
    return msgspec.structs.replace(
        found,
        profile=PROFILE.stem,
        node=NODE,
        pods=tuple(play.pods.values()),
        refused=tuple(play.refused.values()),
        greedy=play.slices,
        ledger=play.ledgers,
        seconds=play.seconds,
        verdict=Verdict(not problem, problem, (*found.verdict.promises, *play.kept)),
    )


async def cluster_half(found: Document, console: Console, numbers: Iterator[int], *, keep: bool) -> Document:
    show = ClusterTables(console, numbers)
    show.title(
        "vcuda, a cluster: which node, which GPUs, and why a pod waits",
        (
            ("real", "vcuda scheduler with webhook and extender, vcuda agent on two nodes, explain, simulate"),
            ("stand-ins", "API server, kubelet, kube-scheduler: they speak the real protocols"),
            ("emulated", "the driver: two A100 GPUs on each node"),
        ),
    )
    async with cluster_stage(keep=keep) as stage:
        play = ClusterPlay(stage, show)
        problem = await _until_it_breaks(cluster_acts.perform(play))
    if keep:
        show.say(f"[dim]everything is kept in {stage.home}[/]")
    promises = (*found.verdict.promises, *play.kept)
    return msgspec.structs.replace(found, cluster=play.found, verdict=Verdict(not problem, problem, promises))


async def _until_it_breaks(acts: Awaitable[None]) -> str:
    """Why they were not played to their end; empty where they were."""
    try:
        async with asyncio.timeout(PLAY_S):
            await acts
    except TROUBLE as error:
        return str(error)
    except TimeoutError:
        return f"this half of the demo was not over after {PLAY_S:g} s"
    return ""


HALVES: dict[str, Half] = {"node": node_half, "cluster": cluster_half}
