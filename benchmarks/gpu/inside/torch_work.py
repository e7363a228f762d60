"""Iterations of a kind of work in PyTorch for so many seconds, and how many there were a second.

    python -m benchmarks.gpu.inside.torch_work KIND [SECONDS] [--cpu]

With SECONDS once; without, `ready` first, then once for each number on stdin. Each time one line of JSON. `--cpu` runs
it tiny and without a GPU: a trial of the code, no measurement.
"""

# mypy: disable-error-code="import-not-found"

import collections
import json
import sys
import time
from typing import Any

import torch

from benchmarks.gpu.inside.torch_models import Iteration, make

AHEAD = 8  # iterations between two waits, so that the GPU does not run dry


def wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def measure(iteration: Iteration, each_waited: bool, seconds: float, device: str) -> dict[str, Any]:
    pending: collections.deque[Any] = collections.deque()
    wait(device)
    began, count = time.monotonic(), 0
    while time.monotonic() - began < seconds:
        iteration()
        count += 1
        if each_waited:
            wait(device)
        elif device == "cuda":
            event = torch.cuda.Event()
            event.record()
            pending.append(event)
            if len(pending) > AHEAD:
                pending.popleft().synchronize()
    wait(device)
    return {"iterations": count, "per_second": count / (time.monotonic() - began)}


def main(words: list[str]) -> None:
    device = "cpu" if "--cpu" in words else "cuda"
    kind, *rest = [word for word in words if word != "--cpu"]
    iteration, each_waited = make(kind, device, small=device == "cpu")
    measure(iteration, each_waited, 1.0 if device == "cuda" else 0.1, device)
    if rest:
        print(json.dumps(measure(iteration, each_waited, float(rest[0]), device)))
        return
    print("ready", flush=True)
    for line in sys.stdin:
        print(json.dumps(measure(iteration, each_waited, float(line), device)), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
