"""Builds of native/interposer/driver.c: a libcuda.so.1 with every function of the table, or with an older driver's.

In: which driver. Out: a shared object. Its exported names are a version script made from cuda_functions.h.
"""

from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

from tests.library.compiler import SHARED, built_folder, compiled
from tests.library.cuda_declarations import rows

_SOURCES = Path(__file__).parent / "native/interposer"


@dataclass(frozen=True, slots=True)
class Driver:
    """`version`: newer functions do not exist. `distinct`: cuGetProcAddress gives other addresses than dlsym.

    `chained`: its cuGetProcAddress_v2 asks its own exported cuGetProcAddress. `newer`: a name of which this version of
    the driver brings one more function, which no table has.
    """

    version: int = 13990
    distinct: bool = False
    chained: bool = False
    newer: str = ""
    without: frozenset[str] = field(default_factory=frozenset)

    @property
    def symbols(self) -> frozenset[str]:
        return frozenset(row.symbol for row in rows() if row.version <= self.version) - self.without

    def build(self, directory: Path) -> Path:
        script = "{ global: driver_calls; driver_got; " + "; ".join(sorted(self.symbols)) + "; local: *; };"
        names = built_folder() / f"{sha256(script.encode()).hexdigest()[:16]}.map"
        names.write_text(script)
        output = directory / f"libcuda.so.{self.version}"
        defines = [f"-DDRIVER_VERSION={self.version}", f'-DWITHOUT="{" ".join(sorted(self.without))} "']
        defines += ["-DDISTINCT"] if self.distinct else []
        defines += ["-DCHAINED"] if self.chained else []
        defines += [f'-DNEWER="{self.newer}"'] if self.newer else []
        linking = ["-Wl,-soname,libcuda.so.1", f"-Wl,--version-script={names}"]
        return compiled(output, *SHARED, "-O0", *linking, *defines, *sorted(_SOURCES.glob("*.c")))
