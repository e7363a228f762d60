"""One metric as its reference describes it: metrics are made from these values, and so are their pages in docs/."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Family:
    """Its name as it is scraped, its type, what it means, and its labels."""

    name: str
    type: str
    help: str
    labels: tuple[str, ...] = ()
