"""The checks that need PyTorch, with a stand-in for the interpreter that has it: what they ask, what they make of it.

Not here: the scripts that run in PyTorch. They need a GPU; torch_work is tried on a CPU by hand.
"""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu.bench import Bench
from benchmarks.gpu.checks import memory, overhead, robustness, share
from benchmarks.gpu.driver import Device, Driver
from benchmarks.gpu.outcome import NotRun

STAND_IN = """#!{python}
import json, os, sys
sys.path.insert(0, {repository!r})
from sandbox.limits_file import decode
base = os.environ.get("VCUDA_DIR")
limits = decode(open(base + "/limits", "rb").read()).devices[0] if base else None
cores, size = (limits.cores, limits.memory_bytes) if limits else (100, 0)
answer = {{"per_second": 10.0 * cores, "got": size - (600 << 20), "refusal": 2, "refused_again": 0, "kernel_runs": 1,
          "overhead": 500 << 20, "good": True}} | json.loads({changed!r})
if len(sys.argv) > 4 or "torch_work" not in sys.argv[2]:
    print(json.dumps(answer))
else:
    print("ready", flush=True)
    for line in sys.stdin:
        print(json.dumps(answer), flush=True)
"""


def bench(scratch: Path, *, emulated: bool = False, installed: bool = True, **changed: Any) -> Bench:
    python = scratch / "python"
    repository = str(Path(__file__).resolve().parents[3])
    python.write_text(STAND_IN.format(python=sys.executable, repository=repository, changed=json.dumps(changed)))
    python.chmod(0o755)
    device = Device("GPU-1", "00000000:01:00.0", "NVIDIA H100", 80 << 30)
    driver = Driver(emulated, "/nowhere", "/nowhere", "580.95.05", "13.0", (device,), "of a test")
    return Bench(scratch, driver, True, 0.1, 2, str(python) if installed else "", 4000)


def test_without_pytorch_nothing_is_run(short_tmp: Path) -> None:
    with pytest.raises(NotRun, match="PyTorch is not installed"):
        share.torch(bench(short_tmp, installed=False), "resnet")


def test_on_the_emulated_driver_pytorch_is_not_tried(short_tmp: Path) -> None:
    with pytest.raises(NotRun, match="need a real GPU"):
        memory.torch(bench(short_tmp, emulated=True), "")


def test_the_share_of_a_limit_is_its_pace_over_the_native_one(short_tmp: Path) -> None:
    judgement = share.torch(bench(short_tmp), "resnet")
    assert judgement.missed == []
    assert {f"{cores} %": float(cores) for cores in share.LIMITS} == {
        name: each["median"] for name, each in judgement.figures.items() if name.endswith("%")
    }


def test_a_limit_that_does_nothing_fails(short_tmp: Path) -> None:
    judgement = share.torch(bench(short_tmp, per_second=1000.0), "resnet")
    assert judgement.missed == [f"limit {cores}: got 100.0 %" for cores in (25, 50, 75)]


def test_memory_within_the_limit_passes_and_above_it_fails(short_tmp: Path) -> None:
    assert memory.torch(bench(short_tmp), "").missed == []
    (missed,) = memory.torch(bench(short_tmp, got=5 << 30), "expandable_segments:True").missed
    assert missed == "4 GiB: got 5120 MiB, not 3450 to 4096"


def test_another_error_than_out_of_memory_fails(short_tmp: Path) -> None:
    (missed,) = memory.torch(bench(short_tmp, refusal="RuntimeError: no"), "").missed
    assert missed == "4 GiB: refused with RuntimeError: no, not 2"


def test_a_training_step_is_compared_with_the_native_one(short_tmp: Path) -> None:
    judgement = overhead.torch_step(bench(short_tmp), "resnet")
    assert judgement.missed == []
    assert judgement.figures["extra_percent"]["median"] == 0


def test_what_goes_wrong_inside_is_what_the_check_says(short_tmp: Path) -> None:
    assert robustness.torch(bench(short_tmp), "nccl").missed == []
    (missed,) = robustness.torch(bench(short_tmp, good=False), "nccl").missed
    assert "nccl went wrong" in missed
