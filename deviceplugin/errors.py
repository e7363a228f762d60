"""Every error that vcuda raises on purpose.

    VcudaError
    ├── ConfigError        a flag, environment variable or file key is wrong
    ├── ParseError         malformed text of another program (topology, profile, annotation, checkpoint, PEM)
    ├── RequestError       a request that no GPU can ever serve
    │   └── UnknownDeviceError   device IDs that this node does not offer
    ├── CapacityError      a valid request that does not fit now
    │   └── SearchLimitError   it may fit; the search stopped at its limit
    ├── IdentityError      no source tells which container an Allocate is for
    ├── OwnershipError     what kubelet has recorded for a container cannot start; only a new pod can
    ├── ClaimError         a ResourceClaim cannot be prepared on this node
    │   └── ClaimOutdatedError   its GPUs are not here any more, or are not those that it was given
    ├── HardwareError      the driver is missing, fails or does not answer
    │   ├── DriverMissingError
    │   ├── GpuHangError   questions about one GPU hang; the others go on
    │   └── NvmlCallError
    ├── LedgerError        the journal cannot be read or written
    │   └── AgentRunningError   another agent of this node has it
    ├── KubeletError       kubelet refuses or does not answer
    │   └── GetMissingError    its PodResources API cannot be asked for one pod
    ├── KubeError          the API server refuses or does not answer
    │   ├── KubeNotFoundError
    │   ├── KubeConflictError
    │   └── KubeGoneError
    ├── RuntimeApiError    the container runtime refuses or does not answer
    ├── CallerGoneError    nobody waits for the answer any more
    └── ContainerError     a file or directory that a container mounts could not be written

A message is user interface: kubelet copies it into the pod's status. It is one sentence that says what was requested,
what is free or found, and what to do; it never holds a traceback. `status` is the gRPC code of the answer, `reason` the
reason of the Kubernetes event. Any other exception is a bug; callers get a generic sentence for it.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar

_LONGEST_FOREIGN_TEXT = 300


class VcudaError(Exception):
    """Base of the tree; `message` is complete and fit for a user.

    `finding`: what is wrong; `advice`: what to do, where it stands apart. Together they are the message.
    """

    status: ClassVar[str] = "INTERNAL"
    reason: ClassVar[str] = "GPUAllocationFailed"

    def __init__(self, finding: str, *, advice: str = "") -> None:
        self.message = f"{finding}; {advice}" if advice else finding
        super().__init__(self.message)
        self.finding = finding
        self.advice = advice


class ConfigError(VcudaError):
    """A flag, environment variable or key of the configuration file is wrong; the message names it."""

    status = "INVALID_ARGUMENT"


class ParseError(VcudaError):
    """Malformed text or bytes of another program; the message names the place."""

    status = "INVALID_ARGUMENT"


class TooManyGpusError(ParseError):
    """An inventory of more GPUs than vcuda places on one node."""


class RequestError(VcudaError):
    """A request that can never be served, whatever is free."""

    status = "INVALID_ARGUMENT"


class UnknownDeviceError(RequestError):
    """Kubelet names device IDs that this node does not offer, or not any more."""


class CapacityError(VcudaError):
    """A valid request that does not fit into what is free now."""

    status = "RESOURCE_EXHAUSTED"


class SearchLimitError(CapacityError):
    """The search for free GPUs stopped at its limit without a result; there may be one."""


class IdentityError(VcudaError):
    """Kubelet called Allocate and no source tells for which container."""

    status = "FAILED_PRECONDITION"


class OwnershipError(VcudaError):
    """What kubelet has recorded for a container cannot be started; kubelet tries again, but only a new pod helps."""

    status = "FAILED_PRECONDITION"
    reason = "GPUStartFailed"


class ClaimError(VcudaError):
    """A ResourceClaim that cannot be prepared on this node as it is."""

    status = "FAILED_PRECONDITION"


class ClaimOutdatedError(ClaimError):
    """The GPUs of the node have changed since the claim was allocated; only a new claim can be prepared."""


class HardwareError(VcudaError):
    """The driver answered with an error or not at all."""

    status = "UNAVAILABLE"
    reason = "GPUUnhealthy"


class DriverMissingError(HardwareError):
    """There is no NVIDIA driver on this machine."""


class GpuHangError(HardwareError):
    """The driver does not come back from a question about one GPU; `index` is NVML's number of it."""

    def __init__(self, message: str, *, index: int) -> None:
        super().__init__(message)
        self.index = index


class NvmlCallError(HardwareError):
    """One call of NVML failed; `code` is its nvmlReturn_t, `said` NVML's own words for it."""

    def __init__(self, finding: str, *, code: int, said: str = "", advice: str = "") -> None:
        super().__init__(finding, advice=advice)
        self.code = code
        self.said = said or self.message


class LedgerError(VcudaError):
    """The journal could not be read or written; nothing was granted."""

    status = "UNAVAILABLE"


class AgentRunningError(LedgerError):
    """Another agent holds the ledger of this node."""


class KubeletError(VcudaError):
    """Kubelet, or one of its files and sockets, refuses or does not answer."""

    status = "UNAVAILABLE"


class GetMissingError(KubeletError):
    """Kubelet's PodResources API has no `Get`, or it is turned off."""


class KubeError(VcudaError):
    """The API server refuses or does not answer; `code` is the HTTP status, 0 if there was none.

    `said`: its own words, in one line.
    """

    status = "UNAVAILABLE"

    def __init__(self, finding: str, *, code: int = 0, said: str = "", advice: str = "") -> None:
        super().__init__(finding, advice=advice)
        self.code = code
        self.said = said


class KubeNotFoundError(KubeError):
    """The object does not exist (404)."""


class KubeConflictError(KubeError):
    """The object changed meanwhile (409)."""


class KubeGoneError(KubeError):
    """The resource version is too old to watch from (410): list again."""


class RuntimeApiError(VcudaError):
    """The container runtime refuses or does not answer."""

    status = "UNAVAILABLE"


class CallerGoneError(VcudaError):
    """Nobody waits for the answer any more; only a log and a metric will have it."""

    status = "CANCELLED"


class ContainerError(VcudaError):
    """A file or directory that the container mounts could not be written."""

    status = "UNAVAILABLE"
    reason = "GPUStartFailed"


@contextmanager
def first_error() -> Iterator[None]:
    """A group of VcudaErrors that ends the body is raised as the first of them; a group with a bug in it stays whole.

    Not `except*`: before Python 3.11.4 it raises in a group of its own whatever is raised inside it (cpython#103590).
    """
    try:
        yield
    except BaseExceptionGroup as errors:
        if errors.split(VcudaError)[1] is not None:
            raise
        raise _first_of(errors) from None


def _first_of(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    first = errors.exceptions[0]
    return _first_of(first) if isinstance(first, BaseExceptionGroup) else first


def one_line(text: str, *, most: int = _LONGEST_FOREIGN_TEXT) -> str:
    """Foreign text made fit for an error sentence: whitespace joined, unprintable characters as `?`, the end cut."""
    joined = " ".join(text[: most * 4].split())
    clean = joined if joined.isprintable() else "".join(char if char.isprintable() else "?" for char in joined)
    return clean if len(clean) <= most else clean[: most - 3] + "..."
