"""A process that uses the CUDA driver as its users do, in as many threads as it is told: a request a line of stdin.

In: `{"call": NAME, "args": [...], "thread": T}`; thread "" is the main one, others begin when first named and live on.
With `"later": true` the answer comes at once and the outcome at `{"join": T}`. An argument is a number (64 bits),
`null`, `{"room": N}` (a pointer to so many zero bytes), `{"bytes": HEX}` (a pointer to these), `{"value": HEX}` (64 of
them by value, as an IPC handle travels), `{"pointers": [HEX, ...]}` (an array of pointers to these, as kernel
parameters are given), `{"note": N}` (the address of a host function that notes its argument; N milliseconds long),
`{"asks": NAME}` (one that calls NAME), or `{"of": K}`, a pointer to buffer number K of an earlier call; `{"keep": ...}`
around a buffer keeps it under the number that comes back. Further requests: `{"fork": [[NAME, args], ...]}` makes calls
in a child, `{"leave": 0}` leaves one that holds what it inherits until this process ends, `{"exec": FD}` begins again
as another program that has the descriptor, `{"table": [UUID, PLACE], "args": [...]}` calls what stands there in an
export table. `{"receive": PATH}` and `{"send": [PATH, FD]}` hand a descriptor over a socket, `{"close": FD}`,
`{"without": "descriptors"}` (or "memory", "threads") uses them up until `{"with": ...}`, `{"peek": [ADDRESS, N]}` and
`{"poke": [ADDRESS, HEX]}` touch memory as the CPU does. `{"symbol": NAME}` gives dlsym's address, `{"count": NAME}` the
emulator's counter, `{"violations": 0}` that of capture, `{"green_violations": 0}` of green contexts, `{"notes": 0}` the
notes.
Out: `{"code": CODE, "outs": [HEX, ...]}` with every buffer as it is now. The library is the one at argv[1].
"""

import ctypes
import json
import os
import queue
import resource
import socket
import sys
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

warnings.simplefilter("ignore", DeprecationWarning)  # of Python 3.12 and newer: this process forks with threads
LIBRARY = ctypes.CDLL(sys.argv[1])
HOST_FUNCTION = ctypes.CFUNCTYPE(None, ctypes.c_void_p)

Value = Any  # JSON, and what ctypes takes

LIMITS = {"descriptors": resource.RLIMIT_NOFILE, "memory": resource.RLIMIT_AS, "threads": resource.RLIMIT_NPROC}

notes: list[int] = []
kept: list[Value] = []
alive: list[Value] = []  # what the driver may still point to
limits: dict[str, tuple[int, int]] = {}
threads: dict[str, tuple["queue.Queue[Value]", "queue.Queue[Value]"]] = {}


class ByValue(ctypes.Structure):
    """CUipcMemHandle, CUipcEventHandle and their like."""

    _fields_ = (("reserved", ctypes.c_char * 64),)


def note(milliseconds: int) -> Callable[[int], None]:
    def run(argument: int) -> None:
        time.sleep(milliseconds / 1000)
        notes.append(argument or 0)

    return run


def asks(name: str) -> Callable[[int], None]:
    def run(_: int) -> None:
        notes.append(getattr(LIBRARY, name)())

    return run


def pointers_to(contents: list[str]) -> Value:
    buffers = [ctypes.create_string_buffer(bytes.fromhex(one)) for one in contents]
    alive.extend(buffers)
    return (ctypes.c_void_p * max(len(buffers), 1))(*map(ctypes.addressof, buffers))


def show(value: Value, outs: list[Value]) -> Value:
    """The argument that the JSON stands for; buffers are noted in `outs`."""
    if value is None or isinstance(value, int):
        return ctypes.c_uint64(value or 0)
    if "keep" in value:
        kept.append(show(value["keep"], outs))
        return kept[-1]
    if "value" in value:
        return ByValue.from_buffer_copy(bytes.fromhex(value["value"]))
    if "note" in value or "asks" in value:
        alive.append(HOST_FUNCTION(note(value["note"]) if "note" in value else asks(value["asks"])))
        return alive[-1]
    if "pointers" in value:
        return pointers_to(value["pointers"])
    if "of" in value:
        outs.append(kept[value["of"]])
    else:
        data = bytes(value["room"]) if "room" in value else bytes.fromhex(value["bytes"])
        outs.append(ctypes.create_string_buffer(data, len(data)))
        alive.append(outs[-1])
    return outs[-1]


def outcome(function: Value, args: list[Value]) -> dict[str, Value]:
    outs: list[Value] = []
    code = function(*[show(one, outs) for one in args])
    return {"code": code, "outs": [bytes(one).hex() for one in outs], "kept": len(kept) - 1}


def call(name: str, args: list[Value], library: str | None = None) -> dict[str, Value]:
    function = getattr(LIBRARY if library is None else ctypes.CDLL(library), name)
    function.restype = ctypes.c_uint
    return outcome(function, args)


def call_table(uuid: str, place: int, *, args: list[Value]) -> dict[str, Value]:
    table = ctypes.POINTER(ctypes.c_void_p)()
    found = LIBRARY.cuGetExportTable(ctypes.byref(table), ctypes.create_string_buffer(bytes.fromhex(uuid), 16))
    if found != 0:
        return {"code": found, "outs": []}
    address = table[place]
    assert address is not None
    return outcome(ctypes.CFUNCTYPE(ctypes.c_uint)(address), args)


def serve(requests: "queue.Queue[Value]", answers: "queue.Queue[Value]") -> None:
    while True:
        answers.put(call(*requests.get()))


def in_thread(name: str, request: dict[str, Value]) -> dict[str, Value]:
    if name not in threads:
        threads[name] = queue.Queue(), queue.Queue()
        threading.Thread(target=serve, args=threads[name], daemon=True).start()
    requests, answers = threads[name]
    requests.put((request["call"], request["args"]))
    return {} if request.get("later") else dict(answers.get())


def in_child(calls: list[Value]) -> dict[str, Value]:
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(write, json.dumps([call(name, args)["code"] for name, args in calls]).encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as answer:
        codes = json.loads(answer.read())
    os.waitpid(child, 0)
    return {"codes": codes}


def leave_child() -> int:
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(write)
        os.read(read, 1)
        os._exit(0)
    os.close(read)
    return child


def become_another(fd: int) -> None:
    os.set_inheritable(fd, True)
    print(json.dumps({"value": fd}), flush=True)
    os.execv(sys.executable, sys.orig_argv)


def do_without(what: str) -> None:
    """No call gets any more of it. What limits are lowered for is raised again as far as it was."""
    limits[what] = resource.getrlimit(LIMITS[what])
    if what == "memory":
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        least = pages * resource.getpagesize() + (64 << 10)
    else:
        least = 0 if what == "threads" else os.dup(0)
    resource.setrlimit(LIMITS[what], (least, limits[what][1]))


def send_descriptor(path: str, fd: int) -> None:
    with socket.socket(socket.AF_UNIX) as peer:
        peer.connect(path)
        socket.send_fds(peer, [b"x"], [fd])


def receive_descriptor(path: str) -> int:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        print(json.dumps({"listening": path}), flush=True)
        peer, _ = listener.accept()
        with peer:
            return int(socket.recv_fds(peer, 1, 1)[1][0])


def counter(name: str, *args: Value) -> int:
    function = getattr(LIBRARY, name)
    function.restype = ctypes.c_uint64
    return int(function(*args))


VALUES: dict[str, Callable[[Value], Value]] = {
    "without": do_without,
    "with": lambda what: resource.setrlimit(LIMITS[what], limits.pop(what)),
    "leave": lambda _: leave_child(),
    "exec": become_another,
    "send": lambda given: send_descriptor(*given),
    "receive": receive_descriptor,
    "peek": lambda given: ctypes.string_at(*given).hex(),
    "poke": lambda given: ctypes.memmove(given[0], bytes.fromhex(given[1]), len(given[1]) // 2),
    "close": os.close,
    "symbol": lambda name: ctypes.cast(getattr(LIBRARY, name), ctypes.c_void_p).value,
    "count": lambda name: counter("vcuda_emulator_calls", name.encode()),
    "green_violations": lambda _: counter("vcuda_emulator_green_violations"),
    "violations": lambda _: counter("vcuda_emulator_capture_violations"),
    "notes": lambda _: list(notes),
}


def answer(request: dict[str, Value]) -> dict[str, Value]:
    if "call" in request and request.get("thread"):
        return in_thread(request["thread"], request)
    if "call" in request:
        return call(request["call"], request["args"], request.get("library"))
    if "table" in request:
        return call_table(*request["table"], args=request["args"])
    if "join" in request:
        return dict(threads[request["join"]][1].get())
    if "fork" in request:
        return in_child(request["fork"])
    ((what, given),) = request.items()
    return {"value": VALUES[what](given)}


for line in sys.stdin:
    print(json.dumps(answer(json.loads(line))), flush=True)
