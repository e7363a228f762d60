"""The plan: every check, in the order in which a GPU answers most, and the commands that run it.

`PARTS` are the commands: each ends within ten minutes, which is how long one may last on a borrowed machine. A check
belongs to the first part that names it; the order of the parts is that of the plan.
"""

from collections.abc import Iterator
from dataclasses import replace

from benchmarks.gpu.outcome import Check

TOPICS = {
    "T1": "memory caps",
    "T2": "views of memory and time",
    "T3": "several processes",
    "T4": "throughput under a limit",
    "T5": "two containers on one GPU",
    "T6": "overhead",
    "T7": "robustness",
    "T8": "pid namespaces",
    "T9": "pointers and symbols",
    "T10": "memory that is no allocation",
    "T11": "steps that mix kernels with other things",
    "T12": "two ranks that wait for each other",
    "T13": "several streams",
    "T14": "endless kernels, fills and copies",
    "F": "facts about the driver",
}
COMMAND_S = 540
PARTS = {
    "P1": ("T9", "T2", "F", "T10.primary", "T1.malloc", "T1.async", "T1.vmm", "T1.torch", "T3"),
    "P2": ("T10", "T11"),
    "P3": ("T12", "T4.small", "T4.gemm", "T4.graph"),
    "P4": ("T5.50-50-medium", "T5.30-70-medium", "T5.soft", "T6.launch", "T6.graph", "T6.start", "T6.torch-start"),
    "P5": ("T13", "T7", "T8", "T14"),
    "P6": ("T4.medium", "T4.step", "T4.stalls", "T6.malloc", "T6.step", "T6.torch-resnet"),
    "P7": ("T5", "T6"),
    "P8": ("T4",),
    "P9": ("T1",),
}
MEASURED = "measured; nothing to pass"
_CAP = (
    "got in [limit - overhead - 2 % - one block, limit]; refused as out of memory; host sees <= limit + 64 MiB; goes on"
)
_SHARE = "mean within 3 points of the limit, over all repeats"
_SHARE_OF_TIME = f"{_SHARE}, of the work brought to the native SM clock (times native MHz over limited MHz)"
_SAME = "the same answers as without ours"


def checks() -> tuple[Check, ...]:
    topics = (
        _pointers,
        _memory,
        _views,
        _holes,
        _mixed,
        _ranks,
        _share,
        _sharing,
        _overhead,
        _streams,
        _robustness,
        _end,
    )
    found = [_placed(each) for topic in topics for each in topic()]
    place = {check.id: number for number, check in enumerate(found)}
    return tuple(sorted(found, key=lambda check: (check.part, _rank(check), place[check.id])))


def _placed(check: Check) -> Check:
    part = next(part for part, words in PARTS.items() if any(_is(check, word) for word in words))
    return replace(check, function=f"benchmarks.gpu.checks.{check.function}", part=part)


def _rank(check: Check) -> int:
    return next(number for number, word in enumerate(PARTS[check.part]) if _is(check, word))


def chosen(only: str) -> tuple[Check, ...]:
    """Separated by commas: a part (P1), a topic (T4), a check (T4.gemm) or its beginning; empty: all."""
    words = [word for word in only.split(",") if word]
    plan = checks()
    for word in words:
        if not any(_is(check, word) for check in plan):
            raise ValueError(f"no check is called {word}; there are {', '.join(check.id for check in plan)}")
    return tuple(check for check in plan if not words or any(_is(check, word) for word in words))


def _is(check: Check, word: str) -> bool:
    return word in (check.topic, check.part) or ("." in word and check.id.startswith(word))


def _memory() -> Iterator[Check]:
    ways = {"malloc": "cuMemAlloc", "async": "cuMemAllocAsync", "managed": "cuMemAllocManaged", "vmm": "cuMemCreate"}
    for way, call in ways.items():
        yield Check(f"T1.{way}", f"{call} in blocks of 64 MiB", _CAP, "memory:driver_api", (way,), 240, 30)
    settings = {
        "default": "",
        "expandable": "expandable_segments:True",
        "cuda-async": "backend:cudaMallocAsync",
    }
    for name, setting in settings.items():
        yield Check(
            f"T1.torch-{name}", f"PyTorch, {setting or 'default allocator'}", _CAP, "memory:torch", (setting,), 300, 45
        )
    for pool in ("pool", "async"):
        yield Check(f"T1.cupy-{pool}", f"CuPy, {pool} allocator", _CAP, "memory:cupy", (pool,), 240, 40)
    for preallocate in ("true", "false"):
        title = f"JAX, {'with' if preallocate == 'true' else 'without'} preallocation"
        yield Check(f"T1.jax-{preallocate}", title, _CAP, "memory:jax", (preallocate,), 240, 40)


def _views() -> Iterator[Check]:
    total = "total is the limit, free <= total"
    yield Check("T2.cuda", "cuDeviceTotalMem, cuMemGetInfo", f"{total}, used follows to 2 MiB", "views:cuda")
    yield Check("T2.nvml", "NVML memory, versions 1 and 2", f"{total}, used as cuMemGetInfo's to 2 MiB", "views:nvml")
    yield Check("T2.pynvml", "pynvml", total, "views:pynvml")
    yield Check("T2.nvidia-smi", "nvidia-smi in the container", total, "views:nvidia_smi")
    criterion = "a share of 25 % that is used up shows at least 80 %, an idle one beside it 0 %"
    yield Check("T2.utilization", "NVML's utilization", criterion, "views:utilization")
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
        yield Check(f"T4.{kind}", title, _SHARE, "share:c_program", (kind,), 580, 112)
    torch = {
        "matmul-sync": "PyTorch, bf16 8192 x 8192, each waited for",
        "matmul-async": "PyTorch, bf16 1024 x 1024, async",
        "resnet": "PyTorch, a ResNet-50 trained, batch 64",
        "gpt2-graph": "PyTorch, a GPT-2 small trained as one CUDA graph",
    }
    for kind, title in torch.items():
        yield Check(f"T4.torch-{kind}", title, _SHARE_OF_TIME, "share:torch", (kind,), 580, 120)
    yield Check("T4.stalls", "steps of 1 ms at 25 %", "no step over 250 ms", "share:stalls", (), 240, 35)


def _sharing() -> Iterator[Check]:
    pairs = (
        ("50", "50", "medium", "medium"),
        ("30", "70", "medium", "medium"),
        ("25", "75", "medium", "medium"),
        ("25", "25", "medium", "medium"),
        ("50", "50", "gemm", "small"),
        ("30", "70", "graph", "step"),
    )
    criterion = "each from its limit times the native sum (100 % at most) less 3 points, to its limit and 3 points"
    for a, b, kind_a, kind_b in pairs:
        name = f"T5.{a}-{b}-{kind_a}-{kind_b}"
        yield Check(
            name, f"{a} % {kind_a} beside {b} % {kind_b}", criterion, "sharing:pair", (a, b, kind_a, kind_b), 300, 90
        )
    soft = (
        "alone >= 90 %; a second after B came A <= 31 %, B >= 75 % times the native sum (100 % at most) less 6 points"
    )
    yield Check("T5.soft", "A, 25 % that borrows up to 100, then B with 75", soft, "sharing:soft", seconds=25)
    yield Check("T5.latency", "steps of A while B comes and goes", "no step over 250 ms", "sharing:latency", seconds=20)


def _overhead() -> Iterator[Check]:
    each = "extra <= {} ns without, {} ns with a limit that is not reached"
    yield Check("T6.launch", "a small kernel", each.format(20, 60), "overhead:call", ("launch",), 300, 70)
    yield Check("T6.graph", "a graph of one small kernel", each.format(20, 60), "overhead:call", ("graph",), 300, 100)
    yield Check(
        "T6.malloc", "cuMemAlloc and cuMemFree, 1 MiB", each.format(200, 200), "overhead:call", ("memory",), 300, 60
    )
    step = "extra <= 0.5 % without a limit"
    yield Check("T6.step", "300 kernels of 100 us, then waited for", step, "overhead:c_step", (), 240, 35)
    for kind in ("resnet", "gpt2-graph"):
        yield Check(
            f"T6.torch-{kind}", f"PyTorch, training step ({kind})", step, "overhead:torch_step", (kind,), 400, 150
        )
    start = "extra <= 20 ms"
    yield Check("T6.start", "a process to the end of its first kernel", start, "overhead:start", (), 240, 25)
    yield Check("T6.torch-start", "import torch to the first result", start, "overhead:torch_start", (), 400, 110)


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
            f"T7.torch-{name.replace('_', '-')}", f"PyTorch, {title}", "works", "robustness:torch", (name,), 180, 25
        )
    yield Check(
        "T7.torch-capture-refused",
        "PyTorch, too much memory in a capture",
        refused,
        "robustness:torch",
        ("capture_refused",),
        180,
        25,
    )
    yield Check(
        "T7.tools", "compute-sanitizer, nsys, ncu", "the program ends well under them", "robustness:tools", (), 300, 120
    )

    pids = "charged under its own pid; given back when it is killed"
    yield Check("T8.host", "in the host's pid namespace", pids, "pids:host")
    yield Check("T8.own-namespace", "in a pid namespace of its own", pids, "pids:own_namespace")


def _pointers() -> Iterator[Check]:
    identity = "for all hooked functions cuGetProcAddress gives out ours, whatever pointers the driver has"
    yield Check("T9.identity", "pointers of hooked functions", identity, "pointers:identity", seconds=3)
    yield Check("T9.exports", "symbols of ours", "the hooked functions and no others", "pointers:exports", seconds=1)
    bound = "does the driver bind its exports to itself?"
    yield Check("F.symbolic", bound, MEASURED, "pointers:bound_to_itself", seconds=1)
    yield Check("F.context", "memory of a context", MEASURED, "facts:context")
    yield Check("F.events", "a kernel's time by events beside another process", MEASURED, "facts:events")
    yield Check("F.utilization", "NVML's utilisation of processes", MEASURED, "facts:utilization")


def _holes() -> Iterator[Check]:
    resets = "no allocation refused after five resets; what is charged is what the host sees, to 64 MiB"
    for how, title in (("retain", "cuDevicePrimaryCtxRetain"), ("runtime", "NVIDIA's runtime")):
        yield Check(f"T10.primary-{how}", f"primary context by {title}", resets, "holes:primary", (how,))
    within = "host sees <= limit + 64 MiB; refused as out of memory; goes on"
    ways = {
        "export": "cuMemCreate, exported and released",
        "module": "global variables of modules",
        "context": "contexts after the first",
        "heap": "the heap of kernels' malloc",
        "ipc": "allocations opened elsewhere and freed by their owner",
        "prefetch": "memory of the host, moved to the GPU (HMM)",
    }
    for way, title in ways.items():
        yield Check(f"T10.{way}", title, within, "holes:way", (way,), 180, 20)


def _mixed() -> Iterator[Check]:
    own = "10, 25, 50 %: within 3 points of the limit, or below it with 80 % of the native rate or more"
    kinds = {
        "copy": "kernels of 1 ms, copies from the host between them",
        "host": "kernels of 50 us, host functions of 5 ms between them",
        "wait": "kernels of 50 us that wait for another stream's host function",
        "grids": "kernels of 20 us, each with a grid of its own",
    }
    for kind, title in kinds.items():
        yield Check(f"T11.{kind}", title, own, "mixed:steps", (kind,), 300, 90)


def _ranks() -> Iterator[Check]:
    settled = "the last quarter of the steps takes at most twice alone-time over share; all steps are made"
    for cores, stall in (("25", "0"), ("50", "0"), ("45", "500")):
        title = f"two ranks of {cores} % each that meet at every step" + (", one stalls once" if stall != "0" else "")
        name = f"T12.{cores}{'-stall' if stall != '0' else ''}"
        yield Check(name, title, settled, "ranks:together", (cores, stall), 180, 20)


def _streams() -> Iterator[Check]:
    kept = "no limit: at least 95 % of the native rate; 50 %: 40 to 53 % of it"
    yield Check("T13.null", "NULL stream beside four blocking ones", kept, "mixed:overlapping", ("null",), 300, 68)
    yield Check("T13.burst", "256 launches into each of four streams", kept, "mixed:overlapping", ("burst",), 300, 68)


def _end() -> Iterator[Check]:
    bounded = "100 launches a second beside it; steps of 1 ms of a neighbour <= 20 ms"
    yield Check("T14.endless", "a kernel that does not end", bounded, "mixed:endless", seconds=15)
    for kind, title in (("fill", "fills"), ("duplicate", "copies on the device")):
        neighbour = (
            "the filler gets <= 28 %, a neighbour of 75 % that times the native sum (100 % at most) less 6 points"
        )
        yield Check(f"T14.{kind}", f"{title} of 256 MiB at 25 %", neighbour, "mixed:fills", (kind,), 180, 35)
