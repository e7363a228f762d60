"""The checks that need PyTorch, with a stand-in for the interpreter that has it: what they ask, what they make of it.

Not here: the scripts that run in PyTorch. They need a GPU; torch_work is tried on a CPU by hand.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu.bench import Bench
from benchmarks.gpu.checks import clocks, memory, overhead, robustness, share
from benchmarks.gpu.driver import Device, Driver
from benchmarks.gpu.inside.driver_api import CudaError
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


def test_without_pytorch_or_a_gpu_nothing_is_judged(short_tmp: Path) -> None:
    with pytest.raises(NotRun, match="PyTorch is not installed"):
        share.torch(bench(short_tmp, installed=False), "resnet")
    with pytest.raises(NotRun, match="need a real GPU"):
        memory.torch(bench(short_tmp, emulated=True), "")


def test_the_share_of_a_limit_is_its_pace_over_the_native_one(short_tmp: Path) -> None:
    judgement = share.torch(bench(short_tmp), "resnet")
    assert judgement.missed == []
    assert {f"{cores} %": float(cores) for cores in share.LIMITS} == {
        name: each["median"] for name, each in judgement.figures.items() if name.endswith("%")
    }
    judgement = share.torch(bench(short_tmp, per_second=1000.0), "resnet")
    assert judgement.missed == [f"limit {cores}: got 100.0 %" for cores in (25, 50, 75)]


# torch-matmul-sync on an H100 (driver 580.159.04): natively limited by its power
ON_AN_H100 = {"native": [605.65], "25": [190.8], "50": [376.9], "75": [534.9], "100": [599.3]}


def test_a_share_of_work_is_judged_at_the_native_clock() -> None:
    mhz = {"native": 1560.0, "25": 1980.0, "50": 1950.0, "75": 1845.0, "100": 1560.0}
    judgement = share.judge(ON_AN_H100, mhz)
    assert judgement.missed == []
    assert judgement.figures["sm_mhz"] == mhz
    assert judgement.figures["25 %"]["mean"] == 31.5
    assert judgement.figures["25 % at the native clock"] == 24.82


def test_more_work_than_the_share_fails_where_no_clock_explains_it() -> None:
    unknown, same = {"native": 1560.0, "50": 1950.0, "75": 1845.0}, {"native": 1980.0, "25": 1980.0}
    said = [f"limit {limit}: got {got} %" for limit, got in ((25, 31.5), (50, 62.2), (75, 88.3))]
    assert share.judge(ON_AN_H100, {}).missed == said
    assert share.judge(ON_AN_H100, unknown).missed == said[:1]
    explained = same | {"50": 2475.0, "75": 2340.0}
    assert share.judge(ON_AN_H100, explained).missed == [f"{said[0]}, 31.5 % at the native clock"]


class Nvml:
    """Busy or not, at one clock after the other; then lost."""

    def __init__(self, *seen: tuple[int, int]) -> None:
        self.seen = [seen[0], *seen]  # asked for its clock once, to see whether it has one

    def busy_percent(self) -> int:
        if not self.seen:
            raise CudaError("nvmlDeviceGetUtilizationRates", 15)
        if self.seen[0][0] == 0:
            return self.seen.pop(0)[0]
        return self.seen[0][0]

    def sm_mhz(self) -> int:
        return self.seen.pop(0)[1]


def test_the_clock_is_that_while_the_gpu_was_busy(short_tmp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clocks, "EACH_S", 0.001)
    found: list[float] = []
    for seen in ([(0, 345)], [(0, 345), (90, 1500), (90, 1980), (90, 1560)]):
        nvml = Nvml(*seen)
        monkeypatch.setattr(clocks, "host_nvml", lambda _, nvml=nvml: nvml)
        with clocks.SmClock(bench(short_tmp)).added_to(found):
            while nvml.seen:
                time.sleep(0.001)
    assert found == [1560]


def test_memory_within_the_limit_passes_and_above_it_fails(short_tmp: Path) -> None:
    assert memory.torch(bench(short_tmp), "").missed == []
    (missed,) = memory.torch(bench(short_tmp, got=5 << 30), "expandable_segments:True").missed
    assert missed == "4 GiB: got 5120 MiB, not 3450 to 4096"
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
