"""Ages, amounts of memory and shares of a whole, as tables show them.

In: numbers of the view. Out: short text; a dash where a value is not known.
"""

from collections.abc import Iterable

UNKNOWN = "-"
BLOCK_BYTES = 256 << 20
_MINUTE, _HOUR, _DAY = 60, 3600, 86400
_YEAR = 365 * _DAY


def age(seconds: float) -> str:
    """As kubectl writes it: 119s, 5m30s, 42m, 3h15m, 47h, 5d3h, 89d, 3y200d."""
    whole = int(seconds)
    if whole < 0:
        return "0s"
    if whole < 2 * _MINUTE:
        return f"{whole}s"
    if whole < 10 * _MINUTE:
        return _two(whole, _MINUTE, "m", 1, "s")
    if whole < 3 * _HOUR:
        return f"{whole // _MINUTE}m"
    if whole < 8 * _HOUR:
        return _two(whole, _HOUR, "h", _MINUTE, "m")
    if whole < 2 * _DAY:
        return f"{whole // _HOUR}h"
    if whole < 8 * _DAY:
        return _two(whole, _DAY, "d", _HOUR, "h")
    if whole < 2 * _YEAR:
        return f"{whole // _DAY}d"
    return _two(whole, _YEAR, "y", _DAY, "d") if whole < 8 * _YEAR else f"{whole // _YEAR}y"


def _two(whole: int, large: int, large_sign: str, small: int, small_sign: str) -> str:
    rest = whole % large // small
    return f"{whole // large}{large_sign}" + (f"{rest}{small_sign}" if rest else "")


def memory(size: float | None) -> str:
    """Bytes as 512Mi or 3.5Gi."""
    if size is None:
        return UNKNOWN
    if size < 1 << 30:
        return f"{round(size / (1 << 20))}Mi"
    gib = size / (1 << 30)
    return f"{gib:.0f}Gi" if gib == int(gib) or gib >= 100 else f"{gib:.1f}Gi"


def blocks(count: int) -> str:
    return memory(count * BLOCK_BYTES)


def of(part: str, whole: str) -> str:
    return f"{part}/{whole}"


def percent(part: float | None) -> str:
    return UNKNOWN if part is None else f"{part:.0f}%"


def seconds(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:.1f}s" if value < 100 else f"{value:.0f}s"


def total(values: Iterable[float | None]) -> float | None:
    """The sum of what is known; None where nothing is."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None
