"""Reads a journal's bytes: which entries verify, what is torn, what is damaged.

In: the bytes of the file. Out: a `Scan`. Pure. Each line stands alone, so that damage costs only the lines it hits. A
last line without its newline is torn: its write did not end, and nothing was answered for it. Everything else that does
not verify is damage, and so is a gap in the numbers of the entries.
"""

from dataclasses import dataclass, field

from deviceplugin.ledger.grant import Grant, GrantId
from deviceplugin.ledger.records import JournalEntry, apply, decode_line, header_version


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


def scan(data: bytes) -> Scan:
    found = Scan(end=data.rfind(b"\n") + 1)
    found.torn = found.end < len(data)
    lines = data[: found.end].split(b"\n")[:-1]
    found.version = header_version(lines[0]) if lines else None
    if found.version is None:
        found.first_damage = 0
    offset, unread = 0, 0
    for place, line in enumerate(lines):
        entry = decode_line(line)
        if entry is not None:
            _take(found, entry, offset)
            unread = 0
        elif place > 0:
            _mark(found, offset)
            unread += 1
        offset += len(line) + 1
    found.lost += unread
    return found


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
