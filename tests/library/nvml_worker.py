"""A process that uses NVML as its users do: one pynvml call per line of stdin, its outcome as one line of stdout.

In: `{"become": UID}`, or `{"call": NAME, "args": [...]}` through pynvml, or `{"raw": NAME, "args": [...]}` straight to
the C function, where `null` is a null pointer, `{"out": VALUE}` the address of an unsigned int that holds VALUE and
`{"room": N}` that of so many zero bytes. Handles travel as `{"handle": N}`. Out: `{"value": ...}` or `{"error": CODE}`.
The library is the one at argv[1], found by its SONAME as in any process that loaded it before.
"""

import ctypes
import json
import os
import sys
from typing import Any

LIBRARY = ctypes.CDLL(sys.argv[1])

import pynvml  # noqa: E402  (only now, so that it finds the library that is loaded)

Value = Any  # what pynvml takes and returns: of no common type

handles: list[Value] = []
keys: dict[int, int] = {}


def hide(value: Value) -> Value:
    """JSON for what pynvml returned."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if isinstance(value, list | tuple):
        return [hide(one) for one in value]
    if isinstance(value, ctypes.Array):
        return [hide(one) for one in value]
    if isinstance(value, ctypes._Pointer):
        address = ctypes.cast(value, ctypes.c_void_p).value or 0
        if address not in keys:
            keys[address] = len(handles)
            handles.append(value)
        return {"handle": keys[address]}
    if isinstance(value, ctypes.Structure):
        return {field[0]: hide(getattr(value, field[0])) for field in value._fields_}
    if isinstance(value, ctypes.Union):
        return {"uiVal": value.uiVal, "ullVal": value.ullVal}
    return {name: hide(one) for name, one in vars(value).items()}


def show(value: Value) -> Value:
    """The argument that the JSON stands for."""
    if isinstance(value, dict) and "handle" in value:
        return handles[value["handle"]]
    if isinstance(value, dict) and "out" in value:
        return ctypes.c_uint(value["out"])
    if isinstance(value, dict):
        return ctypes.create_string_buffer(value["room"])
    if isinstance(value, str):
        return value.encode()
    return value


def straight(name: str, args: list[Any]) -> dict[str, Any]:
    shown = [show(one) for one in args]
    function = getattr(LIBRARY, name)
    function.restype = ctypes.c_uint
    code = function(*[ctypes.byref(one) if isinstance(one, ctypes.c_uint) else one for one in shown])
    return {"code": code, "outs": [one.value for one in shown if isinstance(one, ctypes.c_uint)]}


def answer(request: dict[str, Any]) -> dict[str, Any]:
    if "become" in request:
        os.seteuid(request["become"])
        return {"value": None}
    if "raw" in request:
        return straight(request["raw"], request["args"])
    args = [show(one) if isinstance(one, dict) else one for one in request["args"]]
    try:
        return {"value": hide(getattr(pynvml, request["call"])(*args))}
    except pynvml.NVMLError as error:
        return {"error": error.value}


for line in sys.stdin:
    print(json.dumps(answer(json.loads(line))), flush=True)
