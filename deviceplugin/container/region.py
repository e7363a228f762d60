"""The region of a container, as the agent makes and reads it: library/abi/region.h.

In: a grant; the file as the container left it. Out: a form to make it from, and frozen numbers. The container may write
anything there: a word counts only within its bounds, sizes and positions are constants and not the file's, and it is
read with pread, because a mapping would fault where the container has cut the file. Not here: whether a process lives.
"""

import contextlib
import fcntl
import functools
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec

from deviceplugin.container.shared_file import NOT_OF_THE_CONTAINER, Form, opened
from deviceplugin.errors import ContainerError, ParseError
from deviceplugin.ledger.grant import GrantId

FILE_NAME = "region"
VERSION = 1
MAGIC = b"VCUDAREG"
SLOTS = 1024
MAX_DEVICES = 16
RESERVED_SLOTS = 64

HEAD = struct.Struct("<8sII32s")  # magic version size grant
HEADER_SIZE = 128
DEVICE = struct.Struct("<QQqQQQQQQ56x")  # see Counters, in this order
SLOT = struct.Struct("<IIQQQ32x")  # pid locked start_time pid_namespace claimed_ns
USE = struct.Struct("<QQQQ")  # used pending overhead inflight_ns
UNKNOWN_FUNCTIONS_AT = HEAD.size + 16  # behind slot_high and reaped_ns
SLOT_SIZE = SLOT.size + USE.size * MAX_DEVICES
SLOTS_AT = HEADER_SIZE + DEVICE.size * MAX_DEVICES
SIZE = SLOTS_AT + SLOT_SIZE * SLOTS

CLEARING = 1 << 31
_WORDS = 4  # of a Use
_UNKNOWN = (1 << 64) - 1
_HIGH = struct.Struct("<I")
_UNKNOWN_FUNCTIONS = struct.Struct("<q")
_FLOCK = struct.Struct("@hhqqi4x")  # struct flock
MOST = 1 << 60
"""No byte count and no sum of nanoseconds of a node's life reaches this; a word above it is implausible."""


class Counters(msgspec.Struct, frozen=True):
    """One GPU, all processes of the container together; the field order is the file's."""

    peak: int = 0
    refusals: int = 0
    balance_ns: int = 0
    refilled_ns: int = 0
    charged_ns: int = 0
    throttled_ns: int = 0
    throttled_launches: int = 0
    launches: int = 0
    effective_cores: int = 0


class Use(NamedTuple):
    """What one process holds of one GPU, in bytes; `overhead` is what the driver holds beyond its allocations."""

    used: int = 0
    pending: int = 0
    overhead: int = 0
    inflight_ns: int = 0


class ProcessSlot(msgspec.Struct, frozen=True):
    """One process by its own pid namespace's number; `uses` has an entry for each GPU of the grant.

    `is_clearing`: the process of this `pid` clears what a dead one left here. `start_time` None: unknown.
    """

    index: int
    pid: int
    start_time: int | None
    pid_namespace: int
    uses: tuple[Use, ...]
    is_clearing: bool = False


class Region(msgspec.Struct, frozen=True):
    """One reading. `implausible`: how many words were out of bounds and count as 0.

    `unknown_functions`: how often a program was given a function of a newer driver that the library does not limit.
    """

    counters: tuple[Counters, ...]
    slots: tuple[ProcessSlot, ...]
    implausible: int = 0
    unknown_functions: int = 0


def form(grant: GrantId) -> Form:
    head = HEAD.pack(MAGIC, VERSION, SIZE, grant.encode()[:31])
    return Form(head, SIZE, SLOTS_AT + SLOT_SIZE * RESERVED_SLOTS)


def read(path: Path, *, grant: GrantId, devices: int) -> Region:
    """The region as it is now, for so many GPUs.

    ParseError if the container has spoilt it, ContainerError if something else keeps the agent from reading it.
    """
    try:
        with opened(path) as fd:
            return parse(_read_used(fd), grant=grant, devices=devices)
    except OSError as error:
        text = f"region {path} cannot be read: {error.strerror}"
        if error.errno not in NOT_OF_THE_CONTAINER:
            raise ParseError(text) from None
        raise ContainerError(f"{text}; check the disk and the agent's limit of open files") from None


def clear(path: Path, slot: ProcessSlot) -> None:
    """Frees a slot, its `pid` last: from then on it may be claimed.

    Only for a slot whose pid namespace has no process any more: within a namespace the library does it itself, and
    Python has no compare-and-swap against it. Not where a process holds the slot's lock: it was claimed again, or is
    being cleared.
    """
    at = SLOTS_AT + SLOT_SIZE * slot.index
    with contextlib.suppress(OSError), opened(path, writable=True) as fd:
        if _lock(fd, at) and SLOT.unpack(os.pread(fd, SLOT.size, at))[0] & ~CLEARING == slot.pid:
            os.pwrite(fd, bytes(SLOT_SIZE - 4), at + 4)
            os.pwrite(fd, bytes(4), at)


def _lock(fd: int, at: int) -> bool:
    """Until `fd` is closed; False if another process has it. A file system without locks counts as locked."""
    try:
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, at, 1, 0))
    except (BlockingIOError, PermissionError):
        return False
    except OSError:
        return True
    return True


def parse(data: bytes, *, grant: GrantId, devices: int) -> Region:
    """From the file's bytes; everything behind the last used slot may be missing."""
    if len(data) < SLOTS_AT or not data.startswith(form(grant).head):
        raise ParseError(f"region of {grant} has {len(data)} bytes or another beginning; the container changed it")
    devices = min(devices, MAX_DEVICES)
    words = _Words()
    counters = tuple(_counters(data, index, words) for index in range(devices))
    slots = tuple(_slots(data, devices, words))
    (unknown,) = _UNKNOWN_FUNCTIONS.unpack_from(data, UNKNOWN_FUNCTIONS_AT)
    told = max(0, words.bounded(unknown))
    return Region(counters, slots, words.implausible, told)


class _Words:
    """Takes words that are within bounds and counts the others."""

    def __init__(self) -> None:
        self.implausible = 0

    def bounded(self, word: int) -> int:
        if -MOST < word < MOST:
            return word
        self.implausible += 1
        return 0


def _read_used(fd: int) -> bytes:
    data = os.pread(fd, SLOTS_AT, 0)
    high = min(_HIGH.unpack_from(data, HEAD.size)[0], SLOTS) if len(data) == SLOTS_AT else 0
    return data + os.pread(fd, SLOT_SIZE * high, SLOTS_AT) if high else data


def _slots_in(data: bytes) -> int:
    (high,) = _HIGH.unpack_from(data, HEAD.size)
    return int(min(high, SLOTS, (len(data) - SLOTS_AT) // SLOT_SIZE))


def _counters(data: bytes, index: int, words: _Words) -> Counters:
    found = DEVICE.unpack_from(data, HEADER_SIZE + DEVICE.size * index)
    return Counters(*map(words.bounded, found))


@functools.cache
def _slot_words(devices: int) -> struct.Struct:
    """A slot with the words of so many GPUs; one reading makes a number of nothing else."""
    rest = SLOT_SIZE - SLOT.size - USE.size * devices
    return struct.Struct(f"{SLOT.format}{_WORDS * devices}Q{rest}x")


def _slots(data: bytes, devices: int, words: _Words) -> Iterator[ProcessSlot]:
    """Of the claimed ones. A container may claim all of them, so this does as little as it can for each."""
    used = memoryview(data)[SLOTS_AT : SLOTS_AT + SLOT_SIZE * _slots_in(data)]
    for index, (pid, _, start_time, namespace, _, *numbers) in enumerate(_slot_words(devices).iter_unpack(used)):
        if not pid:
            continue
        if numbers and max(numbers) >= MOST:
            numbers = [words.bounded(word) for word in numbers]
        following = iter(numbers)
        uses = tuple(map(Use._make, zip(*[following] * _WORDS, strict=True)))
        told = None if start_time in (0, _UNKNOWN) else start_time
        yield ProcessSlot(index, pid & ~CLEARING, told, namespace, uses, bool(pid & CLEARING))
