"""Runs the scenario in children that are killed, or whose disk is full, at each of their changes in turn.

In: start and mode as arguments, the preloaded library `crashpoint.c`. Out: one JSON line for each point with what
containers would mount right after it and what a fresh agent makes of it. The scenario: an agent starts on what it
finds, mirrors the driver, a new driver and a new library of ours come, it mirrors them, and collects what nobody holds.
"""

import ctypes
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from deviceplugin.container.driver_mirror.components import Components
from deviceplugin.container.driver_mirror.elf import Machine
from deviceplugin.container.driver_mirror.mirror import DriverMirror, MirrorOptions
from deviceplugin.container.driver_mirror.trees import is_sound, read_manifest
from deviceplugin.errors import ContainerError
from deviceplugin.hardware.pci import loaded_version
from sandbox.driver_root import LIBRARIES, DriverRoot, make_interposers

MODES = {"kill": 1, "half": 2, "nospace": 3}
OLD, NEW = "570.1", "580.1"
SMALL = Components(("nvidia-smi",), ("libcuda.so", "libnvidia-ml.so", "libnvidia-ptxjit"))
_LIBRARY = ctypes.CDLL(None)
_MOST_TRIES = 3


def mirror_in(home: Path) -> DriverMirror:
    root = DriverRoot(home / "host")
    options = MirrorOptions(root.path, home / "ours", Machine.here(), shared=SMALL, whole=SMALL)
    return DriverMirror(home / "vdriver", options, loaded=lambda: loaded_version(root.version_file))


def prepare(home: Path, start: str, host: Path) -> None:
    """What the agent finds: nothing, directories of gpu-manager, or the mirror of an agent before."""
    shutil.copytree(host, home / "host", symlinks=True)
    DriverRoot(home / "host").load(OLD)
    make_interposers(home / "ours", content=b"old")
    if start == "gpu-manager":
        for flavour in ("nvidia", "origin"):
            (home / "vdriver" / flavour / "lib64").mkdir(parents=True)
        (home / "vdriver/nvidia/lib64/libcuda.so").write_text("gpu-manager")
    if start == "mirrored":
        agent = mirror_in(home)
        agent.open()
        agent.refresh()


def work(home: Path) -> None:
    agent = mirror_in(home)
    _until_done(agent.open)
    _until_done(agent.refresh)
    change(home)
    _until_done(agent.refresh)
    _until_done(lambda: agent.collect(()))


def change(home: Path) -> None:
    """A new driver and a new library, which are no changes of the agent's."""
    _LIBRARY.crashpoint_pause(1)
    DriverRoot(home / "host").load(NEW)
    make_interposers(home / "ours", content=b"new")
    _LIBRARY.crashpoint_pause(0)


def _until_done(step: Callable[[], object]) -> None:
    """A full disk is one sentence, and the agent goes on."""
    for _ in range(_MOST_TRIES):
        try:
            step()
        except ContainerError as error:
            if "\n" in error.message or "No space left on device" not in error.message:
                raise AssertionError(error.message) from error
        else:
            return
    raise AssertionError("one failure made more than one")


def mounted(home: Path) -> list[str]:
    """Driver and library that a container of each flavour would get; a tree that is not whole is named so."""
    return [_mounted(home / "vdriver", flavour) for flavour in ("nvidia", "origin")]


def _mounted(base: Path, flavour: str) -> str:
    source = (base / flavour).resolve()
    if not source.is_dir():
        return "nothing"
    manifest = read_manifest(source.parent)
    if manifest is None:
        return "gpu-manager" if source.parent == base else "unfinished"
    if not is_sound(source.parent, manifest):
        return "broken"
    ours = source / "lib64/libvcuda.so.1"
    return f"{manifest.driver} {ours.read_bytes()[-3:].decode() if ours.exists() else ''}".strip()


def crash(start: str, mode: str, number: int, host: Path) -> dict[str, Any]:
    home = Path(tempfile.mkdtemp(prefix="vc-", dir=host.parent))
    try:
        prepare(home, start, host)
        status = _in_child(home, mode, number)
        after = mounted(home)
        fresh = mirror_in(home)
        fresh.open()
        reopened = mounted(home)
        fresh.refresh()
        fresh.collect(())
        names = [path.name for path in (*(home / "vdriver").iterdir(), *(home / "vdriver/.trees").iterdir())]
        return {
            "number": number,
            "status": status,
            "after": after,
            "reopened": reopened,
            "loaded": loaded_version(DriverRoot(home / "host").version_file),
            "end": mounted(home),
            "litter": [name for name in names if name.startswith((".new", ".gone", ".link"))],
            "aside": sorted(name for name in names if "before" in name),
        }
    finally:
        shutil.rmtree(home)


def _in_child(home: Path, mode: str, number: int) -> int:
    child = os.fork()
    if child == 0:
        _LIBRARY.crashpoint_arm(number, MODES[mode])
        try:
            work(home)
            os._exit(0 if mode == "nospace" else 3)
        except BaseException as error:
            print(json.dumps({"number": number, "error": repr(error)}), flush=True)
            os._exit(2)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)


def calls(start: str, host: Path) -> int:
    """How many changes an undisturbed run makes."""
    home = Path(tempfile.mkdtemp(prefix="vc-", dir=host.parent))
    try:
        prepare(home, start, host)
        _LIBRARY.crashpoint_arm(1 << 30, MODES["kill"])
        work(home)
        return int(_LIBRARY.crashpoint_count())
    finally:
        _LIBRARY.crashpoint_arm(0, 0)
        shutil.rmtree(home)


def main() -> None:
    start, mode, directory, stride = sys.argv[1:]
    host = Path(directory) / "host"
    few = tuple(each for each in LIBRARIES if each[0].startswith(SMALL.libraries))
    root = DriverRoot(host, libraries=few, directories={64: "usr/lib64"})
    for version in (OLD, NEW):
        root.install(version)
    total = calls(start, host)
    for number in range(1, total + 1, int(stride)):
        print(json.dumps(crash(start, mode, number, host)), flush=True)
    print(json.dumps({"calls": total}), flush=True)


if __name__ == "__main__":
    main()
