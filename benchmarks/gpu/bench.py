"""The tools of a check: native processes, containers with limits, and programs to run in them.

In: the driver, the built library, a scratch directory. Out: processes, each with its own environment. The agent's code
(deviceplugin.container) makes base directories and shared files; VCUDA_DIR replaces the mount at /etc/vcuda. Not here:
what is measured (`checks`).
"""

import json
import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.gpu.build import REPOSITORY
from benchmarks.gpu.driver import Device, Driver
from deviceplugin.container import region
from deviceplugin.container.limits_file import DeviceLimits, GrantLimits, encode
from deviceplugin.container.shared_state import SharedState
from deviceplugin.ledger.grant import GrantId
from deviceplugin.model.gpu import GpuUuid

Process = subprocess.Popen[str]
_KEPT = ("PATH", "HOME", "TMPDIR", "LANG", "USER", "CUDA_HOME", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")


class ProgramFailed(Exception):  # noqa: N818 - a fact about the program
    """A program of a check failed; the message has the end of its stderr."""


@dataclass(frozen=True, slots=True)
class Environment:
    """Where a process runs: natively or in a container."""

    variables: dict[str, str]

    def start(self, *command: object, **more: str) -> Process:
        return subprocess.Popen(
            list(map(str, command)),
            env=self.variables | more,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *command: object, timeout: float = 300, **more: str) -> Any:  # noqa: ANN401 - JSON
        """The JSON in its last line."""
        with killed_at_end(self.start(*command, **more)) as process:
            out, errors = process.communicate(timeout=timeout)
        if process.returncode != 0 or not out.strip():
            tail = errors.strip()[-400:] or "nothing on stderr"
            raise ProgramFailed(f"{Path(str(command[0])).name} ended with {process.returncode}: {tail}")
        return json.loads(out.splitlines()[-1])


@dataclass(frozen=True, slots=True)
class Container(Environment):
    """A container with its limits; `base` replaces its /etc/vcuda."""

    base: Path
    grant: GrantId
    device: Device

    def limit(self, *, memory: int, cores: int, soft: int = 0, generation: int = 1) -> None:
        limits = DeviceLimits(GpuUuid(self.device.uuid), self.device.bus_id, memory, cores, soft)
        fresh = self.base / ".limits.new"
        fresh.write_bytes(encode(GrantLimits(self.grant, (limits,), generation)))
        fresh.replace(self.base / "limits")

    def counters(self) -> region.Counters:
        return region.read(self.base / "state/region", grant=self.grant, devices=1).counters[0]

    def slots(self) -> tuple[region.ProcessSlot, ...]:
        return tuple(s for s in region.read(self.base / "state/region", grant=self.grant, devices=1).slots if s.pid)


@dataclass(frozen=True, slots=True)
class Bench:
    """The settings of a run; sent to the process of each check as JSON."""

    scratch: Path
    driver: Driver
    quick: bool
    window_s: float
    repeats: int
    torch_python: str
    round_ps: int

    @property
    def device(self) -> Device:
        return self.driver.devices[0]

    def program(self, name: str) -> Path:
        return self.scratch / "programs" / name

    def native(self) -> Environment:
        return Environment(self._variables("native"))

    def container(self, *, memory: int = 0, cores: int = 100, soft: int = 0, among: Path | None = None) -> Container:
        """A new container. `among`: containers with the same path share the activity table of the GPU."""
        root = among or Path(tempfile.mkdtemp(prefix="c", dir=self.scratch))
        root.mkdir(exist_ok=True)
        grant = GrantId(f"g-{sum(1 for _ in root.glob('g-*')) + 1}")
        SharedState(root).prepare(grant, [GpuUuid(self.device.uuid)])
        base = root / grant
        seen = base / "gpus" / self.device.uuid
        seen.rmdir()
        seen.symlink_to(root / "gpus" / self.device.uuid)
        variables = self._variables("ours") | {"VCUDA_DIR": str(base)}
        made = Container(variables, base, grant, self.device)
        made.limit(memory=memory, cores=cores, soft=soft)
        return made

    def unlimited(self) -> Environment:
        """With the interposer, and without any base directory."""
        return Environment(self._variables("ours") | {"VCUDA_DIR": str(self.scratch / "nowhere")})

    def as_json(self) -> dict[str, Any]:
        return asdict(self) | {"scratch": str(self.scratch)}

    @classmethod
    def of_json(cls, data: dict[str, Any]) -> "Bench":
        return cls(**data | {"scratch": Path(data["scratch"]), "driver": Driver.of_json(data["driver"])})

    def _variables(self, directory: str) -> dict[str, str]:
        kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
        path = str(self.scratch / directory)
        if not self.driver.emulated and os.environ.get("LD_LIBRARY_PATH"):
            path += f":{os.environ['LD_LIBRARY_PATH']}"
        python_path = os.pathsep.join(filter(None, (str(REPOSITORY), os.environ.get("PYTHONPATH"))))
        own = {"LD_LIBRARY_PATH": path, "CUDA_VISIBLE_DEVICES": self.device.uuid, "PYTHONPATH": python_path}
        return kept | self.driver.environment | own


@contextmanager
def killed_at_end(process: Process) -> Iterator[Process]:
    try:
        yield process
    finally:
        process.kill()
        process.communicate()
