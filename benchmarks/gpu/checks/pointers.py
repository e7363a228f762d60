"""T9: whatever pointers a driver gives out for its hooked functions, programs get the interposer's."""

import re
import subprocess
import sys
from pathlib import Path

from benchmarks.gpu.bench import Bench
from benchmarks.gpu.build import LIBRARY
from benchmarks.gpu.checks.common import PYTHON_INSIDE, needs_program
from benchmarks.gpu.outcome import Judgement

_HOOK = re.compile(r"^HOOK\((\w+)\)", re.MULTILINE)
_ROW = re.compile(r"^CUDA\((\w+),\s*(\w+),\s*(\d+),\s*([LT])", re.MULTILINE)


def hooked(library: Path = LIBRARY) -> list[tuple[str, str, int, str]]:
    """Symbol, base name, version and stream kind of each hooked function."""
    names = {
        name for table in (library / "interposer/cuda").glob("hooks_*.def") for name in _HOOK.findall(table.read_text())
    }
    rows = _ROW.findall((library / "include/cuda_functions.h").read_text())
    return [(symbol, base, int(version), kind) for symbol, base, version, kind in rows if symbol in names]


def identity(bench: Bench) -> Judgement:
    rows = hooked()
    words = [f"{symbol}:{base}:{version}:{kind}" for symbol, base, version, kind in rows]
    printed = bench.container(cores=50).run(sys.executable, "-m", f"{PYTHON_INSIDE}.pointers", *words)
    judgement = Judgement({"hooked": len(rows), "same": printed["same"], "not_in_driver": printed["absent"]})
    judgement.figures |= {"differ": printed["differ"], "not_given_out": printed["hidden"]}
    judgement.expect(not printed["not_ours"], f"cuGetProcAddress gives the driver's: {printed['not_ours']}")
    return judgement


def exports(bench: Bench) -> Judgement:
    """The interposer exports the hooked functions and nothing else."""
    nm = needs_program("nm")
    listed = subprocess.run(
        [nm, "-D", "--defined-only", str(bench.scratch / "ours/libcuda.so.1")],
        capture_output=True,
        text=True,
        check=True,
    )
    lines = [line.split() for line in listed.stdout.splitlines()]
    found = {words[2].split("@")[0] for words in lines if len(words) == 3 and words[1] != "A"}
    wanted = {symbol for symbol, *_ in hooked()}
    judgement = Judgement({"exported": len(found), "hooked": len(wanted)})
    judgement.expect(found == wanted, f"more: {sorted(found - wanted)}, less: {sorted(wanted - found)}")
    return judgement


def bound_to_itself(bench: Bench) -> Judgement:
    """Does the driver bind its own exports to itself? If not, its internal calls reach the hooks."""
    readelf = needs_program("readelf")
    printed = subprocess.run([readelf, "-dW", bench.driver.cuda], capture_output=True, text=True, check=True).stdout
    flags = " ".join(line for line in printed.splitlines() if "SYMBOLIC" in line or "FLAGS" in line)
    return Judgement({"symbolic": "SYMBOLIC" in flags, "flags": re.sub(r"\s+", " ", flags).strip()})
