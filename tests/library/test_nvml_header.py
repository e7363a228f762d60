"""Our declarations of NVML say what the real header says; the emulator compiles against either."""

import re
import subprocess
import sysconfig
from pathlib import Path

import pytest

from tests.library.machine import EMULATOR, LIBRARY

pytestmark = pytest.mark.thorough

_OURS = LIBRARY / "include"
_SOURCES = sorted((EMULATOR / "nvml").glob("*.c"))
_LAYOUT = Path(__file__).parent / "native/nvml_layout.c"


def _real_header() -> Path:
    """From the wheel nvidia-nvml-dev-cu12 of the dev group; CUDA 13 has other numbers (NVML_NVLINK_MAX_LINKS)."""
    found = Path(sysconfig.get_paths()["purelib"]) / "nvidia/nvml_dev/include"
    assert (found / "nvml.h").is_file(), "the wheel nvidia-nvml-dev-cu12 is not installed: run scripts/setup"
    return found


def _names() -> list[str]:
    """Every enumerator and every number that vcuda's header defines."""
    text = re.sub(r"/\*.*?\*/", "", (_OURS / "nvml.h").read_text(), flags=re.DOTALL)
    bodies = re.findall(r"enum \w+ \{(.*?)\}", text, flags=re.DOTALL)
    enumerators = [name for body in bodies for name in re.findall(r"\bNVML_\w+", body)]
    defined = re.findall(r"^#define (NVML_\w+|nvmlEvent\w+|nvmlClocks\w+) ", text, flags=re.MULTILINE)
    return sorted({*enumerators, *defined})


def _layout(header: Path, directory: Path) -> list[str]:
    program = directory / "layout"
    flags = ["-std=c11", "-DNVML_NO_UNVERSIONED_FUNC_DEFS", f"-I{header}", f"-I{directory}", "-Wno-overflow"]
    subprocess.run(["gcc", *flags, "-o", str(program), str(_LAYOUT)], check=True, timeout=50)
    return subprocess.run([program], capture_output=True, text=True, check=True).stdout.splitlines()


def test_sizes_offsets_and_numbers_are_those_of_the_real_header(tmp_path: Path) -> None:
    names = _names()
    assert len(names) > 100
    (tmp_path / "nvml_names.inc").write_text("".join(f"N({name})\n" for name in names))
    assert _layout(_OURS, tmp_path) == _layout(_real_header(), tmp_path)


def test_every_entry_point_has_the_real_signature() -> None:
    """A definition that disagrees with the real declaration, or has none there, does not compile."""
    flags = ["-std=c11", "-D_GNU_SOURCE", "-DNVML_NO_UNVERSIONED_FUNC_DEFS", f"-I{_real_header()}", "-fsyntax-only"]
    strict = ["-Wall", "-Werror", "-Wmissing-prototypes", "-Wno-missing-field-initializers"]
    assert len(_SOURCES) > 10
    done = subprocess.run(["gcc", *flags, *strict, *_SOURCES], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_only_nvml_is_exported_and_all_of_it(build: Path) -> None:
    symbols = subprocess.run(
        ["nm", "-D", "--defined-only", str(build / "libnvidia-ml.so.1")], capture_output=True, text=True, check=True
    )
    exported = {line.split()[2] for line in symbols.stdout.splitlines()}
    declared = set(re.findall(r"\b(nvml\w+)\(", (_OURS / "nvml_functions.h").read_text()))
    assert len(declared) > 80
    assert exported == declared


def test_the_library_is_known_by_the_drivers_name(build: Path) -> None:
    dynamic = subprocess.run(
        ["readelf", "-d", str(build / "libnvidia-ml.so.1")], capture_output=True, text=True, check=True
    )
    assert re.findall(r"SONAME.*\[(.*)\]", dynamic.stdout) == ["libnvidia-ml.so.1"]
