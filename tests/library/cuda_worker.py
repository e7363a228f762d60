"""A process that uses the CUDA driver in as many threads as it is told: a request per line of stdin, an answer each.

In: `{"call": NAME, "args": [...], "thread": T}`; thread "" is the main one, others begin when first named and live
on. With `"later": true` the answer comes at once and the outcome at `{"join": T}`. An argument is a number (64 bits),
`null`, `{"room": N}` (a pointer to so many zero bytes), `{"bytes": HEX}`, `{"pointers": [HEX, ...]}` (an array of
pointers to these, as kernel parameters are given), `{"value": HEX}` (64 bytes by value), `{"note": N}` (the address of
a host function that notes its argument; N milliseconds long) or `{"asks": NAME}` (one that calls NAME). Further:
`{"fork": [[NAME, args], ...]}` makes calls in a child, `{"symbol": NAME}` gives dlsym's address, `{"count": NAME}` the
emulator's counter, `{"violations": 0}` that of capture, `{"green_violations": 0}` of green contexts, `{"notes": 0}` the
notes.
Out: `{"code": CODE, "outs": [HEX, ...]}`. The library is the one at argv[1].
"""

import ctypes
import json
import os
import queue
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

LIBRARY = ctypes.CDLL(sys.argv[1])
HOST_FUNCTION = ctypes.CFUNCTYPE(None, ctypes.c_void_p)

Value = Any  # JSON, and what ctypes takes

notes: list[int] = []
alive: list[Value] = []  # what the driver may still point to
threads: dict[str, tuple["queue.Queue[Value]", "queue.Queue[Value]"]] = {}


class ByValue(ctypes.Structure):
    """CUipcEventHandle and its like."""

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
    if "value" in value:
        return ByValue.from_buffer_copy(bytes.fromhex(value["value"]))
    if "note" in value or "asks" in value:
        alive.append(HOST_FUNCTION(note(value["note"]) if "note" in value else asks(value["asks"])))
        return alive[-1]
    if "pointers" in value:
        return pointers_to(value["pointers"])
    data = bytes(value["room"]) if "room" in value else bytes.fromhex(value["bytes"])
    outs.append(ctypes.create_string_buffer(data, len(data)))
    alive.append(outs[-1])
    return outs[-1]


def call(name: str, args: list[Value]) -> dict[str, Value]:
    outs: list[Value] = []
    function = getattr(LIBRARY, name)
    function.restype = ctypes.c_uint
    code = function(*[show(one, outs) for one in args])
    return {"code": code, "outs": [bytes(one).hex() for one in outs]}


def serve(requests: "queue.Queue[Value]", answers: "queue.Queue[Value]") -> None:
    while True:
        name, args = requests.get()
        answers.put(call(name, args))


def thread_of(name: str) -> tuple["queue.Queue[Value]", "queue.Queue[Value]"]:
    if name not in threads:
        threads[name] = queue.Queue(), queue.Queue()
        threading.Thread(target=serve, args=threads[name], daemon=True).start()
    return threads[name]


def in_thread(name: str, request: dict[str, Value]) -> dict[str, Value]:
    requests, answers = thread_of(name)
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


def counter(name: str, *args: Value) -> dict[str, Value]:
    function = getattr(LIBRARY, name)
    function.restype = ctypes.c_uint64
    return {"value": function(*args)}


def answer(request: dict[str, Value]) -> dict[str, Value]:
    if "call" in request:
        thread = request.get("thread", "")
        return in_thread(thread, request) if thread else call(request["call"], request["args"])
    if "join" in request:
        return dict(threads[request["join"]][1].get())
    if "fork" in request:
        return in_child(request["fork"])
    if "symbol" in request:
        address = ctypes.cast(getattr(LIBRARY, request["symbol"]), ctypes.c_void_p).value
        return {"value": address}
    if "count" in request:
        return counter("vcuda_emulator_calls", request["count"].encode())
    if "green_violations" in request:
        return counter("vcuda_emulator_green_violations")
    if "violations" in request:
        return counter("vcuda_emulator_capture_violations")
    return {"value": list(notes)}


for line in sys.stdin:
    print(json.dumps(answer(json.loads(line))), flush=True)
