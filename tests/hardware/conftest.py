"""Drivers for the tests: the stub, which misbehaves on order, and the emulated one."""

import subprocess
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.hardware import emulator, nvml_library
from tests.hardware.starting import Start, starting

_SOURCE = Path(__file__).parent / "stub" / "driver.c"


@dataclass(frozen=True)
class Stub:
    """Orders for the stub driver of `stub/driver.c`."""

    library: Path
    old_library: Path
    orders: Path

    def order(self, name: str, value: str | int = "") -> None:
        """Written beside and renamed: the driver must never read half an order."""
        fresh = self.orders / f".{name}"
        fresh.write_text(str(value))
        fresh.rename(self.orders / name)

    def withdraw(self, name: str) -> None:
        (self.orders / name).unlink()

    def event(self, gpu: int, *, xid: int | None = None) -> None:
        self.order("event", f"{gpu} 8 {xid}" if xid is not None else f"{gpu} 2 0")

    @property
    def event_taken(self) -> bool:
        return not (self.orders / "event").exists()

    @property
    def waits(self) -> int:
        calls = self.orders / "calls"
        return calls.stat().st_size if calls.exists() else 0

    @property
    def sets_left(self) -> list[int]:
        """How many event sets NVML still had each time that it was shut down."""
        return [int(line) for line in (self.orders / "sets").read_text().split()]


def uuid(index: int) -> str:
    """The stub's UUIDs."""
    return f"GPU-00000000-0000-0000-0000-{index:012d}"


@pytest.fixture(scope="session")
def stub_libraries(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    directory = tmp_path_factory.mktemp("stub-driver")
    built = []
    for name, flags in (("new", []), ("old", ["-DOLD"])):
        library = directory / f"{name}.so"
        command = ["gcc", "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", *flags]
        subprocess.run(
            [*command, "-Wl,-soname,libnvidia-ml.so.1", "-o", str(library), str(_SOURCE)], check=True, timeout=50
        )
        built.append(library)
    return built[0], built[1]


@pytest.fixture
def stub(stub_libraries: tuple[Path, Path], short_tmp: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stub]:
    monkeypatch.setenv("STUB_NVML", str(short_tmp))
    yield Stub(*stub_libraries, short_tmp)
    nvml_library.unmap()


@pytest.fixture(scope="session")
def emulator_build() -> Path:
    return emulator.build()


@pytest.fixture
def emulated(emulator_build: Path, short_tmp: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[emulator.Emulator]:
    one = emulator.Emulator(emulator_build, short_tmp / "profile.json")
    monkeypatch.setenv("VCUDA_EMULATOR_PROFILE", str(one.profile.with_suffix(".profile")))
    monkeypatch.setenv("VCUDA_EMULATOR_STATE", str(short_tmp / "state"))
    yield one
    nvml_library.unmap()


@pytest.fixture
async def start(stub: Stub) -> AsyncIterator[Start]:
    async with starting(stub.library, stub.orders) as begin:
        yield begin
        for order in stub.orders.glob("hang*"):
            order.unlink()
