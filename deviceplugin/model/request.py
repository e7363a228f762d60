"""The request of one container, after the rules of the contract.

Below 100 cores: a share of one GPU; cores and memory are both required. 100: one whole GPU. More: a multiple of 100 on
linked GPUs. Whole GPUs need no memory count; with a count, each GPU must have at least an equal part of it. A share
may be spread over several GPUs in equal parts (annotation `vcuda-gpus`); then cores and memory are the sums over all
parts. Everything else is a `RequestError` with one sentence.
"""

import enum

import msgspec
from msgspec.structs import force_setattr

from deviceplugin.errors import RequestError
from deviceplugin.model.annotation_names import annotation_names
from deviceplugin.model.units import BLOCK_MIB, CORES_PER_GPU, ResourceNames

_MOST_BLOCKS = 1 << 16  # 16 TiB of one GPU
_MOST_GPUS = 1024


class RequestKind(enum.Enum):
    """The evaluator for the request; the value is its name in all outputs."""

    SHARE = "share"
    WHOLE = "fragment"
    LINKED = "link"


class Request(msgspec.Struct, frozen=True):
    """Cores (100 = one GPU) and memory blocks (256 MiB each) of one container; always valid.

    `parts` is above one only for a share that is spread over several GPUs, with `cores_per_gpu` of each. `gpus`: of how
    many GPUs it takes something.
    """

    cores: int
    blocks: int
    parts: int = 1
    gpus: int = 0

    def __post_init__(self) -> None:
        force_setattr(self, "gpus", self.parts if self.parts > 1 else max(1, self.cores // CORES_PER_GPU))

    @property
    def kind(self) -> RequestKind:
        if self.is_share:
            return RequestKind.SHARE
        return RequestKind.WHOLE if self.cores == CORES_PER_GPU else RequestKind.LINKED

    @property
    def is_share(self) -> bool:
        """It uses its GPUs beside others; else it has them whole."""
        return self.cores < CORES_PER_GPU * self.parts

    @property
    def cores_per_gpu(self) -> int:
        return self.cores // self.gpus

    @property
    def blocks_per_gpu(self) -> int:
        """The least memory that each GPU must have, in blocks."""
        return -(-self.blocks // self.gpus)


def parse_request(
    cores: int, blocks: int, *, parts: int = 1, share_mode: bool = True, names: ResourceNames = ResourceNames()
) -> Request:
    """Applies the contract; raises RequestError with the sentence for the user."""
    if cores < 0 or blocks < 0:
        raise RequestError(f"{names.core} and {names.memory} cannot be negative; requested {cores} and {blocks}")
    if cores == 0:
        raise RequestError(
            f"{names.memory}: {blocks} was requested without {names.core}; "
            f"add {names.core} (1-99 for a share, 100 for a whole GPU)"
        )
    _check_size(cores, blocks, parts, names)
    if cores == CORES_PER_GPU * parts:
        return Request(cores, blocks)
    if parts > 1:
        _check_parts(cores, blocks, parts, names)
    elif cores > CORES_PER_GPU and cores % CORES_PER_GPU:
        raise RequestError(
            f"{names.core}: {cores} is not possible; several GPUs must be requested as whole GPUs; write "
            f"{cores // CORES_PER_GPU * CORES_PER_GPU} or {-(-cores // CORES_PER_GPU) * CORES_PER_GPU}"
        )
    if cores < CORES_PER_GPU * parts:
        _check_share(cores, blocks, share_mode, names)
    return Request(cores, blocks, parts)


def _check_size(cores: int, blocks: int, parts: int, names: ResourceNames) -> None:
    """What is larger than any GPU or node was probably meant in another unit; a number near it would not help."""
    if cores > _MOST_GPUS * CORES_PER_GPU:
        raise RequestError(f"{names.core}: {cores} is more than any node has; {CORES_PER_GPU} is one GPU")
    if blocks > _MOST_BLOCKS * max(parts, cores // CORES_PER_GPU):
        raise RequestError(
            f"{names.memory}: {blocks} is more than any GPU has; it counts blocks of {BLOCK_MIB} MiB, so 4 GiB are "
            f"{4096 // BLOCK_MIB}"
        )


def _check_parts(cores: int, blocks: int, parts: int, names: ResourceNames) -> None:
    if cores > CORES_PER_GPU * parts:
        raise RequestError(
            f"{names.core}: {cores} over {parts} GPUs is more than {parts} GPUs have; request at most "
            f"{CORES_PER_GPU * parts}, or whole GPUs without {annotation_names(names.domain).gpus}"
        )
    for name, count in ((names.core, cores), (names.memory, blocks)):
        if count % parts:
            below = f"{count // parts * parts} or " if count > parts else ""
            raise RequestError(
                f"{name}: {count} cannot be divided evenly over {parts} GPUs; write {below}{-(-count // parts) * parts}"
            )


def _check_share(cores: int, blocks: int, share_mode: bool, names: ResourceNames) -> None:
    if not share_mode:
        raise RequestError(
            f"{names.core}: {cores} is a share of a GPU and this node offers whole GPUs only; request a multiple of "
            f"{CORES_PER_GPU} or start the agent with --share-mode"
        )
    if blocks == 0:
        raise RequestError(
            f"{names.core}: {cores} was requested without {names.memory}; "
            f"a share needs both, so add {names.memory} (1 = 256 MiB)"
        )
