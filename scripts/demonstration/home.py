"""The directory in which one half lives: short, because a unix socket's path has 107 bytes at most.

In: what must have been built. Out: a fresh directory, of which nothing is left afterwards.
"""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sandbox import emulated_gpus
from scripts.demonstration.failure import DemoError

LONGEST_ROOT = 40  # leaves room for the sockets below it


@contextmanager
def temporary_home(*, keep: bool) -> Iterator[Path]:
    check_built()
    base = tempfile.gettempdir()
    home = Path(tempfile.mkdtemp(prefix="vcuda-demo-", dir=base if len(base) < LONGEST_ROOT else "/tmp"))
    try:
        yield home
    finally:
        if not keep:
            shutil.rmtree(home, ignore_errors=True)


def check_built() -> None:
    needed = {
        "the emulated driver": emulated_gpus.BUILT / "libcuda.so.1",
        "vcuda's library": emulated_gpus.INTERPOSERS / "libcuda.so.1",
        "the greedy program": emulated_gpus.PROGRAMS / "slice",
    }
    for what, path in needed.items():
        if not path.exists():
            raise DemoError(f"{what} is not built; run scripts/setup")
