"""cuGetProcAddress through the interposer: the driver chooses; hooked functions become the interposer's."""

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from deviceplugin.container import region
from tests.library.cuda_declarations import Row, rows
from tests.library.driver import Driver
from tests.library.interposed import GIB, GRANT, Container, device
from tests.library.machine import LIBRARY
from tests.library.test_interposer_loading import program

VERSIONS = (2000, 3020, 7000, 11000, 11030, 12000, 12080, 13000)
FLAGS = (0, 1, 2)
OURS = "libcuda.so.1"
FULL = Driver()
OTHER_ADDRESSES = Driver(distinct=True)
CUDA_11_4 = Driver(version=11040)
CUDA_11_2 = Driver(version=11020)
CUDA_9 = Driver(version=9000)
CHAINED = Driver(chained=True)
LOST = Driver(without=frozenset({"cuMemGetInfo_v2", "cuCtxCreate_v3", "cuGetProcAddress_v2"}))
MakeContainer = Callable[[Driver], Container]


def hooked() -> frozenset[str]:
    text = "".join(path.read_text() for path in (LIBRARY / "interposer/cuda").glob("hooks_*.def"))
    return frozenset(re.findall(r"^HOOK\((\w+)\)", text, flags=re.MULTILINE))


def by_base() -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = {}
    for row in rows():
        found.setdefault(row.base, []).append(row)
    return found


def expected(variants: list[Row], version: int, flag: int) -> str:
    """The symbol that a driver with these variants chooses; "" for none."""
    fitting = [row for row in variants if row.version <= version]
    fitting = [row for row in fitting if row.stream == "L" or flag == 2]
    return max(fitting, key=lambda row: (row.stream == "T", row.version)).symbol if fitting else ""


def unknown_functions(container: Container) -> int:
    return region.read(container.region_file, grant=GRANT, devices=1).unknown_functions


@pytest.fixture
def on(interposers: Path, build: Path, drivers: Callable[[Driver], Path], short_tmp: Path) -> MakeContainer:
    def make(driver: Driver) -> Container:
        return Container(short_tmp / "c", interposers, drivers(driver), build / "libnvidia-ml.so.1")

    return make


@pytest.mark.parametrize(
    ("driver", "function"),
    [
        (FULL, "cuGetProcAddress_v2"),
        (FULL, "cuGetProcAddress"),
        (OTHER_ADDRESSES, "cuGetProcAddress_v2"),
        (OTHER_ADDRESSES, "cuGetProcAddress"),
        (CUDA_11_4, "cuGetProcAddress"),
    ],
    ids=["v2", "v1", "v2 with other addresses", "v1 with other addresses", "11.4"],
)
def test_every_function_of_every_version_and_flag_is_the_hook_or_the_driver(
    on: MakeContainer, driver: Driver, function: str
) -> None:
    variants, hooks = by_base(), hooked()
    answers = on(driver).run("getproc", function, sorted(variants), VERSIONS, FLAGS).value
    assert len(answers) == len(variants) * len(VERSIONS) * len(FLAGS)
    routed = set()
    for base, version, flag, ours, real in answers:
        wanted = expected(variants[base], version, flag) if version <= driver.version else ""
        assert ours[:2] == real[:2], (base, version, flag)
        if base == "cuGetProcAddress" and wanted:
            assert ours[2:4] == [OURS, wanted], (version, flag)
        elif wanted in hooks:
            assert ours[2:4] == [OURS, wanted], (base, version, flag)
            routed.add(wanted)
        else:
            assert ours[4] == real[4], (base, version, flag)
    assert routed >= {"cuInit", "cuMemGetInfo_v2", "cuDeviceTotalMem", "cuCtxDestroy_v2"}


@pytest.mark.parametrize(
    "driver", [FULL, OTHER_ADDRESSES, CUDA_11_4, LOST], ids=["full", "other addresses", "11.4", "with gaps"]
)
def test_no_function_of_the_table_passes_for_one_of_a_newer_driver(on: MakeContainer, driver: Driver) -> None:
    container = on(driver)
    container.grant(device(0))
    outcome = container.run("getproc", "cuGetProcAddress", sorted(by_base()), VERSIONS, FLAGS)
    assert outcome.errors == ""
    assert unknown_functions(container) == 0


@pytest.mark.parametrize("name", ["cuMemCreate", "cuLaunchKernelEx"])
def test_a_version_that_the_library_does_not_know_is_counted_and_told(on: MakeContainer, name: str) -> None:
    """Library D15: a driver that brings cuMemCreate_v2 gives it to the program, and nothing limits it."""
    container = on(Driver(version=14000, newer=name))
    container.grant(device(0))
    questions = ("cuGetProcAddress_v2", [name, "cuMemAlloc", "cuStreamQuery"], (1000, 13000, 14000), (0,))
    outcome = container.run("getproc", *questions)
    assert re.fullmatch(rf"vcuda: the driver's {name} for CUDA 14.0 is newer than .*\n", outcome.errors)
    assert unknown_functions(container) == 1
    answers = {(base, version): (ours, real) for base, version, _, ours, real in outcome.value}
    ours, real = answers[name, 14000]
    assert ours == real
    assert answers[name, 13000][0][2] == OURS


def test_without_limits_a_newer_driver_is_nobodys_business(on: MakeContainer) -> None:
    outcome = on(Driver(version=14000, newer="cuMemCreate")).run(
        "getproc", "cuGetProcAddress_v2", ["cuMemCreate"], (14000,), (0,)
    )
    assert outcome.errors == ""


def test_a_function_that_the_driver_lacks_is_not_offered_and_its_older_variant_keeps_its_signature(
    on: MakeContainer,
) -> None:
    """The driver answers with another variant; taking that for the missing one would call it with other arguments."""
    container = on(LOST)
    answers = container.run("getproc", "cuGetProcAddress", ["cuCtxCreate", "cuMemGetInfo"], VERSIONS, FLAGS).value
    found = {(base, version): tuple(ours[2:4]) for base, version, _, ours, _ in answers}
    assert found["cuCtxCreate", 11030] == (OURS, "cuCtxCreate_v2")
    assert found["cuCtxCreate", 13000] == (OURS, "cuCtxCreate_v4")
    assert found["cuMemGetInfo", 13000] == (OURS, "cuMemGetInfo")


@pytest.mark.parametrize(
    "driver", [FULL, CUDA_11_2, CUDA_9, LOST], ids=["full", "11.2", "9.0, before cuGetProcAddress", "with gaps"]
)
def test_a_hook_is_visible_where_the_driver_has_the_function_and_nowhere_else(
    on: MakeContainer, driver: Driver
) -> None:
    """A runtime that asks the linker which functions there are is answered as by the driver alone."""
    found = on(driver).run("resolved", OURS, *(row.symbol for row in rows())).value
    assert {symbol for symbol, (file, _) in found.items() if file} == driver.symbols
    assert {symbol for symbol, (file, _) in found.items() if file == OURS} == hooked() & driver.symbols


def test_opening_the_library_leaves_no_error_of_the_linker_behind(on: MakeContainer) -> None:
    assert on(CUDA_9).run("error_after_opening", OURS).value == ""


@pytest.mark.parametrize(("linking", "with_ours"), [("lazy", "undefined symbol: cuCtxCreate_v4"), ("now", "500")])
def test_a_program_linked_to_a_function_that_the_driver_lacks(
    on: MakeContainer, drivers: Callable[[Driver], Path], short_tmp: Path, linking: str, with_ours: str
) -> None:
    """One that resolves all names at its start has bound ours before anything of ours runs: it hears "not found"."""
    container = on(CUDA_11_2)
    newer = program(short_tmp, "newer.c", str(drivers(FULL)), f"-Wl,-z,{linking}")
    real = short_tmp / "real"
    real.mkdir()
    (real / OURS).symlink_to(container.cuda)
    said = {}
    for directory in (container.driver, real):
        with container.start_program(newer, LD_LIBRARY_PATH=str(directory)) as process:
            said[directory] = "".join(process.communicate(timeout=20))
    assert with_ours in said[container.driver]
    assert "undefined symbol: cuCtxCreate_v4" in said[real]


@pytest.mark.parametrize(
    "driver", [FULL, OTHER_ADDRESSES, CHAINED], ids=["one address", "other addresses", "through its own export"]
)
def test_asking_for_itself_gives_the_function_with_the_right_number_of_arguments(
    on: MakeContainer, driver: Driver
) -> None:
    chain = on(driver).run("chained_getproc").value
    assert chain == [[OURS, "cuGetProcAddress"], [OURS, "cuGetProcAddress_v2"], [OURS, "cuMemGetInfo_v2"]]


def test_questions_with_null_are_answered_by_the_driver(on: MakeContainer) -> None:
    answers = on(FULL).run("getproc_nulls").value
    assert [ours for ours, _ in answers] == [real for _, real in answers]
    assert [ours for ours, _ in answers] == [1, 1, 1, 1, 0, 0]


def test_lookups_during_the_driver_start_get_the_hooks_too(on: MakeContainer) -> None:
    """An injected library has its pointers from there and keeps them."""
    assert on(FULL).run("got_by_the_driver").value == [OURS, "cuMemGetInfo_v2"]


def test_of_two_functions_at_one_address_the_hooked_one_answers(short_tmp: Path) -> None:
    routing = program(short_tmp, "../route_folded.c")
    done = subprocess.run([routing], capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, done.stdout) == (0, "right\n")


def test_a_driver_that_calls_its_own_exports_does_not_meet_our_hooks(on: MakeContainer) -> None:
    container = on(FULL)
    container.grant(device(0, memory=2 * GIB))
    driver_heard, program_heard = container.run("nested_view").value
    assert (driver_heard, program_heard) == (80 * GIB, 2 * GIB)
