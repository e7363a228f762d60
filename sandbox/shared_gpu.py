"""A GPU that containers share, set up as the agent does: each has its limits and sees the others' activity.

In: directories with our library and the emulated driver (or any driver). Out: containers, programs in them, their
regions. Base and shared files are made by the agent's own code; VCUDA_DIR stands in for the mount at /etc/vcuda.
Used by tests and by benchmarks/. Not here: which program, what it should get.
"""

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from deviceplugin.container import region
from deviceplugin.container.limits_file import DeviceLimits, GrantLimits, encode
from deviceplugin.container.shared_state import SharedState
from deviceplugin.ledger.grant import GrantId
from deviceplugin.model.gpu import GpuUuid
from sandbox.emulator_profile import write_profile

UUID = GpuUuid("GPU-00000000-0000-0000-0000-000000000001")
PROFILE: dict[str, Any] = {
    "format": 1,
    "name": "one GPU",
    "driver": "580.95.05",
    "cuda": "13.0",
    "models": {"gpu": {"name": "NVIDIA H100 80GB HBM3", "memory_mib": 80 * 1024, "compute_capability": "9.0"}},
    "gpus": [{"model": "gpu", "uuid": str(UUID)}],
}


@dataclass
class RunningProgram:
    """A program in a container. `with` kills what still runs."""

    process: subprocess.Popen[str]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        with self.process:
            self.process.kill()

    def result(self, timeout: float = 50) -> dict[str, Any]:
        """The last line it printed."""
        out, errors = self.process.communicate(timeout=timeout)
        if self.process.returncode != 0:
            raise AssertionError(f"{self.process.args!r} ended with {self.process.returncode}: {errors}")
        told: dict[str, Any] = json.loads(out.splitlines()[-1])
        return told

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.communicate()


@dataclass
class SharingContainer:
    """`environment`: all of what its programs get. `unlimited`: GPUs that it has whole beside the limited one."""

    base: Path
    grant: GrantId
    uuid: GpuUuid
    environment: dict[str, str]
    generation: int = 0
    unlimited: tuple[GpuUuid, ...] = ()

    def limit(self, cores: int, soft_cores: int = 0) -> None:
        """Also while it runs."""
        self.generation += 1
        limited = DeviceLimits(self.uuid, "", 8 << 30, cores, soft_cores)
        devices = (limited, *(DeviceLimits(uuid, "", 0, 100, 0) for uuid in self.unlimited))
        fresh = self.base / ".limits.new"
        fresh.write_bytes(encode(GrantLimits(self.grant, devices, self.generation)))
        fresh.replace(self.base / "limits")
        self.tell(cores, soft_cores)

    def tell(self, cores: int, soft_cores: int = 0) -> None:
        """What neighbours hear of its limits."""
        SharedState(self.base.parent).show_limits(self.grant, self.uuid, cores=cores, soft_cores=soft_cores)

    def assume(self, cores: int) -> None:
        """What neighbours take it to use, whatever its row says."""
        SharedState(self.base.parent).assume(self.grant, self.uuid, cores)

    def start(self, *command: object, **environment: str) -> RunningProgram:
        return RunningProgram(
            subprocess.Popen(
                list(map(str, command)),
                env=self.environment | environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )

    @property
    def counters(self) -> region.Counters:
        return region.read(self.base / "state/region", grant=self.grant, devices=1).counters[0]


@dataclass
class SharedGpu:
    """`ours` holds the three interposers, `driver` is the real libcuda.so.1 or the emulated one.

    `profile`: what the emulated machine has; there may be other GPUs beside `uuid`, for other containers.
    """

    root: Path
    ours: Path
    driver: Path
    uuid: GpuUuid = UUID
    environment: dict[str, str] = field(default_factory=dict)
    containers: int = 0
    profile: Mapping[str, Any] = field(default_factory=lambda: PROFILE)

    def __post_init__(self) -> None:
        self.mirror.mkdir(parents=True)
        for name in ("libcuda.so.1", "libvcuda.so.1"):
            shutil.copy2(self.ours / name, self.mirror / name)
        (self.mirror / "libcuda-real.so.1").symlink_to(self.driver)
        emulated = {
            "VCUDA_EMULATOR_PROFILE": str(write_profile(self.profile, self.root / "profile.json")),
            "VCUDA_EMULATOR_STATE": str(self.root / "state"),
        }
        self.environment = {"PATH": os.environ["PATH"]} | emulated | self.environment

    @property
    def mirror(self) -> Path:
        return self.root / "mirror"

    @property
    def native(self) -> dict[str, str]:
        """The environment of a program without us."""
        return self.environment | {"LD_LIBRARY_PATH": str(self.driver.parent)}

    def container(
        self, cores: int, soft_cores: int = 0, uuid: GpuUuid | None = None, unlimited: tuple[GpuUuid, ...] = ()
    ) -> SharingContainer:
        """`uuid`: another GPU of the machine; it is the only one that the container sees."""
        self.containers += 1
        grant = GrantId(f"g-{self.containers}")
        vm = self.root / "vm"
        used = uuid or self.uuid
        SharedState(vm).prepare(grant, [used, *unlimited])
        mount = vm / grant / "gpus" / used
        mount.rmdir()
        mount.symlink_to(vm / "gpus" / used)
        environment = self.environment | {"LD_LIBRARY_PATH": str(self.mirror), "VCUDA_DIR": str(vm / grant)}
        if uuid is not None:
            environment["CUDA_VISIBLE_DEVICES"] = uuid
        container = SharingContainer(vm / grant, grant, used, environment, unlimited=unlimited)
        container.limit(cores, soft_cores)
        return container


def shares(running: Sequence[RunningProgram]) -> list[float]:
    """What each of some workloads (library/programs/workload.c) got, in percent of the GPU."""
    return [float(one.result()["share_percent"]) for one in running]
