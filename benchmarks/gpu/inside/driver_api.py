"""CUDA's driver API and NVML through ctypes, as far as the checks need them; nothing is linked, the loader decides.

In: calls by name. Out: results, or CudaError with the code. Not here: anything that knows of vcuda.
"""

import ctypes
import ctypes.util
from ctypes import byref, c_char_p, c_int, c_size_t, c_uint, c_uint64, c_ulonglong, c_void_p
from typing import Any

MIB = 1 << 20
OUT_OF_MEMORY = 2
UUID_BYTES = 16

KERNEL = b"""
.version 6.0
.target sm_50
.address_size 64
.visible .global .align 4 .f32 result;
.visible .entry work(.param .u64 rounds)
{
// vcuda-emulator: ns = 4 * param 0 wide
.reg .pred %p<3>; .reg .f32 %f<2>; .reg .b64 %rd<3>;
ld.param.u64 %rd1, [rounds];
mov.f32 %f1, 0f3F800000;
mov.u64 %rd2, 0;
again:
fma.rn.f32 %f1, %f1, %f1, %f1;
add.u64 %rd2, %rd2, 1;
setp.lt.u64 %p1, %rd2, %rd1;
@%p1 bra again;
setp.eq.f32 %p2, %f1, 0f00000000;
@%p2 st.global.f32 [result], %f1;
ret;
}
"""


class CudaError(Exception):
    """A call that did not succeed."""

    def __init__(self, call: str, code: int) -> None:
        super().__init__(f"{call} said {code}")
        self.code = code


class Cuda:
    """libcuda.so.1 as the loader gives it, or the file named."""

    def __init__(self, file: str = "libcuda.so.1") -> None:
        self.library = ctypes.CDLL(file)

    def ask(self, call: str, *arguments: Any) -> int:  # noqa: ANN401 - ctypes
        return int(getattr(self.library, call)(*arguments))

    def do(self, call: str, *arguments: Any) -> None:  # noqa: ANN401 - ctypes
        code = self.ask(call, *arguments)
        if code != 0:
            raise CudaError(call, code)

    def start(self, ordinal: int = 0) -> int:
        """A primary context of this device is current; its device."""
        device, context = c_int(), c_void_p()
        self.do("cuInit", 0)
        self.do("cuDeviceGet", byref(device), ordinal)
        self.do("cuDevicePrimaryCtxRetain", byref(context), device)
        self.do("cuCtxSetCurrent", context)
        return device.value

    def memory(self) -> tuple[int, int]:
        """Free and total."""
        free, total = c_size_t(), c_size_t()
        self.do("cuMemGetInfo_v2", byref(free), byref(total))
        return free.value, total.value

    def allocate(self, size: int) -> int:
        pointer = c_uint64()
        self.do("cuMemAlloc_v2", byref(pointer), c_size_t(size))
        return pointer.value

    def free(self, pointer: int) -> None:
        self.do("cuMemFree_v2", c_uint64(pointer))

    def stream(self) -> c_void_p:
        stream = c_void_p()
        self.do("cuStreamCreate", byref(stream), 1)
        return stream

    def function(self) -> c_void_p:
        module, function = c_void_p(), c_void_p()
        self.do("cuModuleLoadData", byref(module), c_char_p(KERNEL))
        self.do("cuModuleGetFunction", byref(function), module, b"work")
        return function

    def launch(self, function: c_void_p, stream: c_void_p, rounds: int) -> int:
        word = c_uint64(rounds)
        parameters = (c_void_p * 1)(ctypes.addressof(word))
        shape = [c_uint(n) for n in (264, 1, 1, 1024, 1, 1, 0)]
        return self.ask("cuLaunchKernel", function, *shape, stream, parameters, None)


class Memory1(ctypes.Structure):
    """nvmlMemory_t."""

    _fields_ = [("total", c_ulonglong), ("free", c_ulonglong), ("used", c_ulonglong)]


class Memory2(ctypes.Structure):
    """nvmlMemory_v2_t."""

    _fields_ = [("version", c_uint), *((name, c_ulonglong) for name in ("total", "reserved", "free", "used"))]


class Process(ctypes.Structure):
    """nvmlProcessInfo_t of version 2 and 3."""

    _fields_ = [("pid", c_uint), ("used", c_ulonglong), ("gpu_instance", c_uint), ("compute_instance", c_uint)]


class Utilization(ctypes.Structure):
    """nvmlUtilization_t."""

    _fields_ = [("gpu", c_uint), ("memory", c_uint)]


class Nvml:
    """libnvidia-ml.so.1, one device of it by UUID."""

    def __init__(self, uuid: str, file: str = "libnvidia-ml.so.1") -> None:
        self.library = ctypes.CDLL(file)
        self.device = c_void_p()
        self.do("nvmlInit_v2")
        self.do("nvmlDeviceGetHandleByUUID", uuid.encode(), byref(self.device))

    def do(self, call: str, *arguments: Any) -> None:  # noqa: ANN401 - ctypes
        code = int(getattr(self.library, call)(*arguments))
        if code != 0:
            raise CudaError(call, code)

    def memory(self) -> Memory1:
        printed = Memory1()
        self.do("nvmlDeviceGetMemoryInfo", self.device, byref(printed))
        return printed

    def memory2(self) -> Memory2:
        printed = Memory2(version=ctypes.sizeof(Memory2) | 2 << 24)
        self.do("nvmlDeviceGetMemoryInfo_v2", self.device, byref(printed))
        return printed

    def sm_mhz(self) -> int:
        """The clock of the multiprocessors now."""
        mhz = c_uint()
        self.do("nvmlDeviceGetClockInfo", self.device, c_uint(1), byref(mhz))
        return mhz.value

    def busy_percent(self) -> int:
        """Of the driver's last sample period, which lasts up to a second."""
        printed = Utilization()
        self.do("nvmlDeviceGetUtilizationRates", self.device, byref(printed))
        return int(printed.gpu)

    def processes(self) -> dict[int, int]:
        """Bytes by pid, of those who compute."""
        room = 256
        count, list_ = c_uint(room), (Process * room)()
        self.do("nvmlDeviceGetComputeRunningProcesses_v3", self.device, byref(count), list_)
        return {each.pid: each.used for each in list_[: count.value]}


def uuid_text(raw: bytes) -> str:
    digits = raw.hex()
    return "GPU-" + "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))
