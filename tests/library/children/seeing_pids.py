"""Has a context and says which pids are on its GPU: `seeing_pids.py LIBRARY COMMAND`; COMMAND prints the machine.

Out: its own pid and what it sees; after a line on stdin what the machine's own pid namespace sees; then waits for one.
"""

import ctypes
import json
import os
import subprocess
import sys


def pids(**more: str) -> list[int]:
    shown = subprocess.run(sys.argv[2:], env=os.environ | more, capture_output=True, check=True).stdout
    return [entry["pid"] for entry in json.loads(shown)["gpus"][0]["processes"]]


cuda, context = ctypes.CDLL(sys.argv[1]), ctypes.c_void_p()
assert cuda.cuInit(0) == 0
assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
print(json.dumps([os.getpid(), pids()]), flush=True)
sys.stdin.readline()
print(json.dumps(pids(VCUDA_EMULATOR_PIDS="host")), flush=True)
sys.stdin.readline()
