"""The Pythons of this machine, one of each series: those on PATH, and those below the folder where pyenv has them.

Call it in a fixture or a test: it starts each Python that it finds. What may not be read or run is not there.
"""

import os
import shutil
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path


def pythons(series: Sequence[str]) -> list[Path]:
    """In the order of `series` (`3.11`, `3.12`), which may name Pythons that are not here."""
    return [path for each in series if (path := _python(each))]


def _python(series: str) -> Path | None:
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    candidates: list[Path] = []
    with suppress(OSError):  # the home of another user
        candidates += sorted(root.glob(f"{series}.*/bin/python{series}"))
    if on_path := shutil.which(f"python{series}"):
        candidates.append(Path(on_path))
    return next(filter(_runs, candidates), None)


def _runs(python: Path) -> bool:
    try:
        return not subprocess.run([python, "-c", ""], capture_output=True, check=False).returncode
    except OSError:
        return False
