"""Pythons with packages that are too large for everybody's .venv.

In: a locked requirements file. Out: an interpreter that has them, installed beside the builds at the first call. What
an older lock had is removed then.
"""

import shutil
import subprocess
import sys
from hashlib import sha256
from pathlib import Path

from tests.library.compiler import alone
from tests.library.machine import LIBRARY


def python_with(lock: Path) -> Path:
    digest = sha256(lock.read_bytes() + sys.version.encode()).hexdigest()[:16]
    folder = LIBRARY / "build/clients" / f"{lock.stem}-{digest}"
    python, uv = folder / "bin/python", str(Path(sys.executable).with_name("uv"))
    with alone(folder.with_suffix(".lock")):
        if not (folder / ".complete").exists():
            for older in folder.parent.glob(f"{lock.stem}-*/"):
                shutil.rmtree(older)
            subprocess.run([uv, "venv", "--quiet", "--clear", "--python", sys.executable, folder], check=True)
            install = [uv, "pip", "sync", "--quiet", "--require-hashes", "--python", str(python), str(lock)]
            subprocess.run(install, check=True)
            (folder / ".complete").touch()
    return python
