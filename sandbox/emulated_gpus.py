"""The emulated GPUs of a node.

In: a profile (JSON) and the path of its shared state. Out: the environment that makes a
process see these GPUs, and commands that change them while it runs.
Not here: how the emulation works. Invariant: every expectation about the GPUs comes from the profile.
"""

import json
import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sandbox.driver_root import DriverRoot, make_driver_root

REPOSITORY = Path(__file__).parents[1]
BUILT = REPOSITORY / "emulator/build"
INTERPOSERS = REPOSITORY / "library/build/interposer"
PROGRAMS = REPOSITORY / "library/build/programs"
PROFILES = REPOSITORY / "emulator/profiles"
BLOCK_MIB = 256
Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class EmulatedGpus:
    """GPUs of one profile with a state of their own."""

    profile: Path
    state: Path

    @property
    def environment(self) -> Mapping[str, str]:
        return {
            "LD_LIBRARY_PATH": str(BUILT),
            "VCUDA_EMULATOR_PROFILE": str(self.compiled),
            "VCUDA_EMULATOR_STATE": str(self.state),
        }

    @property
    def compiled(self) -> Path:
        """What the driver reads: the build compiles PROFILES, `sandbox.emulator_profile.write_profile` any other."""
        folder = BUILT / "profiles" if self.profile.parent == PROFILES else self.profile.parent
        return folder / f"{self.profile.stem}.profile"

    def command(self, *words: str | int) -> str:
        """`vcuda-emulator WORDS`, from another process, as an operator would."""
        done = subprocess.run(
            [BUILT / "vcuda-emulator", *map(str, words)],
            env={**os.environ, **self.environment},
            capture_output=True,
            text=True,
            timeout=20,
            check=False,
        )
        assert done.returncode == 0, f"vcuda-emulator {words}: {done.stderr.strip() or done.stdout.strip()}"
        return done.stdout

    def lose(self, gpu: int) -> None:
        """The GPU falls off the bus."""
        self.command("lose", gpu)

    def install(self, root: Path) -> DriverRoot:
        """Installs the driver's files, with the emulated libraries, below a node's root directory."""
        objects = {path.name: path for path in BUILT.glob("*.so.1")}
        return make_driver_root(root, self.driver, objects=objects)

    @property
    def driver(self) -> str:
        """The driver version that NVML reports."""
        version: str = self._document()["driver"]
        return version

    def minors(self) -> list[int]:
        """The minor of every GPU, in the order of the profile."""
        return [gpu.get("minor", place) for place, gpu in enumerate(self._document()["gpus"])]

    def _document(self) -> Json:
        document: Json = json.loads(self.profile.read_text())
        return document
