"""One metric as its reference describes it: metrics are made from these values, and so is docs/reference/metrics.md."""

from dataclasses import dataclass

GPU = ("node", "gpu")
CONTAINER = (*GPU, "namespace", "pod", "container")


@dataclass(frozen=True, slots=True)
class Family:
    """Its name as it is scraped, its type, what it means, and its labels."""

    name: str
    type: str
    help: str
    labels: tuple[str, ...] = ()
