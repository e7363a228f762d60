"""The results file: what an earlier run left in it, and that it says which driver it measured."""

from dataclasses import replace
from pathlib import Path

from benchmarks.gpu import report
from benchmarks.gpu.figures import percentile, spread
from benchmarks.gpu.outcome import Outcome, Status
from benchmarks.gpu.report import Setting

SETTING = Setting(
    emulated=False,
    gpu="NVIDIA H100 80GB HBM3",
    driver="580.95.05",
    cuda="13.0",
    torch="2.6.0 for CUDA 12.4",
    date="2026-11-21T06:00:00Z",
    commit="0123456789ab",
    host="16 cores",
    quick=False,
    window_s=2.0,
    repeats=5,
    why_this_driver="found by the dynamic loader",
)
OUTCOMES = [
    Outcome("T1.malloc", "cuMemAlloc", "<= limit", Status.PASSED, "", {"4 GiB": {"got_mib": 3584}}, 1.5),
    Outcome("T2.torch", "torch", "== limit", Status.NOT_RUN, "PyTorch is not installed", {}, 0.1),
    Outcome("T4.gemm", "a | b", "3 points", Status.FAILED, "got 30 %", {"25 %": spread([29.0, 31.0, 30.0])}, 9.0),
]


def test_figures_are_median_and_interquartile_range_and_are_read_as_they_were_written(tmp_path: Path) -> None:
    found = report.read(report.write(tmp_path, SETTING, OUTCOMES))
    assert found == OUTCOMES
    assert found[2].figures["25 %"] == {"median": 30.0, "iqr": 1.0, "values": [29.0, 31.0, 30.0]}
    assert spread([1.0, 2.0, 3.0, 4.0, 5.0])["iqr"] == 2.0
    assert [percentile([5.0, 1.0, 3.0], percent) for percent in (50, 99)] == [3.0, 5.0]


def test_a_merge_goes_on_from_the_newest_file_of_that_gpu(tmp_path: Path) -> None:
    """Also after midnight; never from another GPU's file or from the emulated driver's."""
    for day, reason in (("2026-11-20", "older"), ("2026-11-22", "newer")):
        report.write(tmp_path, replace(SETTING, date=f"{day}T06:00:00Z"), [replace(OUTCOMES[0], reason=reason)])
    report.write(tmp_path, replace(SETTING, emulated=True, date="2026-11-25T06:00:00Z"), OUTCOMES)
    report.write(tmp_path, replace(SETTING, gpu="H100 80GB HBM3", date="2026-11-26T06:00:00Z"), OUTCOMES)
    assert [each.reason for each in report.newest(tmp_path, SETTING)] == ["newer"]
    assert report.newest(tmp_path / "none", SETTING) == []


def test_a_check_that_is_run_again_says_how_it_ended_before(tmp_path: Path) -> None:
    again = report.superseding(replace(OUTCOMES[2], status=Status.PASSED, reason=""), OUTCOMES[2])
    once_more = report.superseding(again, again)
    assert once_more.earlier == ("failed: got 30 %", "passed")
    assert report.read(report.write(tmp_path, SETTING, [once_more])) == [once_more]
    assert "before, failed: got 30 %" in report.table(SETTING, [once_more])
    old = replace(OUTCOMES[0], commit="old", date="2026-11-20T00:00:00Z")
    assert "2026-11-20T00:00:00Z, commit old" in report.table(SETTING, [old])


def test_figures_of_the_emulated_driver_cannot_be_taken_for_a_gpus(tmp_path: Path) -> None:
    emulated = replace(SETTING, emulated=True)
    path = report.write(tmp_path, emulated, OUTCOMES)
    assert path.name == "2026-11-21-emulated-nvidia-h100-80gb-hbm3.json"
    assert "no figure here comes from a GPU" in path.with_suffix(".md").read_text()
    assert "no figure here comes from a GPU" not in report.table(SETTING, OUTCOMES)
