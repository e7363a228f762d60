"""Slots, forks, threads, and processes that tell what they see until stdin ends."""

import ctypes
import json
import os
import sys
import threading
import time
from collections.abc import Iterator
from ctypes import byref, c_void_p
from pathlib import Path
from typing import Any

from tests.library.inside.cuda import cuda_memory
from tests.library.inside.nvml import nvml_memory

Answer = Any


def claim() -> Answer:
    """This process's slot, and its pid."""
    return [ctypes.CDLL("libvcuda.so.1").vcuda_slot_number(), os.getpid()]


def claim_as(uid: int) -> Answer:
    os.setgroups([])
    os.setuid(uid)
    return claim()


def claims_after_fork() -> Answer:
    """Slot and pid of a process and of its child, which is ended without any exit handler."""
    vcuda = ctypes.CDLL("libvcuda.so.1")
    before = [vcuda.vcuda_slot_number(), os.getpid()]
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writer, json.dumps([vcuda.vcuda_slot_number(), os.getpid()]).encode())
        os._exit(0)
    answer = json.loads(os.read(reader, 1000))
    os.waitpid(child, 0)
    return [before, answer, [vcuda.vcuda_slot_number(), os.getpid()]]


def claim_and_exec() -> Answer:
    """Claims a slot, then becomes another program that does."""
    ctypes.CDLL("libvcuda.so.1").vcuda_slot_number()
    os.execv(sys.executable, [sys.executable, "-m", "tests.library.inside", "claim", "[]"])


def claim_and_wait() -> None:
    print(json.dumps(claim()), flush=True)
    sys.stdin.readline()


def totals_while_told() -> None:
    """Prints the total that CUDA shows whenever it differs, until stdin ends; the helper thread is what notices."""
    cuda = ctypes.CDLL("libcuda.so.1")
    context = c_void_p()
    cuda.cuDevicePrimaryCtxRetain(byref(context), 0)
    for total in changing(lambda: cuda_memory(cuda)[1]):
        print(json.dumps(total), flush=True)


def totals_until(last: int) -> None:
    """The same without a thread of Python's own, until it is the last."""
    cuda = ctypes.CDLL("libcuda.so.1")
    context, seen = c_void_p(), 0
    cuda.cuDevicePrimaryCtxRetain(byref(context), 0)
    while seen != last:
        now = cuda_memory(cuda)[1]
        if now != seen:
            print(json.dumps(now), flush=True)
        seen = now
        time.sleep(0.02)


def totals_of_nvml_while_told() -> None:
    """The same of a process that uses NVML alone and has no helper thread."""
    nvml = ctypes.CDLL("libnvidia-ml.so.1")
    nvml.nvmlInit_v2()
    for total in changing(lambda: nvml_memory(nvml, 0)["v1"][0]):
        print(json.dumps(total), flush=True)


def frees_while_told() -> None:
    """The free memory, likewise."""
    cuda = ctypes.CDLL("libcuda.so.1")
    context = c_void_p()
    cuda.cuDevicePrimaryCtxRetain(byref(context), 0)
    for free in changing(lambda: cuda_memory(cuda)[0]):
        print(json.dumps(free), flush=True)


def changing(read: Any) -> Iterator[int]:
    ended = threading.Event()

    def listen() -> None:
        sys.stdin.read()
        ended.set()

    threading.Thread(target=listen, daemon=True).start()
    last = None
    while not ended.is_set():
        now = read()
        if now != last:
            yield now
            last = now
        time.sleep(0.02)


def blocked_signals() -> str:
    """The mask of the helper thread."""
    threads()
    (helper,) = (each for each in Path("/proc/self/task").iterdir() if (each / "comm").read_text() == "vcuda-helper\n")
    return next(line.split()[1] for line in (helper / "status").read_text().splitlines() if line.startswith("SigBlk"))


def threads_after_fork() -> Answer:
    before = threads()
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writer, json.dumps(threads()).encode())
        os._exit(0)
    answer = json.loads(os.read(reader, 1000))
    os.waitpid(child, 0)
    return [before, answer]


def spawned() -> int:
    """The end of a program that is started the way that runs no fork handlers."""
    threads()
    return os.waitstatus_to_exitcode(os.waitpid(os.posix_spawn("/bin/true", ["true"], {}), 0)[1])


def threads() -> list[str]:
    """The names of this process's threads after a context was made."""
    cuda = ctypes.CDLL("libcuda.so.1")
    context = c_void_p()
    cuda.cuInit(0)
    cuda.cuDevicePrimaryCtxRetain(byref(context), 0)
    names: list[str] = []
    deadline = time.monotonic() + 0.3  # a new thread gives itself its name
    while not {"vcuda-helper", "vcuda-poller"} <= set(names) and time.monotonic() < deadline:
        names = sorted(task.joinpath("comm").read_text().strip() for task in Path("/proc/self/task").iterdir())
    return names
