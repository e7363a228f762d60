"""The layers of library/interposer/state: a file calls those of the layers below its own, and no others.

In: the list of layers in internal.h, and the symbols that the compiled files define and use (nm). Out: each call that
does not go down. A call through a pointer uses no symbol: what is registered with a lower layer is not counted.
"""

import re
import subprocess
from collections.abc import Iterable
from pathlib import Path

from tests.library.compiler import compiled
from tests.library.machine import LIBRARY

STATE = LIBRARY / "interposer/state"
_LAYER = re.compile(r"^ \* {5}(\w+(?:, \w+)*)$", re.MULTILINE)


def layers() -> list[list[str]]:
    """The lowest first."""
    listed = _LAYER.findall((STATE / "internal.h").read_text())
    return [names.split(", ") for names in reversed(listed)]


def files() -> list[str]:
    return sorted(path.stem for path in STATE.glob("*.c"))


def objects(interposers: Path) -> list[Path]:
    """Of the files that are there now: those of removed files may lie beside them."""
    return [interposers.parent / f"objects/interposer/state/{name}.o" for name in files()]


def symbols(file: Path, which: str) -> set[str]:
    command = ["nm", "--format=just-symbols", "--extern-only", which, str(file)]
    return set(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split())


def calls(compiled_files: Iterable[Path]) -> set[tuple[str, str]]:
    """Who uses a function or variable of whom."""
    paths = list(compiled_files)
    owners = {symbol: path.stem for path in paths for symbol in symbols(path, "--defined-only")}
    used = {(path.stem, owners.get(symbol)) for path in paths for symbol in symbols(path, "--undefined-only")}
    return {(caller, owner) for caller, owner in used if owner is not None}


def not_down(found: set[tuple[str, str]], order: list[list[str]]) -> set[tuple[str, str]]:
    height = {name: layer for layer, names in enumerate(order) for name in names}
    return {(caller, called) for caller, called in found if height[called] >= height[caller]}


def test_every_file_is_in_one_layer() -> None:
    assert sorted(name for names in layers() for name in names) == files()


def test_a_file_calls_only_those_of_lower_layers(interposers: Path) -> None:
    assert not_down(calls(objects(interposers)), layers()) == set()


def test_a_call_up_and_a_call_across_are_found(interposers: Path, short_tmp: Path) -> None:
    """Of a file that stands in the lowest layer, beside process.c."""
    source = short_tmp / "added.c"
    source.write_text(
        '#include "interposer/state/internal.h"\n'
        "uint64_t added(void);\n"
        "uint64_t added(void) { return process_namespace() + (uint64_t)vcuda_slot_number(); }\n"
    )
    added = compiled(short_tmp / "added.o", "-c", source)
    lowest, *higher = layers()
    found = not_down(calls([*objects(interposers), added]), [[*lowest, "added"], *higher])
    assert {called for caller, called in found if caller == "added"} == {"process", "slot"}
