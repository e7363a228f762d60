"""Every error that vcuda raises on purpose.

    VcudaError
    ├── ConfigError        a flag, environment variable or file key is wrong
    ├── ParseError         foreign text that does not say what it should (topology, profile, annotation, checkpoint)
    ├── RequestError       a request that no GPU could ever serve
    ├── CapacityError      a good request that does not fit now
    │   └── GivenUpError   or that might, and not every way was tried
    ├── IdentityError      kubelet asked, and it is not known for which container
    ├── OwnershipError     what kubelet proves at PreStartContainer cannot be carried out
    ├── HardwareError      the driver is missing, broken or does not answer
    │   ├── DriverMissingError
    │   └── NvmlCallError
    ├── LedgerError        the journal cannot be read or written
    ├── KubeletError       kubelet refuses or does not answer
    ├── KubeError          the API server refuses or does not answer
    │   ├── KubeNotFoundError
    │   ├── KubeConflictError
    │   └── KubeGoneError
    ├── RuntimeApiError    the container runtime refuses or does not answer
    └── ContainerError         what a container sees could not be written

A message is user interface: kubelet pastes it into the pod's status. It is one sentence that says what was asked, what
is free or found, and what to do; it never holds a traceback. `status` names the gRPC code that an edge answers with,
`reason` the Kubernetes event reason. Anything else that is raised is a bug; edges answer it with a generic sentence.
"""

from typing import ClassVar

_LONGEST_FOREIGN_TEXT = 300


class VcudaError(Exception):
    """Base of the tree; `message` is complete and fit for a user."""

    status: ClassVar[str] = "INTERNAL"
    reason: ClassVar[str] = "GPUAllocationFailed"

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class ConfigError(VcudaError):
    """A flag, environment variable or key of the configuration file is wrong; the message names it."""

    status = "INVALID_ARGUMENT"


class ParseError(VcudaError):
    """Foreign text or bytes that do not say what they should; the message names the place."""

    status = "INVALID_ARGUMENT"


class RequestError(VcudaError):
    """A request that can never be served, whatever is free."""

    status = "INVALID_ARGUMENT"


class CapacityError(VcudaError):
    """A good request that nothing free can serve now."""

    status = "RESOURCE_EXHAUSTED"


class SearchLimitError(CapacityError):
    """No room was found in the time there is for the search; there may be some."""


class IdentityError(VcudaError):
    """Kubelet asked for devices and no source says for which container."""

    status = "FAILED_PRECONDITION"


class OwnershipError(VcudaError):
    """Kubelet's checkpoint proves an owner whom the grant cannot serve; kubelet tries the start again."""

    status = "FAILED_PRECONDITION"
    reason = "GPUStartFailed"


class HardwareError(VcudaError):
    """The driver answered with an error or not at all."""

    status = "UNAVAILABLE"
    reason = "GPUUnhealthy"


class DriverMissingError(HardwareError):
    """There is no NVIDIA driver on this machine."""


class NvmlCallError(HardwareError):
    """One call of NVML failed; `code` is its nvmlReturn_t, `said` NVML's own words for it."""

    def __init__(self, message: str, *, code: int, said: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.said = said or message


class LedgerError(VcudaError):
    """The journal could not be read or written; nothing was granted."""

    status = "UNAVAILABLE"


class KubeletError(VcudaError):
    """Kubelet, or one of its files and sockets, refuses or does not answer."""

    status = "UNAVAILABLE"


class KubeError(VcudaError):
    """The API server refuses or does not answer; `code` is the HTTP status, 0 where there was none."""

    status = "UNAVAILABLE"

    def __init__(self, message: str, *, code: int = 0) -> None:
        super().__init__(message)
        self.code = code


class KubeNotFoundError(KubeError):
    """The object does not exist (404)."""


class KubeConflictError(KubeError):
    """The object changed meanwhile (409)."""


class KubeGoneError(KubeError):
    """The resource version is too old to watch from (410): list again."""


class RuntimeApiError(VcudaError):
    """The container runtime refuses or does not answer."""

    status = "UNAVAILABLE"


class ContainerError(VcudaError):
    """A file or directory that the container mounts could not be written."""

    status = "UNAVAILABLE"
    reason = "GPUStartFailed"


def one_line(text: str, *, most: int = _LONGEST_FOREIGN_TEXT) -> str:
    """Foreign text made fit for an error sentence: whitespace joined, unprintable characters as `?`, the end cut."""
    joined = " ".join(text[: most * 4].split())
    clean = "".join(char if char.isprintable() else "?" for char in joined)
    return clean if len(clean) <= most else clean[: most - 3] + "..."
