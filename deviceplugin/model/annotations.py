"""The annotations of pods and of Allocate's answer: how they are written, parsed, and which of them are trusted.

In: text that any user may have written. Out: frozen values, or `ParseError`, never another exception. Names and forms
come from gpu-manager if it had them. `vcuda-allocation` is new: JSON with a version, by container name and GPU UUID,
and with the UID of the pod, because a pod that is recreated from its YAML has the old annotations. Not here: the
inventory of a node (`node`).

The contract of extender and agent about a bound pod. Both call `trusted_allocation`, and one table of cases tests both:

- `vcuda-allocation` is trusted if it can be parsed, has the UID of this pod at the API server, and no `predicate-node`
  names another node. Each container is trusted separately, and only if it gives what the container asks for.
- The agent carries out what is trusted if the GPUs are still free, also if they are cordoned: a cordon is for new
  decisions. Otherwise it places the container again.
- `predicate-gpu-idx-<i>` (minors without a UID) is trusted only if there is no `vcuda-allocation`, no `predicate-node`
  that names another node, and `gpu-assigned` is not `true`.
- When kubelet has proved what every container has, the agent corrects `vcuda-allocation`, `predicate-node`,
  `predicate-gpu-idx-<i>` and `gpu-assigned: true`, and removes other indices. Then the extender's cache of the pod is
  exact. Before that, a container that is not trusted counts on every GPU on which it may be.
- Neither reads `predicate-time` to learn what a pod has; the agent uses it to order guesses.

`vcuda-decision` says why a pod is where it is, and is for people only: nothing places, counts or trusts by it. The
scheduler writes it with the Binding, with the pod's UID and the node. Its size is bounded, as each pod carries it
through etcd and every watch.
"""

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import TypeVar

import msgspec

from deviceplugin.errors import ParseError
from deviceplugin.model.allocation import GpuShare, PodUid
from deviceplugin.model.annotation_names import AnnotationNames
from deviceplugin.model.pod import Pod, PodContainer
from deviceplugin.model.preferences import parse_flag
from deviceplugin.model.units import CORES_PER_GPU
from deviceplugin.structs import replace

VERSION = 1
_INT64 = 1 << 63
_ASKED_TOGETHER = 16  # a version of a pod is asked three times in a row
_MAX_MINOR = 4095
_MAX_BLOCKS = 36**3
Decoded = TypeVar("Decoded")


class PodAllocation(msgspec.Struct, frozen=True):
    """The content of `vcuda-allocation`: its pod, and the shares of each container."""

    pod: PodUid
    containers: Mapping[str, tuple[GpuShare, ...]]

    def shares_of(self, container: PodContainer) -> tuple[GpuShare, ...]:
        """What was decided for the container; empty if that is not what its limits ask.

        The limits cannot change after the pod is bound. Its owner can change the other annotations at any time, so
        none of them says here over how many GPUs the container is spread.
        """
        shares = self.containers.get(container.ref.name, ())
        if sum(share.cores for share in shares) != container.cores:
            return ()
        whole = container.cores == CORES_PER_GPU * len(shares)
        blocks = sum(share.blocks for share in shares)
        return shares if (blocks >= container.blocks if whole else blocks == container.blocks) else ()


def parse_predicate_time(text: str) -> int:
    """Unix nanoseconds. The size of the number tells seconds, milli- and microseconds of other writers apart."""
    number = _number(text, what="predicate-time", at_most=_INT64 - 1)
    for bound, scale in ((10**11, 10**9), (10**14, 10**6), (10**17, 10**3)):
        if number < bound:
            return number * scale
    return number


def format_gpu_indices(minors: Iterable[int]) -> str:
    return ",".join(map(str, minors))


def parse_gpu_indices(text: str) -> tuple[int, ...]:
    """`0,1,2`; an empty list or a repeated GPU is a ParseError."""
    minors = tuple(_number(part, what="predicate-gpu-idx", at_most=_MAX_MINOR) for part in text.split(","))
    if len(set(minors)) != len(minors):
        raise ParseError(f"annotation predicate-gpu-idx names a GPU twice: {_shown(text)}")
    return minors


def parse_core_limit(text: str) -> int:
    """The soft limit that a user gives the pod, in percent of a GPU: 1 to 100; more is 100, as in gpu-manager."""
    percent = _number(text, what="vcuda-core-limit", at_most=_INT64 - 1)
    if percent == 0:
        raise ParseError("annotation vcuda-core-limit is 0; write a percentage from 1 to 100")
    return min(percent, CORES_PER_GPU)


def format_allocation(allocation: PodAllocation) -> str:
    """Equal allocations give equal text, so that an unchanged annotation is not written again."""
    containers = {name: _ContainerJson(allocation.containers[name]) for name in sorted(allocation.containers)}
    return msgspec.json.encode(_AllocationJson(VERSION, allocation.pod, containers)).decode()


@lru_cache(maxsize=_ASKED_TOGETHER)
def parse_allocation(text: str) -> PodAllocation:
    """The value of `vcuda-allocation`; unknown keys are ignored, another version is a ParseError."""
    decoded = decode_json(_AllocationJson, text, what="vcuda-allocation")
    if decoded.version != VERSION:
        raise ParseError(f"annotation vcuda-allocation has version {decoded.version}; this vcuda reads {VERSION}")
    containers = {name: _checked(name, container.gpus) for name, container in decoded.containers.items()}
    return PodAllocation(PodUid(decoded.pod), containers)


class _ContainerJson(msgspec.Struct):
    gpus: tuple[GpuShare, ...]


class _AllocationJson(msgspec.Struct):
    version: int
    pod: str
    containers: dict[str, _ContainerJson]


def decode_json(type_: type[Decoded], text: str, *, what: str) -> Decoded:
    """JSON of an annotation to a struct, or one ParseError."""
    try:
        return msgspec.json.decode(text, type=type_)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:  # ValueError: lone surrogates
        raise ParseError(f"annotation {what} cannot be read: {_shown(str(error))}") from None


def _checked(container: str, shares: tuple[GpuShare, ...]) -> tuple[GpuShare, ...]:
    for share in shares:
        if not (0 <= share.cores <= CORES_PER_GPU and 0 <= share.blocks <= _MAX_BLOCKS):
            raise ParseError(
                f"annotation vcuda-allocation gives container {_shown(container)} {share.cores} cores and "
                f"{share.blocks} blocks of one GPU; it has {CORES_PER_GPU} cores"
            )
    if len({share.uuid for share in shares}) != len(shares):
        raise ParseError(f"annotation vcuda-allocation names a GPU twice for container {_shown(container)}")
    return shares


def _number(text: str, *, what: str, at_most: int) -> int:
    digits = text.strip()
    # The length before int(), which refuses some thousand digits with an error of its own.
    if not digits.isascii() or not digits.isdecimal() or len(digits) > 19 or int(digits) > at_most:
        raise ParseError(f"annotation {what} holds {_shown(text)}, which is not a whole number from 0 to {at_most}")
    return int(digits)


def _shown(text: str) -> str:
    return ascii(text if len(text) <= 60 else text[:57] + "...")


class TrustedAllocation(msgspec.Struct, frozen=True):
    """`allocation` is None if there is no annotation or it is not trusted; then `doubt` is a sentence."""

    allocation: PodAllocation | None = None
    doubt: str = ""

    def shares_of(self, container: PodContainer) -> tuple[GpuShare, ...]:
        return self.allocation.shares_of(container) if self.allocation is not None else ()


def trusted_allocation(pod: Pod, names: AnnotationNames) -> TrustedAllocation:
    """The content of `vcuda-allocation`, if it was written for this pod and this node."""
    written = pod.annotations.get(names.allocation)
    if written is None:
        return TrustedAllocation()
    if not _names_its_node(pod, names):
        return TrustedAllocation(doubt=f"annotation {names.allocation} was written for another node; it is ignored")
    try:
        found = parse_allocation(written)
    except ParseError as error:
        return TrustedAllocation(doubt=error.message)
    if found.pod != (pod.api_uid or pod.ref.uid):
        return TrustedAllocation(doubt=f"annotation {names.allocation} was written for another pod; it is ignored")
    return TrustedAllocation(found)


def trusted_minors(pod: Pod, container: int, names: AnnotationNames) -> tuple[int, ...]:
    """The choice of gpu-manager's schedulers, which do not write `vcuda-allocation`; raises ParseError.

    It has no UID. It is ignored beside an allocation. It is also ignored if the pod is assigned without an allocation:
    it was copied then, because the agent writes both together.
    """
    written = pod.annotations.get(names.gpu_indices(container))
    if written is None or names.allocation in pod.annotations or not _names_its_node(pod, names):
        return ()
    said = pod.annotations.get(names.gpu_assigned)
    if said is not None and parse_flag(said, "gpu-assigned"):
        return ()
    return parse_gpu_indices(written)


def stale_indices(pod: Pod, wanted: Iterable[str], names: AnnotationNames) -> tuple[str, ...]:
    """GPU indices of containers without GPUs: copied from another pod."""
    kept = set(wanted)
    return tuple(name for name in pod.annotations if name.startswith(names.gpu_index_prefix) and name not in kept)


def _names_its_node(pod: Pod, names: AnnotationNames) -> bool:
    return pod.annotations.get(names.predicate_node, pod.node) == pod.node


LONGEST = 4096


class ContainerRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """`gpus`: minors. `others`: phrases about the GPUs of the node that were passed over."""

    gpus: tuple[int, ...]
    reason: str
    others: tuple[str, ...] = ()


class DecisionRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """`at`: Unix seconds of filter's choice. `others`: phrases about the nodes that were passed over."""

    version: int
    pod: str
    node: str
    at: int
    reason: str
    others: tuple[str, ...] = ()
    containers: Mapping[str, ContainerRecord] = {}


def format_decision(record: DecisionRecord) -> str:
    """Shortened until it fits: first without the GPUs that were passed over, then without all but the node's reason."""
    plain = {name: ContainerRecord(each.gpus, each.reason) for name, each in record.containers.items()}
    smaller = replace(record, containers=plain)
    smallest = replace(record, containers={}, others=())
    texts = (msgspec.json.encode(each).decode() for each in (record, smaller, smallest))
    return next((text for text in texts if len(text) <= LONGEST), "")


def parse_decision(text: str) -> DecisionRecord:
    if len(text) > LONGEST:
        raise ParseError(f"annotation vcuda-decision has {len(text)} characters; at most {LONGEST} are read")
    found = decode_json(DecisionRecord, text, what="vcuda-decision")
    if found.version != VERSION:
        raise ParseError(f"annotation vcuda-decision has version {found.version}; this vcuda reads {VERSION}")
    return found
