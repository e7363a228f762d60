"""Forks at different instants after it began with a context; each child opens NVML. Prints how the children ended."""

import ctypes
import os
import signal
import time
import warnings

warnings.simplefilter("ignore", DeprecationWarning)  # of Python 3.12 and newer: this process forks with threads
cuda, nvml = ctypes.CDLL("libcuda.so.1"), ctypes.CDLL("libnvidia-ml.so.1")
context = ctypes.c_void_p()
cuda.cuInit(0)
ends = []
for delay in range(12):
    cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
    time.sleep(delay * 0.003)
    child = os.fork()
    if child == 0:
        signal.alarm(5)
        os._exit(nvml.nvmlInit_v2())
    ends.append(os.waitpid(child, 0)[1])
print(ends)
