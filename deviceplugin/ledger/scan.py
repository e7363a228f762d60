"""Reads a journal's bytes: which entries verify, what is torn, what is damaged.

In: the file, read line by line, so that what it needs of memory does not grow with the file. Out: a `Scan`. It changes
nothing. Each line stands alone, so that damage costs only the lines it hits. A last line without its newline is torn:
its write did not end, and nothing was answered for it. Everything else that does not verify is damage, and so is a gap
in the numbers of the entries.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import BinaryIO, NamedTuple

from deviceplugin.ledger.grant import Grant, GrantId
from deviceplugin.ledger.records import JournalEntry, apply, decode_line, header_version

LONGEST_LINE = 1 << 24
"""The largest entry adopts what kubelet's checkpoint lists, which is read up to 32 MiB and has several times as much of
each grant: device IDs and the answer."""


@dataclass(slots=True)
class Scan:
    """What the bytes contain.

    `grants` is the state after all entries that verify, `end` where the next entry goes, `lost` how many entries are
    missing, `first_damage` the byte where damage starts (None: no damage), `version` what the header names (None: the
    header does not verify).
    """

    version: int | None = None
    grants: dict[GrantId, Grant] = field(default_factory=dict)
    entries: int = 0
    last_number: int = 0
    end: int = 0
    torn: bool = False
    lost: int = 0
    first_damage: int | None = None


def scan(file: BinaryIO) -> Scan:
    found = Scan()
    offset, unread = 0, 0
    for place, line in enumerate(_lines(file)):
        if not line.ends:
            found.torn = True
            break
        if place == 0:
            found.version = header_version(line.text)
        entry = decode_line(line.text)
        if entry is not None:
            _take(found, entry, offset)
            unread = 0
        elif place > 0:
            _mark(found, offset)
            unread += 1
        offset += line.size
    found.end = offset
    found.lost += unread
    if found.version is None:
        found.first_damage = 0
    return found


class _LineRead(NamedTuple):
    """Without its newline; no text if it is longer than any entry. `ends`: with a newline, which `size` counts."""

    text: bytes
    size: int
    ends: bool


def _lines(file: BinaryIO) -> Iterator[_LineRead]:
    while text := file.readline(LONGEST_LINE):
        size, ends = len(text), text.endswith(b"\n")
        while not ends and (more := file.readline(LONGEST_LINE)):
            text, size, ends = b"", size + len(more), more.endswith(b"\n")
        yield _LineRead(text[:-1] if ends else text, size, ends)


def _take(found: Scan, entry: JournalEntry, offset: int) -> None:
    if entry.number <= found.last_number:
        _mark(found, offset)  # a line in the wrong place says nothing about the present state
        return
    if entry.number != found.last_number + 1:
        _mark(found, offset)
        found.lost += entry.number - found.last_number - 1
    found.last_number = entry.number
    found.entries += 1
    apply(found.grants, entry.change)


def _mark(found: Scan, offset: int) -> None:
    if found.first_damage is None:
        found.first_damage = offset
