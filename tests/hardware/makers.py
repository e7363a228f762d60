"""Inventories for tests, made by hand."""

from deviceplugin.model.gpu import Driver, Gpu, GpuUuid, Health, Inventory
from deviceplugin.model.topology import Level, Link, Topology

GIB = 1 << 30


def gpu(index: int, *, minor: int | None = None, memory_gib: int = 16, uuid: str = "", bus_id: str = "") -> Gpu:
    return Gpu(
        uuid=GpuUuid(uuid or f"GPU-{index}"),
        index=index,
        minor=index if minor is None else minor,
        model="Tesla T4",
        memory_bytes=memory_gib * GIB,
        bus_id=bus_id or f"00000000:{index + 1:02X}:00.0",
        numa=index % 2,
    )


def inventory(count: int = 2, *, health: dict[GpuUuid, Health] | None = None) -> Inventory:
    gpus = tuple(gpu(index) for index in range(count))
    links = {(one.minor, one.minor + 1): Link(level=Level.PIX, nvlinks=2) for one in gpus[:-1]}
    topology = Topology(minors=tuple(one.minor for one in gpus), links=links)
    return Inventory(gpus=gpus, topology=topology, driver=Driver("550.54.15", (12, 4)), health=health or {})
