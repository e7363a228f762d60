"""The lines of a journal: how one change of the ledger is written, and what of a file's bytes verifies.

In: a `LedgerChange` of frozen grants, or a file, read line by line, so that what it needs of memory does not grow with
the file. Out: `<crc32 in hex> <length> <JSON>\\n`, readable by an operator with `less`, the length and the checksum of
the JSON; or a `Scan`, which changes nothing. JSON keys that a later version adds are ignored.

Each line stands alone, so that damage costs only the lines it hits. A last line without its newline is torn: its write
did not end, and nothing was answered for it. Everything else that does not verify is damage, and so is a gap in the
numbers of the entries.
"""

import zlib
from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

import msgspec

from deviceplugin.ledger.grant import Grant, GrantId, Source
from deviceplugin.model.allocation import Allocation, ContainerRef, ContainerRole, GpuShare, PodRef
from deviceplugin.model.pod import PodLimits
from deviceplugin.model.request import Request
from deviceplugin.model.units import Resource
from deviceplugin.structs import replace

FORMAT_VERSION = 1
_MAGIC = b"vcuda-ledger"


class LedgerChange(msgspec.Struct, frozen=True):
    """What one transition does, all or nothing: the grants after it, and the grants that it removes.

    `limits`: of grants of which nothing else changes; it makes no grant. `why` is a phrase for the operator who reads
    the journal.
    """

    kind: str
    put: tuple[Grant, ...] = ()
    removed: tuple[GrantId, ...] = ()
    why: str = ""
    limits: tuple[tuple[GrantId, PodLimits], ...] = ()


class JournalEntry(msgspec.Struct, frozen=True):
    """A change with its number in the file, and the Unix time at which it was written."""

    number: int
    written: float
    change: LedgerChange


def apply(grants: dict[GrantId, Grant], change: LedgerChange) -> None:
    """Applies a change to a state; the same for replay and for the running ledger."""
    for grant_id in change.removed:
        grants.pop(grant_id, None)
    for grant in change.put:
        grants[grant.id] = grant
    for grant_id, limits in change.limits:
        if (known := grants.get(grant_id)) is not None:
            grants[grant_id] = replace(known, limits=limits)


class _Grant(msgspec.Struct):
    id: GrantId
    pod: PodRef
    container: str
    role: ContainerRole
    cores: int
    blocks: int
    gpus: tuple[GpuShare, ...]
    answered: list[Resource]
    source: Source
    proved: bool
    created: float
    soft_cores: int = 0
    memory_mib: int = 0
    index: int = 0
    parts: int = 1


class _Limits(msgspec.Struct, omit_defaults=True):
    id: GrantId
    soft_cores: int = 0
    memory_mib: int = 0


class _Line(msgspec.Struct, omit_defaults=True):
    n: int
    at: float
    change: str
    put: list[_Grant] = []
    removed: tuple[GrantId, ...] = ()
    why: str = ""
    limits: list[_Limits] = []


def header() -> bytes:
    """The first line of every journal; its format is the same in all versions."""
    text = _MAGIC + b" %d" % FORMAT_VERSION
    return text + b" %08x\n" % zlib.crc32(text)


def header_version(line: bytes) -> int | None:
    """The version that a header line names; None if the line does not verify."""
    text, _, checksum = line.rpartition(b" ")
    if checksum != b"%08x" % zlib.crc32(text) or not text.startswith(_MAGIC + b" "):
        return None
    version = text[len(_MAGIC) + 1 :]
    return int(version) if version.isdigit() else None


def encode_line(entry: JournalEntry) -> bytes:
    line = _Line(
        n=entry.number,
        at=entry.written,
        change=entry.change.kind,
        put=[_to_struct(grant) for grant in entry.change.put],
        removed=entry.change.removed,
        why=entry.change.why,
        limits=[_Limits(each, limits.soft_cores, limits.memory_mib) for each, limits in entry.change.limits],
    )
    body = msgspec.json.encode(line)
    return b"%08x %d %s\n" % (zlib.crc32(body), len(body), body)


def decode_line(line: bytes) -> JournalEntry | None:
    """One line without its newline; None if it does not verify."""
    parts = line.split(b" ", 2)
    if len(parts) != 3 or parts[0] != b"%08x" % zlib.crc32(parts[2]) or parts[1] != b"%d" % len(parts[2]):
        return None
    try:
        found = msgspec.json.decode(parts[2], type=_Line)
    except msgspec.MsgspecError:
        return None
    limits = tuple((each.id, PodLimits(each.soft_cores, each.memory_mib)) for each in found.limits)
    change = LedgerChange(found.change, tuple(map(_to_grant, found.put)), found.removed, found.why, limits)
    return JournalEntry(found.n, found.at, change)


def _to_struct(grant: Grant) -> _Grant:
    allocation = grant.allocation
    return _Grant(
        id=grant.id,
        pod=allocation.owner.pod,
        container=allocation.owner.name,
        role=allocation.role,
        cores=allocation.request.cores,
        blocks=allocation.request.blocks,
        gpus=allocation.shares,
        answered=sorted(grant.answered, key=lambda resource: resource.value),  # equal grants give equal lines
        source=grant.source,
        proved=grant.proved,
        created=grant.created,
        soft_cores=grant.limits.soft_cores,
        memory_mib=grant.limits.memory_mib,
        index=allocation.index,
        parts=allocation.request.parts,
    )


def _to_grant(found: _Grant) -> Grant:
    allocation = Allocation(
        owner=ContainerRef(found.pod, found.container),
        role=found.role,
        request=Request(found.cores, found.blocks, found.parts),
        shares=found.gpus,
        index=found.index,
    )
    return Grant(
        id=found.id,
        allocation=allocation,
        answered=frozenset(found.answered),
        source=found.source,
        proved=found.proved,
        created=found.created,
        limits=PodLimits(found.soft_cores, found.memory_mib),
    )


LONGEST_LINE = 1 << 24
"""The largest entry adopts what kubelet's checkpoint lists, which is read up to 32 MiB and has several times as much of
each grant: device IDs and the answer."""


class Scan(msgspec.Struct):
    """What the bytes contain.

    `grants` is the state after all entries that verify, `end` where the next entry goes, `lost` how many entries are
    missing, `first_damage` the byte where damage starts (None: no damage), `version` what the header names (None: the
    header does not verify).
    """

    version: int | None = None
    grants: dict[GrantId, Grant] = msgspec.field(default_factory=dict)
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
        elif place > 0:  # the first line is the header
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
