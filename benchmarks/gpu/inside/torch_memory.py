"""Fills the GPU through PyTorch's allocator until it is refused, gives back, fills again. Out: one line of JSON.

`refusal` is 2, the driver's own word for it, where PyTorch raised its OutOfMemoryError, and the error's name otherwise.
"""

# mypy: disable-error-code="import-not-found"

import json
from typing import Any

import torch

BLOCK = 64 << 20
CYCLES = 100
IN_A_CYCLE = 8


def block() -> torch.Tensor:
    return torch.empty(BLOCK, dtype=torch.uint8, device="cuda")


def fill(held: list[torch.Tensor]) -> int | str:
    while True:
        try:
            held.append(block())
        except torch.cuda.OutOfMemoryError:
            return 2
        except RuntimeError as error:
            return f"{type(error).__name__}: {error}"[:200]


def cycles(held: list[torch.Tensor]) -> int:
    refused = 0
    for _ in range(CYCLES):
        wanted = min(IN_A_CYCLE, len(held))
        del held[-wanted:]
        torch.cuda.empty_cache()
        for _ in range(wanted):
            try:
                held.append(block())
            except torch.cuda.OutOfMemoryError:
                refused += 1
    return refused


def works() -> int:
    one = torch.ones(1024, device="cuda")
    return int((one + one).sum().item() == 2048)


def main() -> dict[str, Any]:
    torch.zeros(1, device="cuda")
    free, total = torch.cuda.mem_get_info()
    held: list[torch.Tensor] = []
    refusal = fill(held)
    got = BLOCK * len(held)
    again = cycles(held)
    held.clear()
    torch.cuda.empty_cache()
    printed = {"got": got, "refusal": refusal, "refused_again": again, "kernel_runs": works()}
    return printed | {"overhead": total - free, "reserved_after": torch.cuda.memory_reserved()}


if __name__ == "__main__":
    print(json.dumps(main()))
