"""A grant's row in the activity table of one GPU, as the agent makes it: library/abi/activity.h.

In: a grant and its limits; the row as the container left it. Out: the form to make the row from; what the agent tells
neighbours, in the row and in a file that no container can write; how much of the GPU's time neighbours can see in it.
The container may write anything there: it is read with pread, positions are constants, and what it shows is never more
than the time that has passed.
"""

import os
import struct
import time
from pathlib import Path
from typing import NamedTuple

import msgspec

from deviceplugin.container.directories import is_no_room
from deviceplugin.container.shared_file import NOT_OF_THE_CONTAINER, Form, opened
from deviceplugin.errors import ContainerError, ParseError
from deviceplugin.ledger.grant import GrantId
from deviceplugin.model.units import CORES_PER_GPU

SUFFIX = ".activity"
VERSION = 1
MAGIC = b"VCUDAACT"
SLOTS = 1024
RING = 256
RESERVED_SLOTS = 64

HEAD = struct.Struct("<8sII32s")  # magic version size grant
HEADER_SIZE = 128
LIMITS = struct.Struct("<II")  # cores soft_cores
LIMITS_AT = 52
SHOWN_LIMITS = struct.Struct("<III")  # cores soft_cores assumed_cores
SLOT = struct.Struct("<QQQQ32x")  # heartbeat_ns busy_since_ns head busy_ns
SLOT_SIZE = SLOT.size + 16 * RING
_HIGH_AT = HEAD.size
_HIGH = struct.Struct("<I")
_RING = struct.Struct(f"<{2 * RING}Q")  # start_ns end_ns, again and again
_SLOTS_READ = 128  # as many as neighbours read
_STALE_NS = 50_000_000
_WINDOW_NS = 1_000_000_000
_RING_FACTOR = 4
"""A ring reaches back a tenth of a second, which may end in a pause: so much less than the sum it may show."""
SIZE = HEADER_SIZE + SLOT_SIZE * SLOTS


def form(grant: GrantId) -> Form:
    head = HEAD.pack(MAGIC, VERSION, SIZE, grant.encode()[:31])
    return Form(head, SIZE, HEADER_SIZE + SLOT_SIZE * RESERVED_SLOTS)


class SlotActivity(msgspec.Struct, frozen=True):
    """One process. `busy_ns`: the sum of its turns. `ring_part`: how much of the time that the ring covers was busy.

    `since_ns`: work that is not measured yet is on the GPU since then; 0: there is none.
    """

    busy_ns: int
    ring_part: float
    since_ns: int


class Activity(msgspec.Struct, frozen=True):
    """What a row shows to neighbours at one moment of the node's monotonic clock."""

    at_ns: int
    slots: tuple[SlotActivity, ...]


def read(path: Path, *, grant: GrantId) -> Activity:
    """ParseError if the container has spoilt it, ContainerError if something else keeps the agent from reading it."""
    try:
        with opened(path) as fd:
            head = os.pread(fd, HEADER_SIZE, 0)
            if not head.startswith(form(grant).head) or os.fstat(fd).st_size < SIZE:
                raise ParseError(f"activity file {path} has another beginning or is short; the container changed it")
            (high,) = _HIGH.unpack_from(head, _HIGH_AT)
            data = os.pread(fd, SLOT_SIZE * min(high, _SLOTS_READ), HEADER_SIZE)
    except OSError as error:
        text = f"activity file {path} cannot be read: {error.strerror}"
        if error.errno not in NOT_OF_THE_CONTAINER:
            raise ParseError(text) from None
        raise ContainerError(f"{text}; check the disk and the agent's limit of open files") from None
    now = time.monotonic_ns()
    return Activity(now, tuple(_slot(data, at, now) for at in range(0, len(data) - SLOT_SIZE + 1, SLOT_SIZE)))


def shown_percent(now: Activity, before: Activity) -> float:
    """What neighbours could see since `before`, in percent of the time, all processes together: at most 100.

    The sum of turns is believed only as far as the ring shows turns too: the ring is what neighbours read.
    """
    passed = max(1, now.at_ns - before.at_ns)
    shown = 0.0
    for index, slot in enumerate(now.slots):
        earlier = before.slots[index].busy_ns if index < len(before.slots) else 0
        measured = min(max(0, slot.busy_ns - earlier) / passed, slot.ring_part * _RING_FACTOR)
        is_open = (now.at_ns - max(slot.since_ns, before.at_ns)) / passed if slot.since_ns else 0.0
        shown += min(1.0, measured + max(0.0, is_open))
    return min(shown, 1.0) * CORES_PER_GPU


def _slot(data: bytes, at: int, now: int) -> SlotActivity:
    heartbeat, since, head, busy = SLOT.unpack_from(data, at)
    live = since <= now and now - _WINDOW_NS <= heartbeat <= now + _STALE_NS
    return SlotActivity(busy, _ring_part(data, at + SLOT.size, min(head, RING), now), since if live else 0)


def _ring_part(data: bytes, at: int, entries: int, now: int) -> float:
    words: tuple[int, ...] = _RING.unpack_from(data, at)[: 2 * entries]
    latest = now + _STALE_NS
    turns = [(start, end) for start, end in zip(words[::2], words[1::2], strict=True) if start < end <= latest]
    reached = max(min(turns)[0] if turns else now, now - _WINDOW_NS)
    covered = sum([end - (start if start > reached else reached) for start, end in turns if end > reached])
    return min(1.0, covered / max(1, now - reached))


class ShownLimits(NamedTuple):
    """What neighbours see of a container. `assumed_cores`: what it uses, whatever its row says; 0: believe it."""

    cores: int
    soft_cores: int
    assumed_cores: int = 0


def read_shown_limits(path: Path) -> ShownLimits | None:
    """None if nothing is shown."""
    try:
        words = path.read_bytes()
    except OSError:
        return None
    return ShownLimits(*SHOWN_LIMITS.unpack(words)) if len(words) == SHOWN_LIMITS.size else None


def write_shown_limits(path: Path, limits: ShownLimits) -> None:
    """Into a file that only the agent writes: a container may have changed its row. Raises ContainerError."""
    fresh = path.with_name(f"{path.name}.new")
    try:
        fresh.write_bytes(SHOWN_LIMITS.pack(*limits))
        fresh.chmod(0o644)  # independent of the agent's umask
        fresh.replace(path)
    except OSError as error:
        raise ContainerError(f"limits {path} could not be written: {error.strerror}; check the disk") from error


def write_row_limits(path: Path, *, cores: int, soft_cores: int) -> None:
    """For neighbours that do not read shown limits, before the container's first process has written its row.

    A row that its container keeps from being written, by a lease, stays as it is: neighbours read what the agent shows.
    Raises ContainerError if no room is left.
    """
    try:
        with opened(path, writable=True) as fd:
            os.pwrite(fd, LIMITS.pack(cores, soft_cores), LIMITS_AT)
    except OSError as error:
        if is_no_room(error):
            raise ContainerError(
                f"activity row {path} could not be written: {error.strerror}; check the disk"
            ) from error
