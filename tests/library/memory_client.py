"""The other end of cuda_worker: a CUDA process of the tests, with the driver's memory calls by their own names.

In: numbers and structures of the CUDA API. Out: its results; an error code raises `CudaError`. Not here: what is right.
"""

import struct
from collections.abc import Callable
from dataclasses import dataclass

from tests.library.cuda_calls import CudaError as CudaError
from tests.library.cuda_calls import CudaWorker
from tests.library.cuda_calls import pointer_to as pointer_to
from tests.library.cuda_calls import room as room
from tests.library.machine import Machine

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
UNIT = 2 * MIB
INVALID_VALUE, OUT_OF_MEMORY, NOT_INITIALIZED, DEVICE_UNAVAILABLE = 1, 2, 3, 46
INVALID_DEVICE, INVALID_CONTEXT, MAP_FAILED = 101, 201, 205
INVALID_HANDLE, NOT_FOUND = 400, 500
ALREADY_REGISTERED, NOT_REGISTERED, NOT_SUPPORTED = 712, 713, 801

DEVICE, HOST, HOST_NUMA, HOST_NUMA_CURRENT, LOCALITY_DOMAIN = 1, 2, 3, 4, 6  # CUmemLocationType
PINNED, MANAGED = 1, 2  # CUmemAllocationType
POSIX_FD, FABRIC = 1, 8  # CUmemAllocationHandleType
READ_WRITE = 3
_EQUAL = 1  # CUstreamWaitValue_flags

RELEASE_THRESHOLD, RESERVED, RESERVED_HIGH, USED, USED_HIGH = 4, 5, 6, 7, 8  # CUmemPool_attribute


def location(kind: int, number: int = 0) -> bytes:
    return struct.pack("ii", kind, number)


def access(kind: int, number: int = 0, flags: int = READ_WRITE) -> bytes:
    return location(kind, number) + struct.pack("i", flags)


def allocation_properties(kind: int = DEVICE, number: int = 0, handles: int = 0, allocation: int = PINNED) -> bytes:
    return struct.pack("ii", allocation, handles) + location(kind, number) + bytes(16)


def pool_properties(kind: int = DEVICE, number: int = 0, handles: int = 0, most: int = 0) -> bytes:
    return struct.pack("ii", PINNED, handles) + location(kind, number) + bytes(8) + struct.pack("Q", most) + bytes(56)


@dataclass
class Cuda(CudaWorker):
    """A process with device 0's primary context current, unless `context` says otherwise."""

    context: bool = True

    def prepare(self) -> None:
        if self.context:
            self.begin()

    # ---- linear memory ----

    def alloc(self, size: int) -> int:
        return self.get("cuMemAlloc_v2", size)

    def free(self, pointer: int) -> None:
        self("cuMemFree_v2", pointer)

    def left(self) -> int:
        """Free bytes of the GPU."""
        return int.from_bytes(self("cuMemGetInfo_v2", room(8), room(8))[0], "little")

    def total(self) -> int:
        return int.from_bytes(self("cuMemGetInfo_v2", room(8), room(8))[1], "little")

    def write(self, pointer: int, data: bytes) -> None:
        self("cuMemcpyHtoD_v2", pointer, pointer_to(data), len(data))

    def read(self, pointer: int, size: int) -> bytes:
        return self("cuMemcpyDtoH_v2", room(size), pointer, size)[0]

    def peek(self, address: int, size: int) -> bytes:
        return bytes.fromhex(self.ask(peek=[address, size])["value"])

    def poke(self, address: int, data: bytes) -> None:
        self.ask(poke=[address, data.hex()])

    # ---- virtual memory ----

    def reserve(self, size: int, alignment: int = 0, hint: int = 0) -> int:
        return self.get("cuMemAddressReserve", size, alignment, hint, 0)

    def create(self, size: int, properties: bytes | None = None) -> int:
        return self.get("cuMemCreate", size, pointer_to(properties or allocation_properties()), 0)

    def map(self, address: int, size: int, handle: int) -> None:
        self("cuMemMap", address, size, 0, handle, 0)

    def allow(self, address: int, size: int, *who: bytes) -> None:
        who = who or (access(DEVICE),)
        self("cuMemSetAccess", address, size, pointer_to(b"".join(who)), len(who))

    # ---- pools ----

    def pool(self, device: int = 0) -> int:
        return self.get("cuDeviceGetDefaultMemPool", device)

    def alloc_async(self, size: int, stream: int = 0) -> int:
        return self.get("cuMemAllocAsync", size, stream)

    def free_async(self, pointer: int, stream: int = 0) -> None:
        self("cuMemFreeAsync", pointer, stream)

    def attribute(self, pool: int, which: int) -> int:
        return int.from_bytes(self("cuMemPoolGetAttribute", pool, which, room(8))[0], "little")

    def set_attribute(self, pool: int, which: int, value: int) -> None:
        self("cuMemPoolSetAttribute", pool, which, pointer_to(struct.pack("Q", value)))

    def synchronize(self) -> None:
        self("cuCtxSynchronize")

    def stream(self, flags: int = 1) -> int:
        return self.get("cuStreamCreate", flags)

    # ---- time ----

    def occupy(self, stream: int, milliseconds: int) -> None:
        """A kernel that keeps the stream busy; returns at once."""
        text = f".visible .entry spin (\n)\n{{\n// vcuda-emulator: ns = {milliseconds * 1_000_000}\nret;\n}}\n"
        head = ".version 7.0\n.target sm_80\n.address_size 64\n"
        module = self.get("cuModuleLoadData", pointer_to((head + text).encode() + b"\0"))
        function = self.get("cuModuleGetFunction", module, pointer_to(b"spin\0"))
        self("cuLaunchKernel", function, 1, 1, 1, 1, 1, 1, 0, stream, None, None)

    def milliseconds(self, stream: int, queue: Callable[[], None]) -> float:
        """What `queue` puts into the stream takes so long there, however slow this machine is to put it there."""
        begin, end, word = self.get("cuEventCreate", 0), self.get("cuEventCreate", 0), self.get("cuMemHostAlloc", 4, 0)
        self("cuStreamWaitValue32_v2", stream, word, 1, _EQUAL)
        self.occupy(stream, 1)
        self("cuEventRecord", begin, stream)
        queue()
        self("cuEventRecord", end, stream)
        self.poke(word, struct.pack("<I", 1))
        self("cuStreamSynchronize", stream)
        (found,) = struct.unpack("f", self("cuEventElapsedTime", room(4), begin, end)[0])
        return float(found)


GPU_MIB, RESERVED_MIB, CONTEXT_MIB = 4096, 96, 64
CAPACITY = (GPU_MIB - RESERVED_MIB - CONTEXT_MIB) * MIB  # what the first process on a GPU can allocate


def describe(machine: Machine, gpus: int = 1) -> None:
    """A machine of small GPUs of one kind, every pair of them peers."""
    model = {"name": "Small", "memory_mib": GPU_MIB, "reserved_mib": RESERVED_MIB, "compute_capability": "9.0"}
    groups = [{"level": "single", "gpus": list(range(gpus))}] if gpus > 1 else []
    machine.describe(
        {
            "format": 1,
            "name": "small",
            "driver": "580.65.06",
            "cuda": "13.0",
            "models": {"small": model},
            "gpus": [{"model": "small"}] * gpus,
            "topology": {"groups": groups},
        }
    )


def start(machine: Machine, gpus: int = 1, *, context: bool = True, **environment: str) -> Cuda:
    """A process on the machine, which is described unless an earlier one was started on it."""
    if not machine.profile.exists():
        describe(machine, gpus)
    mine = machine.environment | {"VCUDA_EMULATOR_CONTEXT_MIB": str(CONTEXT_MIB)} | environment
    cuda = Cuda(machine.build / "libcuda.so.1", mine, machine.errors, context)
    return machine.processes.enter_context(cuda)
