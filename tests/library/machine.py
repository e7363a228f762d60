"""One emulated machine of a test: its profile, its state, its command, and processes that look at it through NVML."""

import json
import os
import subprocess
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sandbox.emulator_profile import compile_profile
from tests.library.nvml_client import Handle, Nvml

REPOSITORY = Path(__file__).parents[2]
LIBRARY = REPOSITORY / "library"
EMULATOR = REPOSITORY / "emulator"
PROFILES = EMULATOR / "profiles"

Profile = dict[str, Any]


def shipped(name: str) -> Profile:
    profile: Profile = json.loads((PROFILES / f"{name}.json").read_text())
    return profile


@dataclass
class Machine:
    """`with` closes the processes; the state lies in `directory`."""

    build: Path
    directory: Path
    processes: ExitStack
    preload: str = ""

    @property
    def profile(self) -> Path:
        """What the driver reads."""
        return self.directory / "machine.profile"

    @property
    def state(self) -> Path:
        return self.directory / "state"

    @property
    def errors(self) -> Path:
        """Where the stderr of its NVML processes goes."""
        return self.directory / "errors"

    @property
    def environment(self) -> dict[str, str]:
        mine = {"VCUDA_EMULATOR_PROFILE": str(self.profile), "VCUDA_EMULATOR_STATE": str(self.state)}
        if self.preload:
            mine |= {"LD_PRELOAD": self.preload, "ASAN_OPTIONS": "detect_leaks=0"}
        return {key: value for key, value in os.environ.items() if not key.startswith("VCUDA_EMULATOR")} | mine

    def describe(self, profile: Profile | str) -> None:
        """Which machine it is: a profile, or the name of one that is shipped."""
        self.profile.write_bytes(compile_profile(json.dumps(shipped(profile) if isinstance(profile, str) else profile)))

    def nvml(self, profile: Profile | str | None = None, **environment: str) -> Nvml:
        """A process; the machine is described before, where a profile is given."""
        if profile is not None:
            self.describe(profile)
        library = self.build / "libnvidia-ml.so.1"
        return self.processes.enter_context(Nvml(library, self.environment | environment, self.errors))

    def first_gpu(self, profile: Profile | str) -> tuple[Nvml, Handle]:
        """As `nvml` sees it."""
        nvml = self.nvml(profile)
        return nvml, nvml.devices()[0]

    def run(self, *words: object) -> subprocess.CompletedProcess[str]:
        command = [str(self.build / "vcuda-emulator"), *map(str, words)]
        return subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=20, check=False)

    def command(self, *words: object) -> str:
        done = self.run(*words)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def show(self) -> dict[str, Any]:
        shown: dict[str, Any] = json.loads(self.command("show", "--json"))
        return shown
