"""The parsers of foreign bytes under libFuzzer, for a moment in each run; `python -m` runs them for longer."""

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

CORPUS = Path(__file__).parent / "corpus"
ROOT = Path(__file__).parents[3]
TARGETS = ["cgroup", "elf", "ldcache", "limits_file", "processes", "region"]
RUNS, SECONDS = 20_000, 3

_MISSING = importlib.util.find_spec("atheris") is None
pytestmark = [
    pytest.mark.thorough,
    pytest.mark.skipif(_MISSING, reason="atheris has wheels for Linux on x86_64 only"),
]


def fuzz(target: str, directory: Path, *, runs: int, seconds: int, seed: int = 0) -> subprocess.CompletedProcess[str]:
    """With a copy of the corpus, which grows; seed 0 is another one each time. All that is said is in `stdout`."""
    corpus = directory / "corpus"
    if (CORPUS / target).exists():
        shutil.copytree(CORPUS / target, corpus)
    corpus.mkdir(exist_ok=True)
    limits = [f"-runs={runs}", f"-max_total_time={seconds}", "-max_len=4096", "-timeout=10", "-rss_limit_mb=1024"]
    command = [sys.executable, "-m", f"tests.container.fuzz.{target}", *limits, f"-seed={seed}"]
    command += [f"-artifact_prefix={directory}/", "-print_final_stats=1", str(corpus)]
    return subprocess.run(
        command,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        errors="replace",
        timeout=100,
        check=False,
    )


def finding(done: subprocess.CompletedProcess[str], directory: Path) -> str:
    """What was raised and by which input, as Python writes it."""
    inputs = [f"{path.name}: {path.read_bytes()!r}" for path in directory.glob("*-*") if path.is_file()]
    return "\n".join([done.stdout[-6000:], *inputs])


@pytest.mark.parametrize("target", TARGETS)
def test_no_bytes_upset_the_parser(target: str, short_tmp: Path) -> None:
    assert any((CORPUS / target).iterdir())
    done = fuzz(target, short_tmp, runs=RUNS, seconds=SECONDS)
    assert done.returncode == 0, finding(done, short_tmp)
    assert "DONE" in done.stdout


def test_a_fault_behind_four_branches_is_found_and_reported_with_its_input(short_tmp: Path) -> None:
    done = fuzz("planted", short_tmp, runs=2_000_000, seconds=60, seed=1)
    assert done.returncode != 0
    assert "KeyError: 'planted'" in done.stdout
    assert "b'vCud" in finding(done, short_tmp)


def test_every_target_and_every_corpus_is_run() -> None:
    ours = {"__init__", "harness", "planted", "test_fuzz"}
    assert {path.stem for path in Path(__file__).parent.glob("*.py")} - ours == set(TARGETS)
    assert {path.name for path in CORPUS.iterdir()} == set(TARGETS)
