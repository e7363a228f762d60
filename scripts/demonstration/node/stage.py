"""What runs during the node's half: a GPU node in one temporary directory, of which nothing is left afterwards.

In: nothing. Out: a `GpuNode` with the emulated driver, a stand-in kubelet and API server, and the real agent.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from sandbox.emulated_gpus import INTERPOSERS
from sandbox.gpunode import EIGHT_GPUS, GpuNode, gpu_node
from scripts.demonstration.home import temporary_home

NODE = "gpu-node"
GPUS = 8
PROFILE = EIGHT_GPUS
KUBELET_SPEED = 20.0
RETRY_MAX_S = 40.0  # of kubelet's clock: two seconds, so that a slow machine does not wait for a back-off


@asynccontextmanager
async def set_up(*, keep: bool) -> AsyncIterator[GpuNode]:
    """Everything but the agent is running; the agent is the play's to start."""
    with temporary_home(keep=keep) as home:
        playing = gpu_node(
            home, profile=PROFILE, library=INTERPOSERS, node_name=NODE, speed=KUBELET_SPEED, retry_max_s=RETRY_MAX_S
        )
        async with playing as node:
            yield node
