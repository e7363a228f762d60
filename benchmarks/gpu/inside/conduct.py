"""Things that programs do with CUDA, and the error codes that they hear; each by name. Out: one line of JSON.

In a container the answers have to be those of the bare driver, but for what is beyond the limit.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from ctypes import byref, c_int, c_size_t, c_uint, c_uint64, c_void_p, create_string_buffer
from typing import Any

from benchmarks.gpu.inside.driver_api import MIB, Cuda, CudaError, uuid_text

GLOBAL, THREAD_LOCAL, RELAXED = 0, 1, 2
WORKERS = 4


def in_child(work: Callable[[], int]) -> int:
    """What `work` says in a child of fork, or 1000 + signal."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.write(writer, str(work()).encode())
        finally:
            os._exit(0)
    os.close(writer)
    _, status = os.waitpid(pid, 0)
    with os.fdopen(reader) as printed:
        return 1000 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else int(printed.read() or 999)


def whole_start(cuda: Cuda) -> int:
    try:
        cuda.start()
        cuda.free(cuda.allocate(MIB))
        return cuda.launch(cuda.function(), cuda.stream(), 100) or cuda.ask("cuCtxSynchronize")
    except CudaError as error:
        return error.code


def fork() -> dict[str, Any]:
    """Workers forked before the parent has a context, and after; the parent goes on in between."""
    cuda = Cuda()
    before = [in_child(lambda: whole_start(cuda)) for _ in range(WORKERS)]
    parent = whole_start(cuda)
    idle = [in_child(lambda: 0) for _ in range(WORKERS)]
    used = [in_child(lambda: cuda.ask("cuMemAlloc_v2", byref(c_uint64()), c_size_t(MIB))) for _ in range(WORKERS)]
    return {"before": before, "parent": parent, "idle": idle, "after": used, "parent_again": whole_start(cuda)}


def capture() -> dict[str, Any]:
    """Launches captured in each mode, the relaxed one while another thread launches too; the graphs run."""
    cuda = Cuda()
    cuda.start()
    function, stream, printed = cuda.function(), cuda.stream(), dict[str, Any]()
    for name, mode in (("global", GLOBAL), ("thread", THREAD_LOCAL), ("relaxed", RELAXED)):
        cuda.launch(function, stream, 10_000)
        cuda.do("cuStreamSynchronize", stream)
        printed[name] = capture_once(cuda, function, stream, mode)
    return printed


def capture_once(cuda: Cuda, function: c_void_p, stream: c_void_p, mode: int) -> list[int]:
    graph, executable, status = c_void_p(), c_void_p(), c_int()
    codes = [cuda.ask("cuStreamBeginCapture_v2", stream, mode)]
    codes += [cuda.launch(function, stream, 1000) for _ in range(5)]
    codes.append(cuda.ask("cuStreamIsCapturing", stream, byref(status)))
    codes.append(status.value)
    codes += in_thread(lambda: launches_elsewhere(cuda, function)) if mode == RELAXED else []
    codes.append(cuda.ask("cuStreamEndCapture", stream, byref(graph)))
    codes.append(cuda.ask("cuGraphInstantiateWithFlags", byref(executable), graph, c_uint64(0)))
    codes += [max(cuda.ask("cuGraphLaunch", executable, stream) for _ in range(200))]
    codes.append(cuda.ask("cuStreamSynchronize", stream))
    codes += [cuda.ask("cuGraphExecDestroy", executable), cuda.ask("cuGraphDestroy", graph)]
    return codes


def launches_elsewhere(cuda: Cuda, function: c_void_p) -> list[int]:
    cuda.start()
    stream = cuda.stream()
    return [max(cuda.launch(function, stream, 1000) for _ in range(100)), cuda.ask("cuStreamSynchronize", stream)]


def in_thread(work: Callable[[], list[int]]) -> list[int]:
    found: list[int] = []
    thread = threading.Thread(target=lambda: found.extend(work()))
    thread.start()
    thread.join()
    return found


def forbidden_in_capture() -> dict[str, Any]:
    """A synchronisation spoils the capture, natively and with ours; afterwards everything works."""
    cuda = Cuda()
    cuda.start()
    function, stream, graph = cuda.function(), cuda.stream(), c_void_p()
    begin = cuda.ask("cuStreamBeginCapture_v2", stream, GLOBAL)
    wait = cuda.ask("cuStreamSynchronize", stream)
    end = cuda.ask("cuStreamEndCapture", stream, byref(graph))
    return {"codes": [begin, wait, end], "afterwards": capture_once(cuda, function, stream, GLOBAL)}


def refused_in_capture(size: str) -> dict[str, Any]:
    """Allocates so many bytes inside a capture, and launches what comes of it."""
    cuda = Cuda()
    cuda.start()
    function, stream = cuda.function(), cuda.stream()
    graph, executable, pointer, codes = c_void_p(), c_void_p(), c_uint64(), dict[str, int]()
    codes["begin"] = cuda.ask("cuStreamBeginCapture_v2", stream, GLOBAL)
    codes["allocate"] = cuda.ask("cuMemAllocAsync", byref(pointer), c_size_t(int(size)), stream)
    codes["end"] = cuda.ask("cuStreamEndCapture", stream, byref(graph))
    if codes["end"] == 0 and codes["allocate"] == 0:
        codes["instantiate"] = cuda.ask("cuGraphInstantiateWithFlags", byref(executable), graph, c_uint64(0))
        if codes["instantiate"] == 0:
            codes["launch"] = cuda.ask("cuGraphLaunch", executable, stream)
    later = capture_once(cuda, function, stream, GLOBAL)
    return {"codes": codes, "afterwards": max(code for place, code in enumerate(later) if place != 7)}


def visible() -> dict[str, Any]:
    """The GPUs in CUDA's order, by UUID, with their memory."""
    cuda, count = Cuda(), c_int()
    started = cuda.ask("cuInit", 0)
    if started == 0:
        cuda.ask("cuDeviceGetCount", byref(count))
    uuids, totals = [], []
    for ordinal in range(count.value):
        device, raw, total = c_int(), create_string_buffer(16), c_size_t()
        cuda.do("cuDeviceGet", byref(device), ordinal)
        cuda.do("cuDeviceGetUuid", raw, device)
        cuda.do("cuDeviceTotalMem_v2", byref(total), device)
        uuids.append(uuid_text(raw.raw))
        totals.append(total.value)
    return {"cuInit": started, "uuids": uuids, "totals": totals}


def killed_neighbour(program: str, size: str) -> dict[str, Any]:
    """A process fills its share and is killed; how long until another gets as much. Runs in any pid namespace."""
    command = [program, "malloc", "--hold", "1"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as first:
        assert first.stdout is not None
        printed = json.loads(first.stdout.readline())
        print(json.dumps(printed), flush=True)
        sys.stdin.readline()  # the observer has finished
        os.kill(first.pid, signal.SIGKILL)
        first.wait()
    killed, again = time.monotonic(), 0
    while again < min(printed["got"], int(size)) and time.monotonic() - killed < 10:
        done = subprocess.run([program, "malloc", "--cycles", "0"], capture_output=True, text=True, check=True)
        again = json.loads(done.stdout)["got"]
    return {"again": again, "seconds": round(time.monotonic() - killed, 3)}


def primary_context() -> dict[str, Any]:
    """Retained, released, reset and retained again."""
    cuda, device, context = Cuda(), c_int(), c_void_p()
    cuda.do("cuInit", 0)
    cuda.do("cuDeviceGet", byref(device), 0)
    codes = []
    for _ in range(3):
        codes.append(cuda.ask("cuDevicePrimaryCtxRetain", byref(context), device))
        codes.append(cuda.ask("cuCtxSetCurrent", context))
        codes.append(cuda.ask("cuMemAlloc_v2", byref(c_uint64()), c_size_t(64 * MIB)))
        codes.append(cuda.ask("cuDevicePrimaryCtxReset_v2", device))
        codes.append(cuda.ask("cuDevicePrimaryCtxRelease_v2", device))
    own = c_void_p()
    codes += [cuda.ask("cuCtxCreate_v2", byref(own), c_uint(0), device), cuda.ask("cuCtxDestroy_v2", own)]
    return {"codes": codes}


if __name__ == "__main__":
    known = (fork, capture, forbidden_in_capture, refused_in_capture, visible, killed_neighbour, primary_context)
    functions: dict[str, Callable[..., Any]] = {each.__name__: each for each in known}
    print(json.dumps(functions[sys.argv[1]](*sys.argv[2:])))
