"""Launches, allocates and waits at random until it is killed: `churning.py LIBRARY SEED`; says "on" when it begins."""

import ctypes
import random
import sys
from ctypes import byref, c_size_t, c_uint64, c_void_p

TEXT = (
    b".version 7.0\n.target sm_80\n.visible .entry w(.param .u64 n)\n{\n// vcuda-emulator: ns = 1 * param 0\nret;\n}\n"
)

cuda, rng = ctypes.CDLL(sys.argv[1]), random.Random(int(sys.argv[2]))
context, pointer, module, function, ns = c_void_p(), c_void_p(), c_void_p(), c_void_p(), c_uint64()
assert cuda.cuInit(0) == 0
assert cuda.cuDevicePrimaryCtxRetain(byref(context), 0) == 0
cuda.cuCtxSetCurrent(context)
assert cuda.cuModuleLoadData(byref(module), TEXT) == 0
assert cuda.cuModuleGetFunction(byref(function), module, b"w") == 0
parameters = (c_void_p * 1)(ctypes.addressof(ns))
print("on", flush=True)
while True:
    ns.value = rng.choice([100, 10_000, 1_000_000])
    for _ in range(rng.randrange(20)):
        cuda.cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, None, parameters, None)
    if cuda.cuMemAlloc_v2(byref(pointer), c_size_t(rng.randrange(1, 1 << 30))) == 0:
        cuda.cuMemFree_v2(pointer)
    if rng.random() < 0.2:
        cuda.cuCtxSynchronize()
