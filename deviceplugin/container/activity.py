"""A grant's row in the activity table of one GPU, as the agent makes it: library/abi/activity.h.

In: a grant and its limits. Out: the form to make the row from, and what the agent tells neighbours, in
the row and in a file that no container can write.
"""

import os
import struct
from pathlib import Path
from typing import NamedTuple

from deviceplugin.container.shared_file import Form, opened
from deviceplugin.errors import ContainerError
from deviceplugin.ledger.grant import GrantId

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
TOLD = struct.Struct("<III")  # cores soft_cores assumed_cores
SLOT_SIZE = 64 + 16 * RING
SIZE = HEADER_SIZE + SLOT_SIZE * SLOTS


def form(grant: GrantId) -> Form:
    head = HEAD.pack(MAGIC, VERSION, SIZE, grant.encode()[:31])
    return Form(head, SIZE, HEADER_SIZE + SLOT_SIZE * RESERVED_SLOTS)


class Told(NamedTuple):
    """What the agent tells neighbours. `assumed_cores`: what it uses, whatever its row says; 0: believe it."""

    cores: int
    soft_cores: int
    assumed_cores: int = 0


def read_told(path: Path) -> Told | None:
    """None where nothing is told; an agent of an older version told the limits only."""
    try:
        words = path.read_bytes()
    except OSError:
        return None
    return Told(*TOLD.unpack(words.ljust(TOLD.size, b"\0"))) if LIMITS.size <= len(words) <= TOLD.size else None


def write_told(path: Path, told: Told) -> None:
    """Into a file that only the agent writes: a container may have changed its row. Raises ContainerError."""
    fresh = path.with_name(f"{path.name}.new")
    try:
        fresh.write_bytes(TOLD.pack(*told))
        fresh.chmod(0o644)  # independent of the agent's umask
        fresh.replace(path)
    except OSError as error:
        raise ContainerError(f"limits {path} could not be written: {error.strerror}; check the disk") from error


def write_row_limits(path: Path, *, cores: int, soft_cores: int) -> None:
    """So that neighbours know the limit before the container's first process has written it. Raises ContainerError."""
    try:
        with opened(path, writable=True) as fd:
            os.pwrite(fd, LIMITS.pack(cores, soft_cores), LIMITS_AT)
    except OSError as error:
        raise ContainerError(f"activity row {path} could not be written: {error.strerror}; check the disk") from error
