"""Short ways to make the values that the tests of the ledger need."""

import io
from collections.abc import Iterable
from pathlib import Path

from deviceplugin.ledger.grant import Grant, GrantId, Source
from deviceplugin.ledger.journal import Journal
from deviceplugin.ledger.ledger import Claimant, Ledger
from deviceplugin.ledger.records import Scan, scan
from deviceplugin.model.allocation import Allocation, ContainerRef, ContainerRole, GpuShare, PodRef, PodUid
from deviceplugin.model.gpu import Driver, Gpu, GpuUuid, Inventory
from deviceplugin.model.pod import ContainerState, Pod, PodContainer
from deviceplugin.model.request import Request
from deviceplugin.model.topology import Topology
from deviceplugin.model.units import BLOCK_BYTES, CORES_PER_GPU, Resource

BLOCKS = 64


def uuid(minor: int) -> GpuUuid:
    return GpuUuid(f"GPU-{minor}")


def inventory(count: int = 2) -> Inventory:
    gpus = tuple(Gpu(uuid(minor), minor, minor, "Test GPU", BLOCKS * BLOCK_BYTES) for minor in range(count))
    return Inventory(gpus, Topology(tuple(range(count))), Driver("550.54.15", (12, 4)))


def owner(pod: str, container: str = "main") -> ContainerRef:
    return ContainerRef(PodRef(PodUid(f"uid-{pod}"), "default", pod), container)


def shares(cores: int, blocks: int, minors: Iterable[int]) -> tuple[GpuShare, ...]:
    whole = cores >= CORES_PER_GPU
    return tuple(
        GpuShare(uuid(minor), CORES_PER_GPU if whole else cores, BLOCKS if whole else blocks) for minor in minors
    )


def grant(
    pod: str,
    *,
    cores: int = 30,
    blocks: int = 8,
    on: Iterable[int] = (0,),
    container: str = "main",
    role: ContainerRole = ContainerRole.APP,
    index: int = 0,
    grant_id: str = "",
    proved: bool = False,
    answered: Iterable[Resource] = (Resource.CORE,),
    source: Source = Source.PODS,
) -> Grant:
    allocation = Allocation(owner(pod, container), role, Request(cores, blocks), shares(cores, blocks, on), index)
    return Grant(
        id=GrantId(grant_id or f"g-{pod}-{container}"),
        allocation=allocation,
        answered=frozenset(answered),
        source=source,
        proved=proved,
        created=1000.0,
    )


def claimant(pod: str, *, cores: int = 30, blocks: int = 8, container: str = "main") -> Claimant:
    return Claimant(owner(pod, container), ContainerRole.APP, Request(cores, blocks))


def pod(
    name: str,
    *,
    phase: str = "Running",
    state: ContainerState = ContainerState.RUNNING,
    role: ContainerRole = ContainerRole.APP,
    index: int = 0,
    deleting: bool = False,
    container: str = "main",
) -> Pod:
    ref = owner(name, container)
    return Pod(ref.pod, (PodContainer(ref, role, index, 30, 8, state=state),), phase=phase, deleting=deleting)


def open_journal(directory: Path) -> Journal:
    """Numbers instead of the time of day, so that the same changes give the same bytes."""
    return Journal.open(directory / "ledger.journal", clock=lambda: 1000.0)


def scanned(data: bytes) -> Scan:
    return scan(io.BytesIO(data))


def open_ledger(directory: Path) -> Ledger:
    return Ledger(open_journal(directory))
