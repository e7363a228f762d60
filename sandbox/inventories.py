"""Inventories of nodes that exist only as objects.

In: a node's name and what its GPUs are. Out: an `Inventory` and its annotation. Invariant: UUIDs are unique over nodes
and the same at every call.
"""

import uuid

from deviceplugin.model.gpu import Driver, Gpu, GpuUuid, Inventory
from deviceplugin.model.topology import Level, Link, Topology
from deviceplugin.model.units import MIB

_SPACE = uuid.UUID("6ba7b814-9dad-11d1-80b4-00c04fd430c8")


def made_up_inventory(
    node: str, *, gpus: int = 8, memory_mib: int = 81920, model: str = "NVIDIA A100-SXM4-80GB"
) -> Inventory:
    """Half of the GPUs on each NUMA node, NVLinks between all of them."""
    made = tuple(
        Gpu(
            uuid=GpuUuid(f"GPU-{uuid.uuid5(_SPACE, f'{node}/{minor}')}"),
            index=minor,
            minor=minor,
            model=model,
            memory_bytes=memory_mib * MIB,
            bus_id=f"00000000:{minor + 16:02X}:00.0",
            numa=minor * 2 // gpus,
        )
        for minor in range(gpus)
    )
    links = {(one, other): Link(Level.NVLINK, 12) for one in range(gpus) for other in range(one + 1, gpus)}
    return Inventory(made, Topology(tuple(range(gpus)), links), Driver("550.54.15", (12, 4)))
