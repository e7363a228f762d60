"""What runs during the demo: a GPU node in one temporary directory, of which nothing is left afterwards.

In: nothing. Out: a `GpuNode` with the emulated driver, a stand-in kubelet and API server, and the real agent.
"""

import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from scripts.demonstration.failure import DemoError
from scripts.demonstration.greedy import PROGRAM
from tests.fakes.emulated_gpus import BUILT, INTERPOSERS
from tests.fakes.gpunode import EIGHT_GPUS, GpuNode, gpu_node

NODE = "gpu-node"
GPUS = 8
PROFILE = EIGHT_GPUS
DRIVER = BUILT
KUBELET_SPEED = 20.0
RETRY_MAX_S = 40.0  # of kubelet's clock: two seconds, so that a slow machine does not wait for a back-off
LONGEST_ROOT = 40  # leaves room for the sockets below it


@asynccontextmanager
async def set_up(*, keep: bool) -> AsyncIterator[GpuNode]:
    """Everything but the agent is running; the agent is the play's to start."""
    home = _home()
    try:
        playing = gpu_node(
            home, profile=PROFILE, library=INTERPOSERS, node_name=NODE, speed=KUBELET_SPEED, retry_max_s=RETRY_MAX_S
        )
        async with playing as node:
            yield node
    finally:
        if not keep:
            shutil.rmtree(home, ignore_errors=True)


def _home() -> Path:
    """A short path: a unix socket's has 107 bytes at most."""
    needed = {"the emulated driver": DRIVER / "libcuda.so.1", "vcuda's library": INTERPOSERS / "libcuda.so.1"}
    for what, path in {**needed, "the greedy program": PROGRAM}.items():
        if not path.exists():
            raise DemoError(f"{what} is not built; run scripts/setup")
    base = tempfile.gettempdir()
    return Path(tempfile.mkdtemp(prefix="vcuda-demo-", dir=base if len(base) < LONGEST_ROOT else "/tmp"))
