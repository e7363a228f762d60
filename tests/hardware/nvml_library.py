"""Which libnvidia-ml.so.1 this process has mapped: each test brings its own, so each must leave none behind."""

import _ctypes
import ctypes
import os

import pynvml

from deviceplugin.hardware.nvml import SONAME


def is_mapped() -> bool:
    try:
        handle = ctypes.CDLL(SONAME, mode=os.RTLD_NOLOAD)._handle
    except OSError:
        return False
    _ctypes.dlclose(handle)
    return True


def unmap() -> None:
    """As if NVML had never been loaded."""
    pynvml.nvmlLib = None
    pynvml._nvmlGetFunctionPointer_cache.clear()
    while is_mapped():
        handle = ctypes.CDLL(SONAME, mode=os.RTLD_NOLOAD)._handle
        _ctypes.dlclose(handle)
        _ctypes.dlclose(handle)
