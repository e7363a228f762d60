"""A driver's file of any bytes: a ParseError of one sentence, or facts, and neither takes long."""

import os
from pathlib import Path

from tests.container.fuzz.harness import check_sentence, instrumented, run

with instrumented("elftools"):
    from deviceplugin.container.driver_mirror.elf import Machine, read_elf
    from deviceplugin.errors import ParseError

FILE = os.memfd_create("elf")
PATH = Path(f"/proc/self/fd/{FILE}")


def check(data: bytes) -> None:
    os.ftruncate(FILE, 0)
    os.pwrite(FILE, data, 0)
    try:
        found = read_elf(PATH)
    except ParseError as refusal:
        check_sentence(refusal)
        return
    assert found.bits in (32, 64)
    assert found.soname not in (".", "..")
    assert not set(found.soname) & set("/\0")
    assert all(found.bits_on(machine) in (0, found.bits) for machine in Machine)


if __name__ == "__main__":
    run(check)
