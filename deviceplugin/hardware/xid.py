"""Which XIDs make a GPU unhealthy.

In: the operator's lists. Out: a verdict for an XID, and a phrase for people. Not here: where XIDs come from
(`nvml_events`). An XID that only says that an application failed leaves the GPU as good as before; any other, unknown
ones included, makes it unhealthy.
"""

from collections.abc import Iterable
from dataclasses import dataclass

APPLICATION_XIDS = frozenset(
    {
        8,  # the application's channel was idle too long
        13,  # graphics engine exception: an illegal address or instruction of the application
        31,  # memory page fault: likewise
        43,  # the application was stopped
        45,  # preemptive cleanup after an earlier error, or after a killed process
        68,  # video processor exception
        94,  # contained ECC error: only the application that read the bad memory ends
        109,  # context switch timeout: seen under heavy sharing
    }
)

RECOVERY_ACTION_XID = 154
"""Only says that the driver's recovery action changed; the action itself is then read and decides."""

_PHRASES = {
    13: "graphics engine exception",
    31: "GPU memory page fault",
    32: "invalid or corrupted push buffer",
    38: "driver firmware error",
    43: "GPU stopped processing",
    45: "preemptive cleanup",
    48: "double-bit ECC error",
    61: "internal microcontroller breakpoint",
    62: "internal microcontroller halt",
    63: "row remapping or page retirement recorded",
    64: "row remapping or page retirement failed",
    68: "video processor exception",
    69: "graphics engine class error",
    74: "NVLink error",
    79: "GPU has fallen off the bus",
    92: "high rate of single-bit ECC errors",
    94: "contained ECC error",
    95: "uncontained ECC error",
    109: "context switch timeout",
    119: "GSP RPC timeout",
    120: "GSP error",
    140: "unrecovered ECC error",
    154: "recovery action changed",
}


@dataclass(frozen=True, slots=True)
class XidPolicy:
    """`ignored` on top of the application's own; `critical` wins over both; `ignore_all` leaves only `critical`."""

    ignored: frozenset[int] = frozenset()
    critical: frozenset[int] = frozenset()
    ignore_all: bool = False

    def is_critical(self, xid: int) -> bool:
        if xid in self.critical:
            return True
        return not (self.ignore_all or xid in APPLICATION_XIDS or xid in self.ignored or xid == RECOVERY_ACTION_XID)


def parse_policy(*, ignored: str = "", critical: str = "") -> XidPolicy:
    """Numbers as the settings hold them; `all` among the ignored ones switches off whatever is not named critical."""
    words = ignored.split(",")
    return XidPolicy(ignored=_numbers(words), critical=_numbers(critical.split(",")), ignore_all="all" in words)


def phrase(xid: int) -> str:
    """`XID 79 (GPU has fallen off the bus)`; an XID without a known meaning stands alone."""
    return f"XID {xid} ({_PHRASES[xid]})" if xid in _PHRASES else f"XID {xid}"


def _numbers(words: Iterable[str]) -> frozenset[int]:
    return frozenset(int(word) for word in words if word.isdecimal())
