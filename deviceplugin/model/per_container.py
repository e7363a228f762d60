"""Annotations that give a number to every container of a pod, or to some by name: `2`, or `main=2,side=3`.

In: an annotation's text. Out: `PerContainer`, or a ParseError that says what to write. Later items win.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from deviceplugin.errors import ParseError
from deviceplugin.model.preferences import list_items

_ITEM = re.compile(r"(?:([a-z0-9]([-a-z0-9]*[a-z0-9])?)=)?([0-9]{1,10})", re.ASCII)


@dataclass(frozen=True, slots=True)
class PerContainer:
    """By a container's name, else `every`."""

    every: int
    by_name: Mapping[str, int] = field(default_factory=dict)

    def of(self, container: str) -> int:
        return self.by_name.get(container, self.every)


def parse_per_container(text: str, annotation: str, *, absent: int, most: int, wanted: str) -> PerContainer:
    """Numbers from 1 to `most`; `absent` is that of a container which is not named. `wanted` ends the error."""
    every, by_name = absent, {}
    for item in list_items(text, annotation):
        found = _ITEM.fullmatch(item.strip())
        number = int(found.group(3)) if found else 0
        if found is None or not 1 <= number <= most:
            raise ParseError(
                f"annotation {annotation} holds {text[:60]!r}; write {wanted} from 1 to {most}, "
                "or container=number for some containers"
            )
        if found.group(1):
            by_name[found.group(1)] = number
        else:
            every = number
    return PerContainer(every, by_name)


def format_per_container(by_name: Mapping[str, int]) -> str:
    return ",".join(f"{name}={by_name[name]}" for name in sorted(by_name))
