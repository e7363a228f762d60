"""Which XIDs make a GPU unhealthy.

In: the operator's lists. Out: a verdict for an XID, a phrase for people and a label for the metric. Not here: where
XIDs come from (`nvml_events`). An XID that only says that an application failed leaves the GPU as good as before: else
every tenant could take a shared GPU from the others by crashing. Any other, unknown ones included, makes it unhealthy.

The sets are the column "Immediate Action" of NVIDIA's Xid Catalog (Ampere and newer),
https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html. docs/gpu-health.md shows them.
"""

from collections.abc import Iterable
from dataclasses import dataclass

_COPY_ENGINES = frozenset({39, 40, 41, 70, 71, 72, 75, 76, 77, 85, *range(126, 136)})
_VIDEO_ENGINES = frozenset({60, 68, 82, 83, 84, 86, 88, 89, *range(96, 106), 139})
RESTART_APP = frozenset({8, 11, 13, 25, 31, 32, 69, 80, 94, *_COPY_ENGINES, *_VIDEO_ENGINES})
"""The application must be restarted, nothing else."""

IGNORE = frozenset({14, 37, 38, 43, 44, 63, 66, 67, 92, 93, 106, 107, 108, 121, 137, 141, 152, 153, 157, 160, 161})
"""Nothing has to be done at once."""

CLEANUP = frozenset({45})
"""Follows another XID, which decides, or the end of a killed process."""

_ENCODERS = frozenset({42, 47, 65, 73, 142})
RAISED_BY_APPLICATIONS = frozenset({109, *_ENCODERS})
"""Where vcuda differs from the catalog, because any application can raise them.

 - 109, a context switch timeout, comes from one kernel that does not yield. The catalog asks for a reset; so does the
   driver itself if one is needed (its recovery action, read after each XID).
 - The catalog calls the errors of video encoders unused or support cases: its products have none. T4, L4 and A10 do.
"""

POWER_SMOOTHING = frozenset(range(162, 166))
"""The hardware that evens out the power draw was switched on or off, or wears out. The catalog asks for no reset."""

APPLICATION_XIDS = RESTART_APP | IGNORE | CLEANUP | RAISED_BY_APPLICATIONS

_NVLINK_5 = frozenset(range(144, 151))
DECIDED_BY_ACTION = frozenset({154}) | _NVLINK_5
"""The driver's recovery action decides, which is read after each XID.

 - 154 only says that the action changed.
 - 144-150, the errors of NVLink 5, are anything from a corrected error, or a wrong address of an application, to a dead
   link. The catalog goes by a code that NVML does not tell. All drivers of GPUs with NVLink 5 tell the action.
"""

_HARMLESS = APPLICATION_XIDS | POWER_SMOOTHING | DECIDED_BY_ACTION
_LAST_CATALOGED = 172

_PHRASES = {
    8: "channel idle timeout",
    11: "invalid or corrupted push buffer",
    13: "graphics engine exception",
    25: "invalid or illegal push buffer",
    31: "GPU memory page fault",
    32: "invalid or corrupted push buffer",
    38: "driver firmware error",
    43: "GPU stopped processing",
    44: "graphics engine fault during context switch",
    45: "preemptive cleanup",
    46: "GPU stopped processing",
    48: "double-bit ECC error",
    61: "internal microcontroller breakpoint",
    62: "internal microcontroller halt",
    63: "row remapping or page retirement recorded",
    64: "row remapping or page retirement failed",
    69: "graphics engine class error",
    74: "NVLink error",
    79: "GPU has fallen off the bus",
    80: "corrupted data sent to the GPU",
    92: "high rate of single-bit ECC errors",
    94: "contained ECC error",
    95: "uncontained ECC error",
    109: "context switch timeout",
    110: "security fault",
    119: "GSP RPC timeout",
    120: "GSP error",
    137: "NVLink privilege error",
    140: "unrecovered ECC error",
    143: "GPU initialisation error",
    154: "recovery action changed",
    155: "NVLink software-defined error",
    156: "resource retirement recorded",
    158: "fatal timeout of the GPU",
    **dict.fromkeys(_NVLINK_5, "NVLink 5 error"),
    **dict.fromkeys(POWER_SMOOTHING, "power smoothing changed"),
    **dict.fromkeys(_COPY_ENGINES, "copy engine exception"),
    **dict.fromkeys(_VIDEO_ENGINES | _ENCODERS, "video processor exception"),
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
        return not (self.ignore_all or xid in self.ignored or xid in _HARMLESS)


def parse_policy(*, ignored: str = "", critical: str = "") -> XidPolicy:
    """Numbers as the settings hold them; `all` among the ignored ones switches off whatever is not named critical."""
    words = ignored.split(",")
    return XidPolicy(ignored=_numbers(words), critical=_numbers(critical.split(",")), ignore_all="all" in words)


def phrase(xid: int) -> str:
    """`XID 79 (GPU has fallen off the bus)`; an XID without a known meaning stands alone."""
    return f"XID {xid} ({_PHRASES[xid]})" if xid in _PHRASES else f"XID {xid}"


def label(xid: int) -> str:
    """The number, or `other` beyond the catalog: whatever a driver sends, the metric has a bounded set of series."""
    return str(xid) if 0 < xid <= _LAST_CATALOGED else "other"


def _numbers(words: Iterable[str]) -> frozenset[int]:
    return frozenset(int(word) for word in words if word.isdecimal())
