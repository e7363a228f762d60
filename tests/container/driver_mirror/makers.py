"""Libraries as the search would find them, for tests of what comes after it."""

from collections.abc import Sequence
from pathlib import Path

from deviceplugin.container.driver_mirror.elf import Elf
from deviceplugin.container.driver_mirror.search import DriverFile, DriverLibrary


def library(
    name: str,
    soname: str = "",
    *,
    at: str = "/usr/lib64",
    links: Sequence[str] = (),
    needed: Sequence[str] = (),
    bits: int = 64,
    abi: tuple[int, int, int] | None = None,
) -> DriverLibrary:
    """One of an x86_64 node; its identity is its path."""
    elf = Elf(bits, "EM_X86_64" if bits == 64 else "EM_386", soname, tuple(needed), abi)
    return DriverLibrary(DriverFile(Path(at, name), f"{at}/{name}"), (name, *links), bits, elf)
