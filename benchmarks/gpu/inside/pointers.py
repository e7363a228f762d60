"""Are the driver's exported symbol and what cuGetProcAddress gives one pointer, and is ours given out in its place?

In: words `symbol:base:version:kind`. Out: one line of JSON. A symbol counts as different where cuGetProcAddress, asked
for the version that brought it, gives another entry point of the driver than the symbol's own; the interposer must give
out its own all the same.
"""

import ctypes
import json
import sys
from ctypes import byref, c_int, c_uint64, c_void_p
from typing import Any

LEGACY_STREAM, PER_THREAD_STREAM = 1, 2


class Library:
    """One libcuda: symbols by the loader, entry points by cuGetProcAddress."""

    def __init__(self, file: str) -> None:
        self.cuda = ctypes.CDLL(file)
        self.cuda.cuInit(0)

    def symbol(self, name: str) -> int | None:
        try:
            return ctypes.cast(getattr(self.cuda, name), c_void_p).value
        except AttributeError:
            return None

    def entry(self, base: str, version: int, kind: str) -> int | None:
        found = c_void_p()
        flag = c_uint64(PER_THREAD_STREAM if kind == "T" else LEGACY_STREAM)
        code = self.cuda.cuGetProcAddress_v2(base.encode(), byref(found), c_int(version), flag, byref(c_int()))
        return found.value if code == 0 else None


def compare(words: list[str]) -> dict[str, Any]:
    ours, real = Library("libcuda.so.1"), Library("libcuda-real.so.1")
    printed: dict[str, Any] = {"same": 0, "absent": [], "hidden": [], "differ": [], "not_ours": []}
    for word in words:
        symbol, base, version, kind = word.split(":")
        exported, given = real.symbol(symbol), real.entry(base, int(version), kind)
        if exported is None:
            printed["absent"].append(symbol)
        elif given is None:
            printed["hidden"].append(symbol)
        else:
            printed["same"] += exported == given
            if exported != given:
                printed["differ"].append(symbol)
            if ours.entry(base, int(version), kind) != ours.symbol(symbol):
                printed["not_ours"].append(symbol)
    return printed


if __name__ == "__main__":
    print(json.dumps(compare(sys.argv[1:])))
