"""The Pythons of this machine, one of each series: those on PATH, and those below the folder where pyenv has them."""

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path


def pythons(series: Sequence[str]) -> list[Path]:
    """In the order of `series` (`3.11`, `3.12`), which may name Pythons that are not here."""
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    found: dict[str, Path] = {}
    for each in series:
        on_path = shutil.which(f"python{each}")
        candidates = [*sorted(root.glob(f"{each}.*/bin/python{each}")), *([Path(on_path)] if on_path else [])]
        for path in candidates:
            if not subprocess.run([path, "-c", ""], capture_output=True, check=False).returncode:
                found[each] = path
                break
    return list(found.values())
