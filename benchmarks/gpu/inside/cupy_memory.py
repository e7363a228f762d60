"""Fills the GPU through one of CuPy's allocators: `pool` or `async`. Out: one line of JSON, as torch_memory's."""

# mypy: disable-error-code="import-not-found"

import json
import sys
from typing import Any

import cupy

BLOCK = 64 << 20


def fill(held: list[Any], most: int = 1 << 30) -> int | str:
    while len(held) < most:
        try:
            held.append(cupy.cuda.alloc(BLOCK))
        except cupy.cuda.memory.OutOfMemoryError:
            return 2
    return 0


def main(kind: str) -> dict[str, Any]:
    pool = cupy.cuda.MemoryAsyncPool() if kind == "async" else cupy.cuda.MemoryPool()
    cupy.cuda.set_allocator(pool.malloc)
    cupy.zeros(1).sum().item()
    free, total = cupy.cuda.runtime.memGetInfo()
    held: list[Any] = []
    refusal = fill(held)
    count, again = len(held), 0
    for _ in range(20):
        del held[-8:]
        pool.free_all_blocks()
        fill(held, count)
        again += count - len(held)
    held.clear()
    pool.free_all_blocks()
    runs = int(cupy.ones(1024).sum().item() == 1024)
    printed = {"got": BLOCK * count, "refusal": refusal, "refused_again": again, "kernel_runs": runs}
    return printed | {"overhead": total - free}


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1])))
