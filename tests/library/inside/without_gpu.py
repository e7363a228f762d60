"""What NVIDIA's libraries answer on a machine without a GPU: each function, given nothing but zeros.

In: a library and names of functions. Out: each answer as a number; "absent" where the linker finds no such function,
the signal where it ended its process. Not here: what is right; two drivers are alike if all of that is equal.
"""

import ctypes
import inspect
import os
from ctypes import byref, c_int, c_void_p
from typing import Any

from tests.library.inside.bindings import by_type, functions

Answer = Any

_NOTHING = [c_void_p(None)] * 12
_NO_CODES = {"cudaCreateChannelDesc", "cudaGetErrorName", "cudaGetErrorString"}


def answers_to_nothing(library: str, start: str, *names: str) -> dict[str, Answer]:
    """Of `start`, then of each in a process of its own: a driver may dereference what it should not."""
    opened = ctypes.CDLL(library)
    started = {start: str(getattr(opened, start)(0))}
    return {name: _forked(opened, name) for name in names} | started


def _forked(library: ctypes.CDLL, name: str) -> Answer:
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        function = getattr(library, name, None)
        os.write(writing, ("absent" if function is None else str(function(*_NOTHING))).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        said = pipe.read()
    ended = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return said or f"signal {ended}"


def runtime_answers(path: str, *names: str) -> dict[str, Answer]:
    """Of a libcudart: its versions and the number of GPUs, then each function's code."""
    runtime = ctypes.CDLL(path)
    numbers = {name: c_int(-1) for name in ("cudaRuntimeGetVersion", "cudaDriverGetVersion", "cudaGetDeviceCount")}
    codes = {name: getattr(runtime, name)(byref(number)) for name, number in numbers.items()}
    said = {name: getattr(runtime, name)(*_NOTHING) for name in names if name not in _NO_CODES}
    return {"codes": codes, "numbers": {name: number.value for name, number in numbers.items()}, "said": said}


def bindings_answers() -> dict[str, Answer]:
    """Of cuda-bindings, which finds the driver's functions by cuGetProcAddress: each function, and what cuInit says."""
    from cuda.bindings import driver

    return {name: _of_bindings(driver, name) for name in ("cuInit", *functions(driver))}


def _of_bindings(driver: Any, name: str) -> Answer:
    """Their own refusals count too: a function that they did not find is one."""
    function = getattr(driver, name)
    given = [
        by_type(driver, parameter.annotation) if isinstance(parameter.annotation, str) else 0
        for parameter in inspect.signature(function).parameters.values()
    ]
    try:
        code, *rest = function(*given)
    except (RuntimeError, TypeError, AttributeError) as error:
        return f"{type(error).__name__}: {error}"
    return [code.name, [value for value in rest if isinstance(value, int | str)]]
