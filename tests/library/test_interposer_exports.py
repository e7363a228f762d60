"""The three objects as the loader sees them: names, dependencies, and what runs before the first call."""

import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest
from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile
from elftools.elf.gnuversions import GNUVerNeedSection
from elftools.elf.sections import SymbolTableSection

from tests.library.cuda_declarations import rows
from tests.library.interposed import Container
from tests.library.machine import LIBRARY, REPOSITORY

CUDA, NVML, STATE = "libcuda.so.1", "libnvidia-ml.so.1", "libvcuda.so.1"
OBJECTS = (CUDA, NVML, STATE)
ARCHITECTURES = ("x86_64", "aarch64")
_OF_C = {"libc.so.6", "libdl.so.2", "libpthread.so.0", "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"}
_NODELETE, _NOW = 0x8, 0x1


@dataclass(frozen=True, slots=True)
class Elf:
    """What readelf would say."""

    machine: str
    exported: frozenset[str]
    entries: dict[str, list[str | int]]
    glibc: frozenset[tuple[int, ...]]
    initial: int
    thread_local: int


def read(path: Path) -> Elf:
    with path.open("rb") as file:
        elf = ELFFile(file)
        symbols = elf.get_section_by_name(".dynsym")
        dynamic = elf.get_section_by_name(".dynamic")
        needs = elf.get_section_by_name(".gnu.version_r")
        begin = elf.get_section_by_name(".init_array")
        assert isinstance(symbols, SymbolTableSection)
        assert isinstance(dynamic, DynamicSection)
        assert isinstance(needs, GNUVerNeedSection)
        entries: dict[str, list[str | int]] = {}
        for tag in dynamic.iter_tags():
            value = next(
                (getattr(tag, name) for name in ("needed", "soname", "runpath") if hasattr(tag, name)), tag.entry.d_val
            )
            entries.setdefault(tag.entry.d_tag, []).append(value)
        names = [version.name for _, versions in needs.iter_versions() for version in versions]
        return Elf(
            machine=elf.get_machine_arch(),
            exported=frozenset(symbol.name for symbol in symbols.iter_symbols() if symbol["st_shndx"] != "SHN_UNDEF"),
            entries=entries,
            glibc=frozenset(tuple(map(int, name[6:].split("."))) for name in names if name.startswith("GLIBC_")),
            initial=begin["sh_size"] // 8 if begin is not None else 0,
            thread_local=sum(segment["p_memsz"] for segment in elf.iter_segments("PT_TLS")),
        )


def hooks(*files: str) -> frozenset[str]:
    text = "".join(path.read_text() for file in files for path in (LIBRARY / "interposer").glob(file))
    return frozenset(re.findall(r"^HOOK\((\w+)\)", text, flags=re.MULTILINE))


@pytest.fixture(scope="session")
def released() -> Path:
    """Two builds at once, because each process of pytest-xdist makes one: the second waits for the first."""
    builds = [subprocess.Popen([REPOSITORY / "scripts/library"], stdout=subprocess.DEVNULL) for _ in range(2)]
    assert [build.wait(timeout=1200) for build in builds] == [0, 0]
    return LIBRARY / "build/release"


_RELEASED = [pytest.param(each, marks=pytest.mark.thorough) for each in ARCHITECTURES]


@pytest.fixture(scope="session", params=["built here", *_RELEASED])
def directory(request: pytest.FixtureRequest, interposers: Path) -> Path:
    if request.param == "built here":
        return interposers
    released: Path = request.getfixturevalue("released")
    return released / str(request.param)


def test_nothing_but_hooks_and_our_own_interface_is_exported(directory: Path) -> None:
    assert read(directory / CUDA).exported == hooks("cuda/hooks_*.def")
    assert read(directory / NVML).exported == hooks("nvml/hooks.def")
    assert {name for name in read(directory / STATE).exported if not name.startswith("vcuda_")} == set()


def test_each_is_found_as_the_driver_is_and_needs_the_driver_by_its_alias(directory: Path) -> None:
    needed = {CUDA: {"libcuda-real.so.1", STATE}, NVML: {"libnvidia-ml-real.so.1", STATE}, STATE: set()}
    for name in OBJECTS:
        entries = read(directory / name).entries
        assert entries["DT_SONAME"] == [name]
        assert entries["DT_RUNPATH"] == ["$ORIGIN"]
        assert "DT_RPATH" not in entries
        assert set(entries["DT_NEEDED"]) - _OF_C == needed[name]
        (flags,) = entries["DT_FLAGS_1"]
        assert isinstance(flags, int)
        assert flags & (_NODELETE | _NOW) == _NODELETE | _NOW


def test_nothing_but_what_hides_functions_runs_when_it_is_loaded(directory: Path, interposers: Path) -> None:
    """gcc's own start file brings one entry; zig's brings none."""
    for name in OBJECTS:
        elf = read(directory / name)
        assert elf.initial == (1 if directory == interposers else 0) + (name != STATE)
        assert "DT_PREINIT_ARRAY" not in elf.entries
    texts = [path.read_text() for path in (LIBRARY / "interposer").rglob("*.[ch]")]
    begun = re.findall(r"\(\(constructor.*\n\{\n +(\w+)\(.*\n\}\n", "".join(texts))
    assert begun == ["vcuda_hide_what_is_lacking"] * "".join(texts).count("((constructor")
    assert len(begun) == 2


def test_little_is_asked_of_the_static_part_of_thread_local_storage(directory: Path) -> None:
    """glibc keeps some hundred bytes of it for libraries opened later; without them the interposer's dlopen fails."""
    for name in OBJECTS:
        assert read(directory / name).thread_local <= 64


@pytest.mark.thorough
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_release_runs_on_a_glibc_of_2_17(released: Path, architecture: str) -> None:
    machines = {"x86_64": "x64", "aarch64": "AArch64"}
    for name in OBJECTS:
        elf = read(released / architecture / name)
        assert elf.machine == machines[architecture]
        assert max(elf.glibc) <= (2, 17)


def test_every_hook_is_a_function_of_the_table_and_is_hooked_once() -> None:
    files = sorted((LIBRARY / "interposer/cuda").glob("hooks_*.def"))
    names = [name for path in files for name in re.findall(r"^HOOK\((\w+)\)", path.read_text(), flags=re.MULTILINE)]
    assert len(names) == len(set(names))
    assert set(names) <= {row.symbol for row in rows()}


def test_functions_without_a_hook_are_the_drivers_through_the_interposer(emulated: Container) -> None:
    ours = hooks("cuda/hooks_*.def")
    found = emulated.run("resolved", CUDA, *(row.symbol for row in rows())).value
    assert {symbol for symbol, (file, _) in found.items() if not file} == set()
    assert {symbol for symbol, (file, _) in found.items() if file == CUDA} == ours


def test_nvml_likewise(emulated: Container) -> None:
    text = (LIBRARY / "include/nvml_functions.h").read_text()
    names = re.findall(r"^(?:nvmlReturn_t|const char \*)\s*(nvml\w+)\(", text, flags=re.MULTILINE)
    found = emulated.run("resolved", NVML, *names).value
    assert len(found) > 80
    assert {symbol for symbol, (file, _) in found.items() if not file} == set()
    ours = {symbol for symbol, (file, name) in found.items() if file == NVML and name in hooks("nvml/hooks.def")}
    assert ours == hooks("nvml/hooks.def") & set(names)
