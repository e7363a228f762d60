"""The agent's ledger as `GET /usage` shows it, read strictly: a field that is missing or of another type is an error.

In: the document's bytes. Out: `Usage`. Not here: asking for it (`agent`).
Invariant: written down a second time on purpose: a change of the interface must show here.
"""

import msgspec


class GpuUsage(msgspec.Struct, frozen=True):
    """One GPU and how much of it is given out."""

    uuid: str
    minor: int
    healthy: bool
    cores_allocated: int
    blocks_allocated: int
    blocks: int


class ShareUsage(msgspec.Struct, frozen=True):
    """What one container holds of one GPU, and uses; the minor is null when the GPU is gone."""

    uuid: str
    minor: int | None
    cores: int
    blocks: int
    memory_used_bytes: int | None
    memory_overhead_bytes: int | None
    memory_refusals: int | None
    cores_used: float | None
    throttled_seconds: float | None


class ContainerUsage(msgspec.Struct, frozen=True):
    """One container's entry in the ledger."""

    pod: str
    uid: str
    container: str
    role: str
    grant: str
    cores: int
    blocks: int
    gpus: tuple[ShareUsage, ...]
    proved: bool
    source: str
    processes: int | None
    over_limit: tuple[str, ...]


class Usage(msgspec.Struct, frozen=True):
    """The ledger at one moment."""

    version: int
    gpus: tuple[GpuUsage, ...]
    containers: tuple[ContainerUsage, ...]

    def held(self) -> "Usage":
        """Without what is measured, which changes from one look to the next and is unknown right after a start."""
        return msgspec.structs.replace(self, containers=tuple(_held(each) for each in self.containers))

    def pods(self) -> set[str]:
        return {container.uid for container in self.containers}

    def __str__(self) -> str:
        holders = [f"{each.pod}/{each.container} {each.cores}c {each.blocks}b" for each in self.containers]
        return f"{len(holders)} holders: {', '.join(holders)}"


def _held(container: ContainerUsage) -> ContainerUsage:
    shares = (
        msgspec.structs.replace(
            share,
            memory_used_bytes=None,
            memory_overhead_bytes=None,
            memory_refusals=None,
            cores_used=None,
            throttled_seconds=None,
        )
        for share in container.gpus
    )
    return msgspec.structs.replace(container, gpus=tuple(shares), processes=None, over_limit=())


def parse_usage(document: str) -> Usage:
    return msgspec.json.decode(document, type=Usage)
