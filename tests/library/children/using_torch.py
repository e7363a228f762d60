"""A program of PyTorch: `using_torch.py PART`; a part is a function of this file. Out: a line of JSON.

It runs in an interpreter that has torch, over the stand-in of the CUDA runtime; see test_torch.py.
"""

import json
import os
import random
import sys
import time
from typing import Any

import torch

MIB = 1 << 20
BLOCK = 64 * MIB
TOO_MUCH = 1 << 40
SETTLING_S = 20
LOOK_S = 3
LAUNCHES = 100


class Numbers(torch.utils.data.Dataset):  # type: ignore[misc]
    """What loaders hand out."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, place: int) -> Any:
        return torch.full((10,), float(place))


def free() -> int:
    return int(torch.cuda.mem_get_info()[0])


def free_once_begun() -> int:
    """With a context, a kernel's module and empty caches, when the driver's figures of them are known."""
    torch.empty(1, device="cuda").add_(1)
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    time.sleep(LOOK_S)
    return free()


def given_back(before: int) -> int:
    """How much less is free than before, once all caches are empty."""
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    end = time.monotonic() + SETTLING_S
    while free() != before and time.monotonic() < end:
        time.sleep(0.05)
    return before - free()


def blocks_until_refused() -> tuple[int, str]:
    blocks: list[Any] = []
    try:
        while True:
            blocks.append(torch.empty(BLOCK, dtype=torch.uint8, device="cuda"))
    except torch.cuda.OutOfMemoryError as error:
        return len(blocks), str(error)


def allocations_at_random() -> None:
    chosen = random.Random(1)
    kept: dict[int, Any] = {}
    sizes = [1 << 10, 1 << 16, MIB, 3 * MIB, 20 * MIB, 100 * MIB]
    for number in range(1000):
        if kept and chosen.random() < 0.5:
            del kept[chosen.choice(list(kept))]
            continue
        try:
            kept[number] = torch.empty(chosen.choice(sizes), dtype=torch.uint8, device="cuda")
        except torch.cuda.OutOfMemoryError:
            continue


def memory() -> dict[str, Any]:
    start = free_once_begun()
    rounds = []
    for _ in range(3):
        count, refused = blocks_until_refused()
        rounds.append([count, given_back(start)])
    allocations_at_random()
    return {
        "total": torch.cuda.mem_get_info()[1],
        "of device": torch.cuda.get_device_properties(0).total_memory,
        "free": start,
        "rounds": rounds,
        "refused": refused,
        "kept": given_back(start),
    }


def _captured(size: int) -> Any:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        torch.empty(size, dtype=torch.uint8, device="cuda").add_(1)
    return graph


def graphs() -> dict[str, Any]:
    torch.empty(1, device="cuda").add_(1)
    _captured(MIB).replay()
    torch.cuda.synchronize()
    try:
        _captured(TOO_MUCH)
        refused = ""
    except torch.cuda.OutOfMemoryError as error:
        refused = str(error)
    _captured(MIB).replay()
    torch.cuda.synchronize()
    return {"refused": refused}


def compiled() -> dict[str, Any]:
    """A kernel of Triton: compiled to machine code, and launched by a helper that it links with the driver."""
    from tests.library.children.triton_kernel import increment

    values = torch.zeros(1 << 12, device="cuda")
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    increment[(4,)](values, values.numel(), block=1024)
    begin.record()
    for _ in range(LAUNCHES):
        increment[(4,)](values, values.numel(), block=1024)
    end.record()
    end.synchronize()
    return {"milliseconds": begin.elapsed_time(end)}


def _other(questions: Any, answers: Any) -> None:
    tensor = questions.get()
    answers.put((list(tensor.shape), float(tensor[7].item()), torch.cuda.mem_get_info()[1]))
    del tensor


def processes() -> dict[str, Any]:
    shared = torch.arange(MIB, dtype=torch.float32).cuda()
    loader = torch.utils.data.DataLoader(Numbers(), batch_size=8, num_workers=2, pin_memory=True)
    loaded = [float(batch.cuda().cpu().sum()) for batch in loader]
    context = torch.multiprocessing.get_context("spawn")
    questions, answers = context.Queue(), context.Queue()
    other = context.Process(target=_other, args=(questions, answers))
    other.start()
    questions.put(shared)
    seen = answers.get(timeout=200)
    other.join()
    return {"loaded": sum(loaded), "seen": seen, "ended": other.exitcode, "forked": _forked(), "after": len(shared)}


def _forked() -> int:
    """0 if a child of fork is told that it has no CUDA."""
    child = os.fork()
    if child == 0:
        try:
            torch.empty(1, device="cuda")
        except RuntimeError as error:
            os._exit(0 if "forked subprocess" in str(error) else 2)
        os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


if __name__ == "__main__":
    print(json.dumps({"memory": memory, "graphs": graphs, "compiled": compiled, "processes": processes}[sys.argv[1]]()))
