"""The memory of a running container, changed by its pod's annotation: from the API server to a process that allocates.

The agent, its files, vcuda's library and the emulated driver are real; the process stands beside its container, with
VCUDA_DIR in the place of the mount at /etc/vcuda.
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sandbox.emulated_gpus import INTERPOSERS
from sandbox.gpunode import GpuNode
from tests.agent.harness import PATIENCE_S, node_with_agent, run, share
from tests.agent.test_live_limits import MEMORY_LIMIT, annotate
from tests.library.memory_client import MIB, OUT_OF_MEMORY, Cuda, CudaError

CONTEXT_MIB = 64
STEP = 128 * MIB


@contextmanager
def process_in(node: GpuNode, uid: str) -> Iterator[Cuda]:
    """With the libraries, the files and the one GPU of its container."""
    view = node.kubelet.container_view(uid, "c")
    libraries = view.host_path("/usr/local/nvidia/lib64")
    environment = {
        **node.gpus.environment,
        "LD_LIBRARY_PATH": str(libraries),
        "VCUDA_DIR": str(view.host_path("/etc/vcuda")),
        "CUDA_VISIBLE_DEVICES": view.env["NVIDIA_VISIBLE_DEVICES"],
        "VCUDA_EMULATOR_CONTEXT_MIB": str(CONTEXT_MIB),
    }
    with Cuda(libraries / "libcuda.so.1", environment, node.home / "errors") as cuda:
        yield cuda


async def test_a_running_process_gets_more_memory_when_its_pod_may_have_more(short_tmp: Path) -> None:
    async with node_with_agent(short_tmp, library=INTERPOSERS, flags={"allocation-check-period": "1h"}) as node:
        pod = share("p", 30, 8, annotations={MEMORY_LIMIT: "512"})
        (uid,) = await run(node, pod)
        with process_in(node, uid) as cuda:
            assert cuda.total() == 512 * MIB
            held = fill(cuda)
            assert len(held) == (512 - CONTEXT_MIB) // 128

            annotate(node, pod, "1024", MEMORY_LIMIT)
            await _until(lambda: cuda.total() == 1024 * MIB)
            held += fill(cuda)
            assert len(held) == (1024 - CONTEXT_MIB) // 128

            annotate(node, pod, "300", MEMORY_LIMIT)
            await _until(lambda: cuda.total() == 300 * MIB)
            assert cuda.read(held[-1], 16) == bytes(16), "what it has stays"
            with pytest.raises(CudaError) as refused:
                cuda.alloc(STEP)
            assert refused.value.code == OUT_OF_MEMORY
            for pointer in held[1:]:
                cuda.free(pointer)
            assert fill(cuda) == [], "128 MiB and its context are held, so 108 MiB are left"

            annotate(node, pod, None, MEMORY_LIMIT)
            await _until(lambda: cuda.total() == 2048 * MIB)
            assert 1 + len(fill(cuda)) == (2048 - CONTEXT_MIB) // 128


def fill(cuda: Cuda) -> list[int]:
    """Allocates until it is refused."""
    held: list[int] = []
    while True:
        try:
            held.append(cuda.alloc(STEP))
        except CudaError as refused:
            if refused.code != OUT_OF_MEMORY:
                raise
            return held


async def _until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not holds():
            await asyncio.sleep(0.05)
