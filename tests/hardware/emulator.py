"""The emulated driver, in this process and at the end of its command."""

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path

from sandbox.emulator_profile import write_profile
from tests.hardware.profiles import Profile

REPOSITORY = Path(__file__).parents[2]
SHIPPED = sorted((REPOSITORY / "emulator/profiles").glob("*.json"))


@dataclass(frozen=True)
class Emulator:
    """One emulated node; the environment says which profile and state are meant."""

    build: Path
    profile: Path

    @property
    def library(self) -> Path:
        return self.build / "libnvidia-ml.so.1"

    def describe(self, profile: Profile | Path) -> None:
        """Which node is emulated; before the first call of NVML."""
        write_profile(json.loads(profile.read_text()) if isinstance(profile, Path) else profile, self.profile)

    def command(self, *words: str | int) -> str:
        """`vcuda-emulator WORDS`, from another process, as an operator would."""
        done = self._run(*words)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def refused(self, *words: str | int) -> str:
        """Why the command cannot be carried out."""
        done = self._run(*words)
        assert done.returncode == 1, done.stdout
        return done.stderr

    def _run(self, *words: str | int) -> subprocess.CompletedProcess[str]:
        command = [str(self.build / "vcuda-emulator"), *map(str, words)]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def build() -> Path:
    """Quick where nothing changed."""
    subprocess.run(["make", "--silent", "-C", str(REPOSITORY / "emulator")], check=True, timeout=55)
    return REPOSITORY / "emulator/build"
