"""`python -m tests.library.inside NAME ARGUMENTS`: calls the function of that name; JSON in, JSON out.

The environment is the container's own. Stderr belongs to our library: nothing else may write there.
"""

import ctypes
import json
import sys
import threading
from ctypes import byref, c_void_p
from typing import Any

from tests.library.inside import bindings, cuda, getproc, images, life, loading, nvml, runtime, without_gpu

Answer = Any


def in_context(device: int, name: str, *args: Answer) -> Answer:
    """Another function, with the device's primary context current."""
    library = ctypes.CDLL("libcuda.so.1")
    context = c_void_p()
    library.cuInit(0)
    assert library.cuDevicePrimaryCtxRetain(byref(context), device) == 0
    assert library.cuCtxSetCurrent(context) == 0
    return FUNCTIONS[name](*args)


def from_a_thread(name: str, *args: Answer) -> Answer:
    answers: list[Answer] = []
    thread = threading.Thread(target=lambda: answers.append(FUNCTIONS[name](*args)))
    thread.start()
    thread.join()
    return answers[0]


def in_order(*names: str) -> Answer:
    return [FUNCTIONS[name]() for name in names]


HERE = {"in_context": in_context, "from_a_thread": from_a_thread, "in_order": in_order}
MODULES = (bindings, cuda, getproc, images, life, loading, nvml, runtime, without_gpu)
FUNCTIONS: dict[str, Any] = {name: value for module in MODULES for name, value in vars(module).items()} | HERE

if __name__ == "__main__":
    answer = FUNCTIONS[sys.argv[1]](*json.loads(sys.argv[2]))
    if answer is not None:
        print(json.dumps(answer), flush=True)
