"""Runs the scenario in children that are crashed, or whose disk fails, at each change to the directory in turn.

In: the start and the modes as arguments, the preloaded library `crashpoint.c`. Out: one JSON line for each point with
the steps that were acknowledged before it and the ledger that a fresh start finds after it; the last line names the
states that are right after each step.
"""

import ctypes
import json
import os
import shutil
import sys
import tempfile
from itertools import product
from pathlib import Path
from typing import Any

from deviceplugin.errors import LedgerError
from deviceplugin.ledger.ledger import Ledger
from tests.ledger.crash.scenario import JOURNAL, MODES, STEPS, begin, prepare
from tests.ledger.makers import open_ledger, scanned

_LIBRARY = ctypes.CDLL(None)
_MEMORY = "/dev/shm"  # the library knows what was synced; to wait for a disk decides nothing
State = list[str]


def state_of(ledger: Ledger) -> State:
    return sorted(repr(grant) for grant in ledger.grants())


def run(directory: Path, acknowledge: int, *, failing: bool) -> None:
    """One byte on the pipe for the opening and for each step, after it returned."""
    while True:
        try:
            ledger, journal = begin(directory)
            break
        except LedgerError:
            assert failing
    os.write(acknowledge, b".")
    for step in STEPS:
        before = state_of(ledger)
        try:
            step(ledger, journal)
        except LedgerError:
            assert failing
            assert state_of(ledger) == before
            assert sorted(map(repr, scanned((directory / JOURNAL).read_bytes()).grants.values())) == before
            step(ledger, journal)
        os.write(acknowledge, b".")


def crash(start: str, mode: str, number: int) -> dict[str, Any]:
    directory = Path(tempfile.mkdtemp(prefix="vc-", dir=_MEMORY))
    try:
        prepare(directory, start)
        acknowledged, status = _in_child(directory, mode, number)
        found = open_ledger(directory)
        found.close()  # the library knows files by few numbers
        copies = sorted(path.name for path in directory.glob("*.damaged-*"))
        return {
            "mode": mode,
            "number": number,
            "acknowledged": acknowledged,
            "status": status,
            "state": state_of(found),
            "warnings": len(found.warnings),
            "copies": copies,
        }
    finally:
        shutil.rmtree(directory)


def _in_child(directory: Path, mode: str, number: int) -> tuple[int, int]:
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        _LIBRARY.crashpoint_arm(str(directory).encode(), number, MODES[mode])
        try:
            run(directory, writing, failing=mode in {"nospace", "ioerror"})
            os._exit(0 if _LIBRARY.crashpoint_count() < number or mode in {"nospace", "ioerror"} else 3)
        except BaseException as error:
            print(json.dumps({"number": number, "error": repr(error)}), flush=True)
            os._exit(2)
    os.close(writing)
    acknowledged = 0
    while chunk := os.read(reading, 64):
        acknowledged += len(chunk)
    os.close(reading)
    _, status = os.waitpid(child, 0)
    return acknowledged, os.waitstatus_to_exitcode(status)


def expected(start: str) -> list[State]:
    directory = Path(tempfile.mkdtemp(prefix="vc-", dir=_MEMORY))
    try:
        prepare(directory, start)
        ledger, journal = begin(directory)
        states = [state_of(ledger)]
        for step in STEPS:
            step(ledger, journal)
            states.append(state_of(ledger))
        return states
    finally:
        shutil.rmtree(directory)


def calls(start: str) -> int:
    """How many changes to the directory an undisturbed run makes."""
    directory = Path(tempfile.mkdtemp(prefix="vc-", dir=_MEMORY))
    try:
        prepare(directory, start)
        _LIBRARY.crashpoint_arm(str(directory).encode(), 0, MODES["kill"])
        run(directory, os.open(os.devnull, os.O_WRONLY), failing=False)
        return int(_LIBRARY.crashpoint_count())
    finally:
        _LIBRARY.crashpoint_arm(b"/nowhere", 0, 0)
        shutil.rmtree(directory)


def main() -> None:
    start, *modes = sys.argv[1:]
    total = calls(start)
    for mode, number in product(modes, range(1, total + 1)):
        print(json.dumps(crash(start, mode, number)), flush=True)
    print(json.dumps({"expected": expected(start), "calls": total}), flush=True)


if __name__ == "__main__":
    main()
