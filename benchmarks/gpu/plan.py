"""The plan: every check of T1 to T9 and the open questions about real drivers."""

from collections.abc import Iterator
from dataclasses import replace

from benchmarks.gpu.outcome import Check

TOPICS = {
    "T1": "memory caps",
    "T2": "memory views",
    "T3": "several processes",
    "T4": "throughput under a limit",
    "T5": "two containers on one GPU",
    "T6": "overhead",
    "T7": "robustness",
    "T8": "pid namespaces",
    "T9": "pointers and symbols",
    "F": "facts about the driver",
}
MEASURED = "measured; nothing to pass"
_CAP = (
    "got in [limit - overhead - 2 % - one block, limit]; refused as out of memory; host sees <= limit + 64 MiB; goes on"
)
_SHARE = "mean within 3 points of the limit, over all repeats"
_SAME = "the same answers as without ours"


def checks() -> tuple[Check, ...]:
    return tuple(
        replace(each, function=f"benchmarks.gpu.checks.{each.function}")
        for part in (_memory, _views, _share, _sharing, _overhead, _robustness, _rest)
        for each in part()
    )


def chosen(only: str) -> tuple[Check, ...]:
    """Separated by commas: a topic (T4), a check (T4.gemm) or its beginning; empty: all."""
    words = [word for word in only.split(",") if word]
    plan = checks()
    for word in words:
        if not any(_is(check, word) for check in plan):
            raise ValueError(f"no check is called {word}; there are {', '.join(check.id for check in plan)}")
    return tuple(check for check in plan if not words or any(_is(check, word) for word in words))


def _is(check: Check, word: str) -> bool:
    return check.topic == word or ("." in word and check.id.startswith(word))


def _memory() -> Iterator[Check]:
    ways = {"malloc": "cuMemAlloc", "async": "cuMemAllocAsync", "managed": "cuMemAllocManaged", "vmm": "cuMemCreate"}
    for way, call in ways.items():
        yield Check(f"T1.{way}", f"{call} in blocks of 64 MiB", _CAP, "memory:driver_api", (way,), 240)
    settings = {
        "default": "",
        "expandable": "expandable_segments:True",
        "cuda-async": "backend:cudaMallocAsync",
    }
    for name, setting in settings.items():
        yield Check(
            f"T1.torch-{name}", f"PyTorch, {setting or 'default allocator'}", _CAP, "memory:torch", (setting,), 300
        )
    for pool in ("pool", "async"):
        yield Check(f"T1.cupy-{pool}", f"CuPy, {pool} allocator", _CAP, "memory:cupy", (pool,), 240)
    for preallocate in ("true", "false"):
        title = f"JAX, {'with' if preallocate == 'true' else 'without'} preallocation"
        yield Check(f"T1.jax-{preallocate}", title, _CAP, "memory:jax", (preallocate,), 240)


def _views() -> Iterator[Check]:
    total = "total is the limit, free <= total"
    yield Check("T2.cuda", "cuDeviceTotalMem, cuMemGetInfo", f"{total}, used follows to 2 MiB", "views:cuda")
    yield Check("T2.nvml", "NVML memory, versions 1 and 2", f"{total}, used as cuMemGetInfo's to 2 MiB", "views:nvml")
    yield Check("T2.pynvml", "pynvml", total, "views:pynvml")
    yield Check("T2.nvidia-smi", "nvidia-smi in the container", total, "views:nvidia_smi")
    yield Check("T2.torch", "torch.cuda.mem_get_info", total, "views:torch")
    yield Check("T2.cupy", "cupy.cuda.runtime.memGetInfo", total, "views:cupy")
    criterion = "sum <= limit; a killed one's memory is had again within 1 s"
    yield Check("T3.four", "four processes until refused, one killed", criterion, "processes:together")


def _share() -> Iterator[Check]:
    kinds = {
        "small": "kernels of 10 us, async",
        "medium": "kernels of 1 ms, async",
        "gemm": "kernels of 20 ms, each waited for",
        "step": "300 kernels of 100 us, then waited for",
        "graph": "graphs of 20 ms",
    }
    for kind, title in kinds.items():
        yield Check(f"T4.{kind}", title, _SHARE, "share:c_program", (kind,), 580)
    torch = {
        "matmul-sync": "PyTorch, bf16 8192 x 8192, each waited for",
        "matmul-async": "PyTorch, bf16 1024 x 1024, async",
        "resnet": "PyTorch, a ResNet-50 trained, batch 64",
        "gpt2-graph": "PyTorch, a GPT-2 small trained as one CUDA graph",
    }
    for kind, title in torch.items():
        yield Check(f"T4.torch-{kind}", title, _SHARE, "share:torch", (kind,), 580)
    yield Check("T4.stalls", "steps of 1 ms at 25 %", "no step over 250 ms", "share:stalls", (), 240)


def _sharing() -> Iterator[Check]:
    pairs = (
        ("50", "50", "medium", "medium"),
        ("30", "70", "medium", "medium"),
        ("25", "75", "medium", "medium"),
        ("25", "25", "medium", "medium"),
        ("50", "50", "gemm", "small"),
        ("30", "70", "graph", "step"),
    )
    criterion = "each within 3 points of its limit"
    for a, b, kind_a, kind_b in pairs:
        name = f"T5.{a}-{b}-{kind_a}-{kind_b}"
        yield Check(
            name, f"{a} % {kind_a} beside {b} % {kind_b}", criterion, "sharing:pair", (a, b, kind_a, kind_b), 300
        )
    soft = "alone >= 90 %; a second after B came A <= 31 %, B >= 69 %"
    yield Check("T5.soft", "A, 25 % that borrows up to 100, then B with 75", soft, "sharing:soft")
    yield Check("T5.latency", "steps of A while B comes and goes", "no step over 250 ms", "sharing:latency")


def _overhead() -> Iterator[Check]:
    each = "extra <= {} ns without, {} ns with a limit that is not reached"
    yield Check("T6.launch", "a small kernel", each.format(20, 60), "overhead:call", ("launch",), 300)
    yield Check("T6.graph", "a graph of one small kernel", each.format(20, 60), "overhead:call", ("graph",), 300)
    yield Check(
        "T6.malloc", "cuMemAlloc and cuMemFree, 1 MiB", each.format(200, 200), "overhead:call", ("memory",), 300
    )
    step = "extra <= 0.5 % without a limit"
    yield Check("T6.step", "300 kernels of 100 us, then waited for", step, "overhead:c_step", (), 240)
    for kind in ("resnet", "gpt2-graph"):
        yield Check(f"T6.torch-{kind}", f"PyTorch, training step ({kind})", step, "overhead:torch_step", (kind,), 400)
    start = "extra <= 20 ms"
    yield Check("T6.start", "a process to the end of its first kernel", start, "overhead:start", (), 240)
    yield Check("T6.torch-start", "import torch to the first result", start, "overhead:torch_start", (), 400)


def _robustness() -> Iterator[Check]:
    same = {
        "fork": "fork before and after CUDA began",
        "capture": "captures in three modes beside other launches",
        "forbidden_in_capture": "what spoils a capture",
        "primary_context": "primary contexts reset and retained again",
    }
    for name, title in same.items():
        yield Check(f"T7.{name.replace('_', '-')}", title, _SAME, "robustness:same", (name,))
    refused = "refused, and the next capture works"
    yield Check("T7.refused-in-capture", "too much memory in a capture", refused, "robustness:refused_in_capture")
    yield Check(
        "T7.empty-environment", "env -i", "the limit holds; else as without ours", "robustness:empty_environment"
    )
    visible = "as without ours; the limit stays with its GPU"
    yield Check("T7.visible-devices", "CUDA_VISIBLE_DEVICES", visible, "robustness:visible_devices")
    torch = {"data_loader": "DataLoader with forked workers", "nccl": "NCCL, one rank, NCCL_CUMEM_ENABLE=1"}
    for name, title in torch.items():
        yield Check(
            f"T7.torch-{name.replace('_', '-')}", f"PyTorch, {title}", "works", "robustness:torch", (name,), 180
        )
    yield Check(
        "T7.torch-capture-refused",
        "PyTorch, too much memory in a capture",
        refused,
        "robustness:torch",
        ("capture_refused",),
        180,
    )
    yield Check(
        "T7.tools", "compute-sanitizer, nsys, ncu", "the program ends well under them", "robustness:tools", (), 300
    )


def _rest() -> Iterator[Check]:
    pids = "charged under its own pid; given back when it is killed"
    yield Check("T8.host", "in the host's pid namespace", pids, "pids:host")
    yield Check("T8.own-namespace", "in a pid namespace of its own", pids, "pids:own_namespace")
    identity = "dlsym and cuGetProcAddress of the driver agree for all hooked functions; ours gives out ours"
    yield Check("T9.identity", "pointers of hooked functions", identity, "pointers:identity")
    yield Check("T9.exports", "symbols of ours", "the hooked functions and no others", "pointers:exports")
    yield Check("F.symbolic", "does the driver bind its exports to itself?", MEASURED, "pointers:bound_to_itself")
    yield Check("F.context", "memory of a context", MEASURED, "facts:context")
    yield Check("F.events", "a kernel's time by events beside another process", MEASURED, "facts:events")
    yield Check("F.utilization", "NVML's utilisation of processes", MEASURED, "facts:utilization")
