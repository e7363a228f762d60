"""The driver behind the library: that of the machine, or the emulated one of this repository.

In: `auto`, `real` or `emulated`. Out: its two files, its version and its GPUs. The driver of the machine is what the
dynamic loader finds for the two SONAMEs (ld.so.cache or LD_LIBRARY_PATH). A separate process asks it, so that this
process never loads a driver.
"""

import json
import os
import subprocess
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.gpu.build import DRIVER, REPOSITORY, Build

PROBE = ("-m", "benchmarks.gpu.inside.probe")
PROFILE: dict[str, Any] = {
    "format": 1,
    "name": "benchmarks/gpu",
    "driver": "580.95.05",
    "cuda": "13.0",
    "models": {"h100": {"name": "NVIDIA H100 80GB HBM3", "memory_mib": 81559, "compute_capability": "9.0"}},
    "gpus": [{"model": "h100"}, {"model": "h100"}],
}


class NoDriver(Exception):  # noqa: N818 - a fact about the machine
    """No usable GPU; the message says what was found."""


@dataclass(frozen=True, slots=True)
class Device:
    """One GPU as the driver lists it to CUDA; memory in bytes, by cuDeviceTotalMem."""

    uuid: str
    bus_id: str
    name: str
    memory: int


@dataclass(frozen=True, slots=True)
class Driver:
    """`environment`: variables with which a process finds it. `why`: the reason for this driver."""

    emulated: bool
    cuda: str
    nvml: str
    version: str
    cuda_version: str
    devices: tuple[Device, ...]
    why: str
    environment: dict[str, str] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def of_json(cls, data: dict[str, Any]) -> "Driver":
        return cls(**{**data, "devices": tuple(Device(**each) for each in data["devices"])})


def find(kind: str, build: Build, scratch: Path) -> Driver:
    """Raises NoDriver if `real` was requested and there is none."""
    if kind == "emulated":
        return emulated(build, scratch, "asked for")
    try:
        return real()
    except NoDriver as none:
        if kind == "real":
            raise
        return emulated(build, scratch, str(none))


def real() -> Driver:
    return _ask({}, emulated=False, why="found by the dynamic loader")


def emulated(build: Build, scratch: Path, why: str) -> Driver:
    directory = scratch / "emulated"
    directory.mkdir()
    for name in DRIVER:
        (directory / name).write_bytes((build.driver / name).read_bytes())
    environment = {
        "VCUDA_EMULATOR_PROFILE": str(_compiled(directory)),
        "VCUDA_EMULATOR_STATE": str(directory / "state"),
    }
    return _ask(environment, emulated=True, why=why, library_path=str(directory))


def _compiled(directory: Path) -> Path:
    """By a process of its own: the compiler needs packages of scripts/setup, and this program needs none."""
    written, compiled = directory / "profile.json", directory / "profile"
    written.write_text(json.dumps(PROFILE))
    command = [sys.executable, "-m", "sandbox.emulator_profile", str(written), str(compiled)]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=60, check=False)
    if done.returncode != 0:
        why = done.stderr.strip().rpartition("\n")[2]
        raise NoDriver(f"the emulated driver needs the packages that scripts/setup installs: {why}")
    return compiled


def _ask(environment: dict[str, str], *, emulated: bool, why: str, library_path: str = "") -> Driver:
    added = environment | ({"LD_LIBRARY_PATH": library_path} if library_path else {})
    done = subprocess.run(
        [sys.executable, *PROBE],
        cwd=REPOSITORY,
        env=os.environ | added,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    if done.returncode != 0:
        raise NoDriver(done.stderr.strip().rpartition("\n")[2] or f"asking the driver ended with {done.returncode}")
    printed = json.loads(done.stdout)
    devices = tuple(Device(**each) for each in printed.pop("devices"))
    return Driver(emulated=emulated, why=why, devices=devices, environment=environment, **printed)
