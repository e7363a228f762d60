"""The emulated GPUs under the agent.

In: a profile of library/emulator/profiles and where its shared state shall lie. Out: the environment that makes a
process see these GPUs, and commands that change them while it runs.
Not here: how the emulation works. Invariant: what the tests expect of the GPUs is read from the profile itself.
"""

import json
import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[3]
BUILT = REPOSITORY / "library" / "build" / "emulator"
PROFILES = REPOSITORY / "library" / "emulator" / "profiles"
BLOCK_MIB = 256


@dataclass(frozen=True, slots=True)
class EmulatedGpus:
    """GPUs of one profile with a state of their own."""

    profile: Path
    state: Path

    @property
    def environment(self) -> Mapping[str, str]:
        return {
            "LD_LIBRARY_PATH": str(BUILT),
            "VCUDA_EMULATOR_PROFILE": str(self.profile),
            "VCUDA_EMULATOR_STATE": str(self.state),
        }

    def command(self, *arguments: str) -> str:
        done = subprocess.run(
            [str(BUILT / "vcuda-emulator"), *arguments],
            env={**os.environ, **self.environment},
            capture_output=True,
            text=True,
            timeout=20,
            check=False,
        )
        if done.returncode:
            pytest.fail(f"vcuda-emulator {' '.join(arguments)}: {done.stderr.strip() or done.stdout.strip()}")
        return done.stdout

    def lose(self, gpu: int) -> None:
        """The GPU falls off the bus."""
        self.command("lose", str(gpu))

    def blocks_of_each(self) -> list[int]:
        """What each GPU can give out, in blocks of 256 MiB, whole ones only."""
        document = json.loads(self.profile.read_text())
        return [_memory_mib(gpu, document["models"]) // BLOCK_MIB for gpu in document["gpus"]]


def _memory_mib(gpu: Mapping[str, object], models: Mapping[str, Mapping[str, object]]) -> int:
    memory = gpu.get("memory_mib", models[str(gpu["model"])]["memory_mib"])
    if not isinstance(memory, int):
        raise TypeError(f"memory_mib {memory!r} of the profile is no whole number")
    return memory
