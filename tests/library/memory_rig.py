"""A container on an emulated GPU, and a process outside it that hears what the whole GPU has.

In: a slice of a GPU. Out: what the container holds in truth, processes in it, and what they have in common: memory that
is exported, images with variables. Not here: what is right.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.library.gpu_slice import CONTEXT, GpuSlice
from tests.library.memory_client import DEVICE, MIB, POSIX_FD, Cuda, allocation_properties, room

STEP = 64 * MIB
PROCESSORS, THREADS_EACH, BLOCKS_EACH = 16, 39, 106  # CUdevice_attribute


@dataclass
class Rig:
    """A container with one process, and a process outside it that sees the whole GPU."""

    gpu_slice: GpuSlice
    directory: Path
    outside: Cuda
    cuda: Cuda
    sockets: Iterator[int] = field(default_factory=lambda: iter(range(1000)))

    def held(self) -> int:
        return self.outside.total() - self.outside.left() - CONTEXT

    def send(self, fd: int, *, giver: Cuda, taker: Cuda) -> int:
        path = str(self.directory / f"socket{next(self.sockets)}")
        taker.tell(receive=path)
        taker.listen()
        giver.ask(send=[path, fd])
        return int(taker.listen()["value"])

    def newcomer(self) -> Cuda:
        """A process without a context."""
        cuda = self.gpu_slice.start(context=False)
        cuda("cuInit", 0)
        return cuda


def exportable(cuda: Cuda, size: int = STEP) -> tuple[int, int]:
    """A handle, and a descriptor of it."""
    handle = cuda.create(size, allocation_properties(DEVICE, 0, POSIX_FD))
    return handle, export(cuda, handle)


def export(cuda: Cuda, handle: int) -> int:
    return int.from_bytes(cuda("cuMemExportToShareableHandle", room(4), handle, POSIX_FD, 0)[0], "little")


def imported(cuda: Cuda, fd: int) -> int:
    return cuda.get("cuMemImportFromShareableHandle", fd, POSIX_FD)


def mapped(cuda: Cuda, handle: int, size: int = STEP) -> int:
    address = cuda.reserve(size)
    cuda.map(address, size, handle)
    cuda.allow(address, size)
    return address


def image(*, variable: int = STEP, local: int = 0) -> bytes:
    """A kernel; a global variable or so much local memory of each thread."""
    head = ".version 7.0\n.target sm_80\n.address_size 64\n"
    data = f".visible .global .align 8 .b8 big[{variable}];\n" if variable else ""
    inside = f".local .align 8 .b8 depot[{local}];\n" if local else ""
    return (head + data + f".visible .entry kernel()\n{{\n{inside}ret;\n}}\n").encode() + b"\0"


def _at_once(cuda: Cuda, of_a_processor: int) -> int:
    processors, each = (
        int.from_bytes(cuda("cuDeviceGetAttribute", room(4), which, 0)[0], "little")
        for which in (PROCESSORS, of_a_processor)
    )
    return processors * each


def threads(cuda: Cuda) -> int:
    """That can be on the GPU at once."""
    return _at_once(cuda, THREADS_EACH)


def blocks(cuda: Cuda) -> int:
    return _at_once(cuda, BLOCKS_EACH)
