"""A loader's cache of any bytes: a ParseError of one sentence, or names and paths that the cache holds."""

import os
from pathlib import Path

from tests.container.fuzz.harness import check_sentence, instrumented, run

with instrumented():
    from deviceplugin.container.driver_mirror.elf import parse_cache
    from deviceplugin.errors import ParseError

SOURCE = Path("/etc/ld.so.cache")
SMALLEST_ENTRY = 24


def check(data: bytes) -> None:
    try:
        entries = parse_cache(data, source=SOURCE)
    except ParseError as refusal:
        check_sentence(refusal)
        return
    assert len(entries) <= len(data) // SMALLEST_ENTRY
    for each in entries:
        assert each.bits in (0, 32, 64)
        assert "\0" not in each.name + each.path
        assert os.fsencode(each.name) in data
        assert os.fsencode(each.path) in data


if __name__ == "__main__":
    run(check)
