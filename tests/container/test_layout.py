"""Both sides of library/abi agree: what a C compiler makes of the headers is what the Python side reads and writes."""

import subprocess
from itertools import accumulate
from pathlib import Path
from struct import Struct, calcsize

import pytest

from deviceplugin.container import activity, limits_file, region
from deviceplugin.model.units import CORES_PER_GPU

NATIVE = Path(__file__).parent / "native"
ABI = Path(__file__).parents[2] / "library" / "abi"


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    program = tmp_path_factory.mktemp("layout") / "layout"
    command = ["gcc", "-std=c11", "-Wall", "-Wextra", "-Werror", f"-I{ABI}", "-o", str(program)]
    subprocess.run([*command, str(NATIVE / "layout.c")], check=True, timeout=60)
    printed = subprocess.run([str(program)], check=True, capture_output=True, text=True, timeout=10).stdout
    return dict(line.split(" ", 1) for line in printed.splitlines())


def offsets(struct: Struct, *names: str) -> dict[str, int]:
    """Where each field of a packed format begins; padding has no name."""
    fields = split(struct.format.removeprefix("<"))
    starts = [0, *accumulate(calcsize(f"<{field}") for field in fields)]
    named = [start for start, field in zip(starts, fields, strict=False) if not field.endswith("x")]
    return dict(zip(names, named, strict=True))


def split(text: str) -> list[str]:
    found, count = [], ""
    for letter in text:
        if letter.isdigit():
            count += letter
        else:
            found.append(count + letter)
            count = ""
    return found


def check(compiled: dict[str, str], type_name: str, found: dict[str, int]) -> None:
    assert {name: int(compiled[f"{type_name}.{name}"]) for name in found} == found


def test_the_limits_file(compiled: dict[str, str]) -> None:
    assert int(compiled["limits_header"]) == limits_file.HEADER.size
    assert int(compiled["limits_device"]) == limits_file.DEVICE.size
    names = ("magic", "version", "size", "device_count", "flags", "generation", "grant", "checksum")
    check(compiled, "limits_header", offsets(limits_file.HEADER, *names))
    assert int(compiled["limits_header.checksum"]) == limits_file.CHECKSUM_AT
    fields = ("uuid", "bus_id", "memory_bytes", "cores", "soft_cores")
    check(compiled, "limits_device", offsets(limits_file.DEVICE, *fields))
    assert compiled["LIMITS_MAGIC"].encode() == limits_file.MAGIC
    assert int(compiled["LIMITS_VERSION"]) == limits_file.VERSION
    assert int(compiled["LIMITS_MAX_DEVICES"]) == limits_file.MAX_DEVICES
    assert int(compiled["LIMITS_NO_CORES"]) == CORES_PER_GPU


def test_the_region(compiled: dict[str, str]) -> None:
    assert int(compiled["region"]) == region.SIZE
    assert int(compiled["region.slot_high"]) == region.HEAD.size
    assert int(compiled["region.devices"]) == region.HEADER_SIZE
    assert int(compiled["region.slots"]) == region.SLOTS_AT
    assert int(compiled["region.unknown_functions"]) == region.UNKNOWN_FUNCTIONS_AT
    check(compiled, "region", offsets(region.HEAD, "magic", "version", "size", "grant"))
    assert int(compiled["region_device"]) == region.DEVICE.size
    check(compiled, "region_device", offsets(region.DEVICE, *region.Counters.__struct_fields__))
    assert int(compiled["region_slot"]) == region.SLOT_SIZE
    assert int(compiled["region_slot.use"]) == region.SLOT.size
    check(
        compiled,
        "region_slot",
        {
            k: v
            for k, v in offsets(region.SLOT, "pid", "spare", "start_time", "pid_namespace", "claimed_ns").items()
            if k != "spare"
        },
    )
    assert int(compiled["region_use"]) == region.USE.size
    check(compiled, "region_use", offsets(region.USE, *region.Use._fields))
    assert compiled["REGION_MAGIC"].encode() == region.MAGIC
    assert int(compiled["REGION_VERSION"]) == region.VERSION
    assert int(compiled["REGION_SLOTS"]) == region.SLOTS
    assert int(compiled["LIMITS_MAX_DEVICES"]) == region.MAX_DEVICES


def test_the_activity_row(compiled: dict[str, str]) -> None:
    assert int(compiled["activity_row"]) == activity.SIZE
    assert int(compiled["activity_row.slots"]) == activity.HEADER_SIZE
    assert int(compiled["activity_slot"]) == activity.SLOT_SIZE
    assert int(compiled["activity_row.slot_high"]) == activity.HEAD.size
    assert int(compiled["activity_row.cores"]) == activity.LIMITS_AT
    assert int(compiled["activity_row.soft_cores"]) == activity.LIMITS_AT + 4
    check(compiled, "activity_row", offsets(activity.HEAD, "magic", "version", "size", "grant"))
    assert compiled["ACTIVITY_MAGIC"].encode() == activity.MAGIC
    assert int(compiled["ACTIVITY_VERSION"]) == activity.VERSION
    assert int(compiled["ACTIVITY_RING"]) == activity.RING
    assert int(compiled["REGION_SLOTS"]) == activity.SLOTS
