"""One container as our library sees it: what is mounted at its base, the driver directory, and processes in it.

In: the three objects of library/interposer, a real libcuda.so.1 and libnvidia-ml.so.1 to stand behind them, limits.
Out: what a process in there hears, with its stderr. Base and shared files are made by the agent's own code, so that
both ends of library/abi meet here. Not here: pid namespaces and mounts; VCUDA_DIR stands in for /etc/vcuda, which a
machine that runs these tests does not have.
"""

import json
import os
import shutil
import struct
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from deviceplugin.container import region
from deviceplugin.container.limits_file import DeviceLimits, GrantLimits, encode
from deviceplugin.container.shared_state import SharedState
from deviceplugin.ledger.grant import GrantId
from deviceplugin.model.gpu import GpuUuid
from sandbox.emulator_profile import write_profile
from tests.library.machine import REPOSITORY

INSIDE = (sys.executable, "-m", "tests.library.inside")
GRANT = GrantId("g-1")
GIB = 1 << 30
Answer = Any  # JSON that the tests know


TWO_GPUS: dict[str, Any] = {
    "format": 1,
    "name": "two GPUs",
    "driver": "580.95.05",
    "cuda": "13.0",
    "models": {"gpu": {"name": "NVIDIA H100 80GB HBM3", "memory_mib": 80 * 1024, "compute_capability": "9.0"}},
    "gpus": [
        {"model": "gpu", "uuid": "GPU-00000000-0000-0000-0000-000000000001"},
        {"model": "gpu", "uuid": "GPU-00000000-0000-0000-0000-000000000002"},
    ],
}
"""The GPUs that native/interposer/driver.c has, for NVML."""


def two_gpus(directory: Path) -> dict[str, str]:
    """The environment of the emulated machine that has them."""
    profile = write_profile(TWO_GPUS, directory / "profile.json")
    return {"VCUDA_EMULATOR_PROFILE": str(profile), "VCUDA_EMULATOR_STATE": str(directory / "state")}


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a process said and how it ended."""

    value: Answer
    errors: str


@dataclass
class Container:
    """`environment` is added to an empty one: a process inherits nothing by accident."""

    root: Path
    ours: Path
    cuda: Path
    nvml: Path
    environment: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.driver.mkdir(parents=True)
        for name in ("libcuda.so.1", "libnvidia-ml.so.1", "libvcuda.so.1"):
            os.link(_near(self.ours / name, self.driver), self.driver / name)
        (self.driver / "libcuda-real.so.1").symlink_to(self.cuda)
        (self.driver / "libnvidia-ml-real.so.1").symlink_to(self.nvml)
        self.environment = {
            "LD_LIBRARY_PATH": str(self.driver),
            "VCUDA_DIR": str(self.base),
            "PYTHONPATH": str(REPOSITORY),
        } | self.environment

    def stand_behind(self, *, nvml: Path) -> None:
        """Another real library than the one it was made with."""
        alias = self.driver / "libnvidia-ml-real.so.1"
        alias.unlink()
        alias.symlink_to(nvml)

    @property
    def driver(self) -> Path:
        return self.root / "driver"

    @property
    def base(self) -> Path:
        return self.root / "vm" / GRANT

    @property
    def limits(self) -> Path:
        return self.base / "limits"

    @property
    def region_file(self) -> Path:
        return self.base / "state/region"

    def grant(self, *devices: DeviceLimits, generation: int = 1) -> None:
        """What the agent does for a container: shared files, and the limits by rename."""
        SharedState(self.root / "vm").prepare(GRANT, [device.uuid for device in devices])
        self.write_limits(encode(GrantLimits(GRANT, devices, generation)))

    def write_limits(self, data: bytes) -> None:
        self.base.mkdir(parents=True, exist_ok=True)
        fresh = self.base / ".limits.new"
        fresh.write_bytes(data)
        fresh.replace(self.limits)

    def run(self, name: str, *args: object, **environment: str) -> Outcome:
        """A function of tests.library.inside in a process of its own."""
        with self.start(name, *args, **environment) as process:
            out, errors = process.communicate(timeout=30)
        assert process.returncode == 0, f"{name} ended with {process.returncode}: {errors}"
        return Outcome(json.loads(out.splitlines()[-1]), errors)

    def start(self, name: str, *args: object, **environment: str) -> subprocess.Popen[str]:
        return self.start_program(*INSIDE, name, json.dumps(args), **environment)

    def start_program(self, *command: object, **environment: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            list(map(str, command)),
            env=self.environment | environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def occupy(
        self, slot: int, pid: int, start_time: int, *, device: int = 0, used: int = 0, overhead: int = 0
    ) -> None:
        """Writes another process's slot, as its own library would."""
        namespace = Path("/proc/self/ns/pid").stat().st_ino
        at = region.SLOTS_AT + slot * region.SLOT_SIZE
        with self.region_file.open("r+b") as file:
            file.seek(at)
            file.write(region.SLOT.pack(pid, 0, start_time, namespace, 1))
            file.seek(at + region.SLOT.size + device * region.USE.size)
            file.write(region.USE.pack(used, 0, overhead, 0))
            file.seek(len(region.form(GRANT).head))
            (high,) = struct.unpack("<I", file.read(4))
            file.seek(len(region.form(GRANT).head))
            file.write(struct.pack("<I", max(high, slot + 1)))

    def slots(self) -> dict[int, region.ProcessSlot]:
        """Taken slots by their number."""
        return {
            slot.index: slot for slot in region.read(self.region_file, grant=GRANT, devices=16).slots if slot.pid != 0
        }


def device(number: int, memory: int = 2 * GIB, cores: int = 20, soft_cores: int = 0) -> DeviceLimits:
    """A limit for a GPU of native/interposer/driver.c."""
    return DeviceLimits(GpuUuid(f"GPU-00000000-0000-0000-0000-{number + 1:012x}"), "", memory, cores, soft_cores)


def start_time(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])


def _near(file: Path, directory: Path) -> Path:
    """A copy where a hard link can be made from: another file system cannot."""
    if file.stat().st_dev == directory.stat().st_dev:
        return file
    copies = directory.parent / "copies"
    copies.mkdir(exist_ok=True)
    return Path(shutil.copy2(file, copies))
