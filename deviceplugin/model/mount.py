"""One bind mount of a container: the value that the Allocate answer and a CDI file have in common."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Mount:
    """`host` is a path on the node, `inside` one in the container."""

    host: str
    inside: str
    read_only: bool = True
