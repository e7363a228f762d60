"""Short ways to build a graph on the emulated driver, node by node."""

import struct

import pytest

from tests.library.cuda_client import (
    SMALL,
    Process,
    pointer_to,
)

MS = 1_000_000


def pack(*nodes: int) -> dict[str, object] | None:
    return pointer_to(struct.pack(f"{len(nodes)}Q", *nodes)) if nodes else None


def kernel_params(process: Process, shape: tuple[int, ...], pointers: int) -> bytes:
    """CUDA_KERNEL_NODE_PARAMS_v2."""
    return struct.pack("Q7I4xQQQQ", process.work, *shape, 0, pointers, 0, 0, 0)


class Graph:
    """A graph that is built node by node. Parameters of kernels lie in page-locked memory that stays."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.handle = process.get("cuGraphCreate", 0)

    def kernel(self, ns: int, *after: int, shape: tuple[int, ...] = SMALL) -> int:
        return self.process.get(
            "cuGraphAddKernelNode_v2", self.handle, pack(*after), len(after), self.params(ns, shape)
        )

    def params(self, ns: int, shape: tuple[int, ...] = SMALL) -> dict[str, object]:
        value = self.process.get("cuMemHostAlloc", 16, 0)
        self.process("cuMemcpy", value + 8, host(self.process, struct.pack("Q", ns)), 8)
        self.process("cuMemcpy", value, host(self.process, struct.pack("Q", value + 8)), 8)
        return pointer_to(kernel_params(self.process, shape, value))

    def empty(self, *after: int) -> int:
        return self.process.get("cuGraphAddEmptyNode", self.handle, pack(*after), len(after))

    def child(self, other: "Graph", *after: int) -> int:
        return self.process.get("cuGraphAddChildGraphNode", self.handle, pack(*after), len(after), other.handle)

    def milliseconds(self) -> float:
        return self.process.graph_time(self.process.instantiate(self.handle), self.process.stream())


def host(process: Process, data: bytes) -> int:
    """The address of page-locked memory that holds the bytes."""
    address = process.get("cuMemHostAlloc", 16, 0)
    process("cuMemcpyDtoH_v2", address, device(process, data), len(data))
    return address


def device(process: Process, data: bytes) -> int:
    pointer = process.get("cuMemAlloc_v2", 16)
    process("cuMemcpyHtoD_v2", pointer, pointer_to(data), len(data))
    return pointer


def about(milliseconds: float) -> object:
    return pytest.approx(milliseconds, abs=0.001)
