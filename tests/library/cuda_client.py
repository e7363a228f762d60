"""The other end of cuda_worker: a CUDA process of the tests, with streams, events, kernels and graphs by short names.

In: numbers and structures of the CUDA API. Out: its results; an error code raises `CudaError`. Not here: what is right.
"""

import struct
from dataclasses import dataclass, field

from tests.library.cuda_calls import Argument as Argument
from tests.library.cuda_calls import CudaError as CudaError
from tests.library.cuda_calls import CudaWorker
from tests.library.cuda_calls import pointer_to as pointer_to
from tests.library.cuda_calls import room as room
from tests.library.machine import Machine

MIB = 1 << 20
SUCCESS, INVALID_VALUE, OUT_OF_MEMORY, NOT_INITIALIZED = 0, 1, 2, 3
NO_DEVICE, INVALID_DEVICE, INVALID_IMAGE, INVALID_CONTEXT = 100, 101, 200, 201
NO_BINARY, INVALID_PTX, NEW_PTX = 209, 218, 222
INVALID_HANDLE, ILLEGAL_STATE, NOT_FOUND, NOT_READY, DESTROYED = 400, 401, 500, 600, 709
TOO_LARGE, NOT_PERMITTED, NOT_SUPPORTED, DRIVER_MISMATCH = 720, 800, 801, 803
CAPTURING, INVALIDATED, MERGE, UNMATCHED, UNJOINED, ISOLATION, IMPLICIT, CAPTURED_EVENT, WRONG_THREAD = range(900, 909)
UPDATE_FAILURE, UNKNOWN = 910, 999
GLOBAL, THREAD_LOCAL, RELAXED = 0, 1, 2
NON_BLOCKING = 1
LEGACY, PER_THREAD = 1, 2
DISABLE_TIMING, INTERPROCESS = 2, 4
FULL = (108, 1, 1, 2048 // 2, 1, 1)  # a grid that leaves no room on a GPU of 108 multiprocessors
SMALL = (1, 1, 1, 32, 1, 1)


def ptx(*kernels: str, version: str = "7.0", target: str = "sm_80", rest: str = "") -> bytes:
    return f".version {version}\n.target {target}\n.address_size 64\n{rest}\n{''.join(kernels)}\0".encode()


def kernel(name: str, cost: str = "", parameters: str = "", directives: str = "") -> str:
    comment = f"// vcuda-emulator: ns = {cost}\n" if cost else ""
    return f".visible .entry {name}({parameters})\n{directives}{{\n{comment}ret;\n}}\n"


WORK = ptx(kernel("work", "1 * param 0", ".param .u64 ns"))


@dataclass
class Process(CudaWorker):
    """Device 0's primary context is current in the main thread; `work` is a kernel of so many ns as its parameter."""

    ready: bool = True
    context: int = field(init=False, default=0)
    work: int = field(init=False, default=0)

    def prepare(self) -> None:
        if self.ready:
            self.begin()

    def begin(self, device: int = 0) -> int:
        self.context = super().begin(device)
        self.work = self.function(WORK, "work")
        return self.context

    def calls(self, symbol: str) -> int:
        return int(self.ask(count=symbol)["value"])

    @property
    def violations(self) -> int:
        return int(self.ask(violations=0)["value"])

    @property
    def notes(self) -> list[int]:
        found: list[int] = self.ask(notes=0)["value"]
        return found

    # ---- kernels ----

    def module(self, image: bytes) -> int:
        return self.get("cuModuleLoadData", pointer_to(image))

    def function(self, image: bytes, name: str) -> int:
        return self.get("cuModuleGetFunction", self.module(image), pointer_to(name.encode() + b"\0"))

    def launch_code(
        self, stream: int, ns: int, shape: tuple[int, ...] = SMALL, *, variant: str = "", thread: str = ""
    ) -> int:
        arguments = [*shape, 0, stream, {"pointers": [struct.pack("Q", ns).hex()]}, None]
        return self.code("cuLaunchKernel" + variant, self.work, *arguments, thread=thread)

    def launch(
        self, stream: int, ns: int, shape: tuple[int, ...] = SMALL, *, variant: str = "", thread: str = ""
    ) -> None:
        code = self.launch_code(stream, ns, shape, variant=variant, thread=thread)
        if code != SUCCESS:
            raise CudaError("cuLaunchKernel" + variant, code)

    # ---- streams and events ----

    def stream(self, flags: int = NON_BLOCKING) -> int:
        return self.get("cuStreamCreate", flags)

    def event(self, flags: int = 0) -> int:
        return self.get("cuEventCreate", flags)

    def record(self, stream: int, flags: int = 0) -> int:
        event = self.event(flags)
        self("cuEventRecord", event, stream)
        return event

    def elapsed(self, start: int, end: int) -> float:
        """Milliseconds."""
        return float(struct.unpack("f", self("cuEventElapsedTime", room(4), start, end)[0])[0])

    def settled(self, start: int, end: int) -> float:
        """As elapsed, after both are over."""
        self("cuEventSynchronize", start)
        self("cuEventSynchronize", end)
        return self.elapsed(start, end)

    # ---- capture and graphs ----

    def capture(self, stream: int, mode: int = GLOBAL) -> None:
        self("cuStreamBeginCapture_v2", stream, mode)

    def end_capture(self, stream: int) -> int:
        return int.from_bytes(self("cuStreamEndCapture", stream, room(8))[0], "little")

    def status(self, stream: int) -> int:
        return int.from_bytes(self("cuStreamIsCapturing", stream, room(4))[0], "little")

    def instantiate(self, graph: int, flags: int = 0) -> int:
        return self.get("cuGraphInstantiateWithFlags", graph, flags)

    def graph_time(self, executable: int, stream: int) -> float:
        """Milliseconds of one launch, which is queued while the stream is kept busy so that no host time is in it."""
        self.launch(stream, 300_000_000)
        start = self.record(stream)
        self("cuGraphLaunch", executable, stream)
        return self.settled(start, self.record(stream))

    def nodes(self, graph: int) -> list[int]:
        count = int.from_bytes(self("cuGraphGetNodes", graph, None, room(8))[0], "little")
        listed = (
            self("cuGraphGetNodes", graph, room(8 * count), pointer_to(struct.pack("Q", count)))[0] if count else b""
        )
        return list(struct.unpack(f"{count}Q", listed))


def start(machine: Machine, profile: str = "hgx-a100", *, ready: bool = True, **environment: str) -> Process:
    """A process on the machine, which is described unless an earlier one was started on it."""
    if not machine.profile.exists():
        machine.describe(profile)
    process = Process(machine.build / "libcuda.so.1", machine.environment | environment, machine.errors, ready)
    return machine.processes.enter_context(process)
