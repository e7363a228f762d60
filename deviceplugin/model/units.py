"""The two units of GPU requests, the names of their resources, and CPU and memory as kube-scheduler counts them.

100 cores are one GPU; one block is 256 MiB of its memory. Blocks are rounded down for each GPU: the remainders of two
GPUs cannot be combined. `ShareMemory` is the operator's word for the memory of a share that requests none, or a
ParseError that lists the words.
"""

import enum
import math
from functools import lru_cache

import msgspec

from deviceplugin.errors import ParseError

CORES_PER_GPU = 100
MIB = 1 << 20
BLOCK_MIB = 256
BLOCK_BYTES = BLOCK_MIB * MIB
_GIB, _TIB = 1 << 30, 1 << 40
DEFAULT_DOMAIN = "tencent.com"


class Resource(enum.Enum):
    """The extended resource of a call from kubelet."""

    CORE = "core"
    MEMORY = "memory"

    __hash__ = object.__hash__  # Enum's own is slow (written in Python), and every entry of a checkpoint is hashed

    @property
    def other(self) -> "Resource":
        return Resource.MEMORY if self is Resource.CORE else Resource.CORE


class ResourceNames(msgspec.Struct, frozen=True):
    """Full names under one domain; `--resource-domain` changes the domain everywhere."""

    domain: str = DEFAULT_DOMAIN

    @property
    def core(self) -> str:
        return f"{self.domain}/vcuda-core"

    @property
    def memory(self) -> str:
        return f"{self.domain}/vcuda-memory"

    @property
    def memory_mib(self) -> str:
        """What users may write in the place of `memory`; the webhook makes blocks of it, so no node offers it."""
        return f"{self.domain}/vcuda-memory-mib"

    @property
    def whole_gpu(self) -> str:
        """Whole GPUs by number, for which kube-scheduler makes a ResourceClaim."""
        return f"{self.domain}/vcuda-gpu"

    def of(self, resource: Resource) -> str:
        return self.core if resource is Resource.CORE else self.memory


def blocks_in(memory_bytes: int) -> int:
    """Whole blocks in `memory_bytes`."""
    return memory_bytes // BLOCK_BYTES


DEFAULT_CORES = 10
"""Of each GPU, for a request of memory alone."""


def blocks_for(percent: int, gpu_blocks: int) -> int:
    """So many percent of a GPU's memory, such as go with as many cores; at least one block."""
    return max(1, gpu_blocks * percent // 100)


def format_blocks(blocks: int) -> str:
    """Blocks for users where the resource itself is meant: `8 blocks (2 GiB)`."""
    return f"{blocks} block{'' if blocks == 1 else 's'} ({memory_text(blocks)})"


@lru_cache(maxsize=1024)  # an explanation says the few sizes of its GPUs again and again
def memory_text(blocks: int) -> str:
    """Memory for users: `512 MiB`, `2 GiB`, `79.5 GiB`."""
    return bytes_text(blocks * BLOCK_BYTES)


def memory_of(part: int, whole: int, between: str = " of ") -> str:
    """Blocks as `8 of 80 GiB`, both in the unit of the whole."""
    unit, name = _unit(whole * BLOCK_BYTES)
    return f"{_number(part * BLOCK_BYTES / unit)}{between}{_number(whole * BLOCK_BYTES / unit)} {name}"


def bytes_text(size: float) -> str:
    """In MiB below 1 GiB, in TiB from 10 TiB on, else in GiB; the page has the same rule in format.js."""
    unit, name = _unit(size)
    return f"{_number(size / unit)} {name}"


def _unit(size: float) -> tuple[int, str]:
    if 0 < size < _GIB:
        return MIB, "MiB"
    return (_GIB, "GiB") if size < 10 * _TIB else (_TIB, "TiB")


def _number(value: float) -> str:
    """Two decimals at most below 100, one above, so that a block more or less shows; half is rounded up."""
    scale = 100 if value < 100 else 10
    return f"{math.floor(value * scale + 0.5) / scale:.2f}".rstrip("0").removesuffix(".")


class Compute(msgspec.Struct, frozen=True):
    """Thousandths of a CPU, and bytes: what a node offers or a pod requests."""

    cpu_milli: int
    memory_bytes: int

    def __add__(self, other: "Compute") -> "Compute":
        return Compute(self.cpu_milli + other.cpu_milli, self.memory_bytes + other.memory_bytes)

    def __sub__(self, other: "Compute") -> "Compute":
        return Compute(self.cpu_milli - other.cpu_milli, self.memory_bytes - other.memory_bytes)


NOTHING = Compute(0, 0)


PROPORTIONAL = "proportional"
OFF = "off"


class ShareMemory(msgspec.Struct, frozen=True):
    """The same fraction of the smallest known GPU, else `blocks` of each GPU, else (0) nothing."""

    proportional: bool = True
    blocks: int = 0

    def __str__(self) -> str:
        return PROPORTIONAL if self.proportional else str(self.blocks or OFF)


def parse_share_memory(text: str) -> ShareMemory:
    """`proportional`, `off`, or a number of blocks for each GPU of the share."""
    word = text.strip().lower()
    if word == PROPORTIONAL:
        return ShareMemory()
    if word == OFF:
        return ShareMemory(proportional=False)
    if not (word.isascii() and word.isdigit() and len(word) <= 6 and int(word)):
        raise ParseError(
            f"{text[:40]!r} is not a memory size for a share; write {PROPORTIONAL}, {OFF} or a number of blocks"
        )
    return ShareMemory(proportional=False, blocks=int(word))
