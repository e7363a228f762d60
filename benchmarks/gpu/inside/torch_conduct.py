"""Things that PyTorch programs do; each by name. Out: one line of JSON whose `good` says whether it went well."""

# mypy: disable-error-code="import-not-found"

import json
import os
import sys
import tempfile
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data import DataLoader, TensorDataset


def data_loader() -> dict[str, Any]:
    """Workers forked while the parent has a context."""
    torch.zeros(1, device="cuda")
    data = TensorDataset(torch.arange(256, dtype=torch.float32))
    total = 0.0
    for (batch,) in DataLoader(data, batch_size=16, num_workers=4, pin_memory=True):
        total += batch.to("cuda", non_blocking=True).sum().item()
    return {"good": total == sum(range(256)), "sum": total}


def capture_refused(size: str) -> dict[str, Any]:
    """Too much memory inside a capture raises OutOfMemoryError; the next capture works."""
    heard = "nothing"
    try:
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            torch.empty(int(size), dtype=torch.uint8, device="cuda")
    except torch.cuda.OutOfMemoryError:
        heard = "OutOfMemoryError"
    except RuntimeError as error:
        heard = f"{type(error).__name__}: {error}"[:200]
    graph, x = torch.cuda.CUDAGraph(), torch.ones(1024, device="cuda")
    with torch.cuda.graph(graph):
        y = x * 2
    graph.replay()
    return {"good": heard == "OutOfMemoryError" and y.sum().item() == 2048, "heard": heard}


def nccl() -> dict[str, Any]:
    """One rank, with memory from cuMemCreate (NCCL_CUMEM_ENABLE)."""
    with tempfile.NamedTemporaryFile() as store:
        torch.distributed.init_process_group("nccl", init_method=f"file://{store.name}.nccl", rank=0, world_size=1)
        x = torch.ones(1 << 20, device="cuda")
        torch.distributed.all_reduce(x)
        good = x.sum().item() == 1 << 20
        torch.distributed.destroy_process_group()
    return {"good": good, "cumem": os.environ.get("NCCL_CUMEM_ENABLE", "")}


if __name__ == "__main__":
    known = (data_loader, capture_refused, nccl)
    functions: dict[str, Callable[..., dict[str, Any]]] = {each.__name__: each for each in known}
    print(json.dumps(functions[sys.argv[1]](*sys.argv[2:])))
