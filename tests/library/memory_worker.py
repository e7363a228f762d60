"""A process that uses the CUDA driver as its users do: one call per line of stdin, its outcome as one line of stdout.

In: `{"call": NAME, "args": [...]}`. An argument is a number (64 bits), `null`, `{"room": N}` (a pointer to so many zero
bytes), `{"bytes": HEX}` (a pointer to these), `{"value": HEX}` (64 of them by value, as an IPC handle travels), or
`{"of": K}`, a pointer to buffer number K of an earlier call; `{"keep": ...}` around a buffer keeps it under the number
that comes back. Further requests: `{"receive": PATH}` and `{"send": [PATH, FD]}` hand a descriptor over a socket,
`{"close": FD}`, `{"without": "descriptors"}` (or "memory", "threads") uses them up until `{"with": ...}`,
`{"peek": [ADDRESS, N]}` and `{"poke": [ADDRESS, HEX]}` touch memory as the CPU does,
`{"fork_call": ...}` makes the call in a child, `{"fork": 0}` leaves one that holds what it inherits until this process
ends, `{"exec": FD}` begins again as another program that has the descriptor, and `{"table": [UUID, PLACE], "args":
[...]}` calls what stands there in an export table. Out:
`{"code": CODE, "outs": [HEX, ...]}` with every buffer as it is now. The library is the one at argv[1].
"""

import ctypes
import json
import os
import resource
import socket
import sys
import warnings
from pathlib import Path
from typing import Any

warnings.simplefilter("ignore", DeprecationWarning)  # of Python 3.12 and newer: this process forks with threads
LIBRARY = ctypes.CDLL(sys.argv[1])

Value = Any  # JSON, and what ctypes takes

LIMITS = {"descriptors": resource.RLIMIT_NOFILE, "memory": resource.RLIMIT_AS, "threads": resource.RLIMIT_NPROC}

kept: list[Value] = []
limits: dict[str, tuple[int, int]] = {}


class ByValue(ctypes.Structure):
    """CUipcMemHandle and its like."""

    _fields_ = (("reserved", ctypes.c_char * 64),)


def show(value: Value, outs: list[Value]) -> Value:
    """The argument that the JSON stands for; buffers are noted in `outs`."""
    if value is None or isinstance(value, int):
        return ctypes.c_uint64(value or 0)
    if "keep" in value:
        kept.append(show(value["keep"], outs))
        return kept[-1]
    if "value" in value:
        return ByValue.from_buffer_copy(bytes.fromhex(value["value"]))
    if "of" in value:
        buffer = kept[value["of"]]
    elif "room" in value:
        buffer = ctypes.create_string_buffer(value["room"])
    else:
        data = bytes.fromhex(value["bytes"])
        buffer = ctypes.create_string_buffer(data, len(data))
    outs.append(buffer)
    return buffer


def call(name: str, args: list[Value], library: str | None = None) -> dict[str, Value]:
    outs: list[Value] = []
    function = getattr(LIBRARY if library is None else ctypes.CDLL(library), name)
    function.restype = ctypes.c_uint
    code = function(*[show(one, outs) for one in args])
    return {"code": code, "outs": [bytes(one).hex() for one in outs], "kept": len(kept) - 1}


def in_child(name: str, args: list[Value]) -> dict[str, Value]:
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(write, json.dumps(call(name, args)).encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as answer:
        outcome: dict[str, Value] = json.loads(answer.read())
    os.waitpid(child, 0)
    return outcome


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


def call_table(uuid: str, place: int, *, args: list[Value]) -> dict[str, Value]:
    outs: list[Value] = []
    table = ctypes.POINTER(ctypes.c_void_p)()
    found = LIBRARY.cuGetExportTable(ctypes.byref(table), ctypes.create_string_buffer(bytes.fromhex(uuid), 16))
    if found != 0:
        return {"code": found, "outs": []}
    address = table[place]
    assert address is not None
    code = ctypes.CFUNCTYPE(ctypes.c_uint)(address)(*[show(one, outs) for one in args])
    return {"code": code, "outs": [bytes(one).hex() for one in outs]}


def do_without(what: str) -> int:
    """No call gets any more of it. What limits are lowered for is raised again as far as it was."""
    limits[what] = resource.getrlimit(LIMITS[what])
    if what == "memory":
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + (64 << 10), limits[what][1]))
    elif what == "threads":
        resource.setrlimit(resource.RLIMIT_NPROC, (0, limits[what][1]))
    else:
        resource.setrlimit(resource.RLIMIT_NOFILE, (os.dup(0), limits[what][1]))
    return 0


def have_again(what: str) -> int:
    resource.setrlimit(LIMITS[what], limits.pop(what))
    return 0


def send_descriptor(path: str, fd: int) -> int:
    with socket.socket(socket.AF_UNIX) as peer:
        peer.connect(path)
        socket.send_fds(peer, [b"x"], [fd])
    return 0


def receive_descriptor(path: str) -> int:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        print(json.dumps({"listening": path}), flush=True)
        peer, _ = listener.accept()
        with peer:
            return int(socket.recv_fds(peer, 1, 1)[1][0])


def answer(request: dict[str, Value]) -> dict[str, Value]:
    if "call" in request:
        return call(request["call"], request["args"], request.get("library"))
    if "without" in request:
        return {"value": do_without(request["without"])}
    if "with" in request:
        return {"value": have_again(request["with"])}
    if "fork_call" in request:
        return in_child(request["fork_call"], request["args"])
    if "fork" in request:
        return {"value": leave_child()}
    if "exec" in request:
        become_another(request["exec"])
    if "table" in request:
        return call_table(*request["table"], args=request["args"])
    if "send" in request:
        return {"value": send_descriptor(*request["send"])}
    if "receive" in request:
        return {"value": receive_descriptor(request["receive"])}
    if "peek" in request:
        return {"value": ctypes.string_at(*request["peek"]).hex()}
    if "poke" in request:
        address, data = request["poke"][0], bytes.fromhex(request["poke"][1])
        ctypes.memmove(address, data, len(data))
        return {"value": 0}
    os.close(request["close"])
    return {"value": 0}


for line in sys.stdin:
    print(json.dumps(answer(json.loads(line))), flush=True)
