"""What a check of the demo says of what was found, compared with what it must say."""

from collections.abc import Iterable
from typing import Any

from scripts.demonstration.output import Check


def misjudged(checks: Iterable[tuple[Check, str | bool]]) -> list[Any]:
    """Those that pass and must not, and the other way round. A text: it does not pass, and says that; "": it passes."""
    return [(check, must) for check, must in checks if not _agrees(check, must)]


def _agrees(check: Check, must: str | bool) -> bool:
    if isinstance(must, bool):
        return check.passed is must
    return check.passed == (not must) and must in check.found
