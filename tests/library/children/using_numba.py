"""A program of numba-cuda: memory, copies, kernels that it compiles itself, and memory until it is refused.

In: nothing. Out: a line of JSON. It runs in an interpreter that has numba; see test_numba.py.
"""

import json
import warnings
from typing import Any

import numpy as np
from numba import cuda
from numba.cuda.cudadrv.driver import CudaAPIError

BLOCK = 16 << 20
LAUNCHES = 100


@cuda.jit  # type: ignore[untyped-decorator]
def increment(values: Any) -> None:
    place = cuda.grid(1)
    if place < values.size:
        values[place] += 1


def milliseconds_of_launches(values: Any) -> float:
    stream, begin, end = cuda.stream(), cuda.event(), cuda.event()
    begin.record(stream)
    for _ in range(LAUNCHES):
        increment[16, 64, stream](values)
    end.record(stream)
    end.synchronize()
    return float(cuda.event_elapsed_time(begin, end))


def blocks_until_refused() -> tuple[int, str]:
    blocks = []
    try:
        while True:
            blocks.append(cuda.device_array(BLOCK, dtype=np.uint8))
    except CudaAPIError as error:
        return len(blocks), str(error)


def main() -> None:
    warnings.simplefilter("ignore")  # of numba, about small grids
    free, total = cuda.current_context().get_memory_info()
    copied = cuda.to_device(np.arange(1024, dtype=np.float32))
    increment[16, 64](copied)
    cuda.synchronize()
    milliseconds = milliseconds_of_launches(copied)
    count, refused = blocks_until_refused()
    again = cuda.device_array(BLOCK, dtype=np.uint8)
    found = {
        "free": free,
        "total": total,
        "copied": float(copied.copy_to_host().sum()),
        "milliseconds": milliseconds,
        "blocks": count,
        "refused": refused,
        "again": again.nbytes,
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
