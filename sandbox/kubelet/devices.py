"""What kubelet's device manager remembers: devices of each resource, and who holds which.

In: the plugin's device lists, the results of Allocate, the set of pods that are still active. Out: capacity,
allocatable, free devices, each container's devices with the plugin's answer. Not here: RPCs, choice of devices, files.
Invariant: an ended pod's devices stay taken until `free_inactive` is called, which only admission and PodResources do.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from deviceplugin.wire import deviceplugin_pb2 as pb

NO_NUMA = -1

NumaDevices = Mapping[int, frozenset[str]]


@dataclass(frozen=True, slots=True)
class Held:
    """The devices of one resource of one container, by NUMA node, with the plugin's answer to Allocate."""

    by_numa: NumaDevices
    response: pb.ContainerAllocateResponse

    @property
    def ids(self) -> frozenset[str]:
        return frozenset().union(*self.by_numa.values())


@dataclass(frozen=True, slots=True)
class HeldKey:
    """Whose devices, of which resource."""

    uid: str
    container: str
    resource: str


class DeviceStore:
    """The tables; each method is one short step that no other task can interrupt."""

    def __init__(self) -> None:
        self.healthy: dict[str, frozenset[str]] = {}
        self.unhealthy: dict[str, frozenset[str]] = {}
        self.sick: dict[str, frozenset[str]] = {}  # what the plugin itself called unhealthy, unlike the end of a stream
        self.allocated: dict[str, set[str]] = {}
        self.held: dict[HeldKey, Held] = {}
        self._numa: dict[str, dict[str, frozenset[int]]] = {}

    def update(self, resource: str, devices: Iterable[pb.Device]) -> None:
        """A message of ListAndWatch: a whole snapshot, never a difference."""
        listed = list(devices)
        self.healthy[resource] = frozenset(device.ID for device in listed if device.health == "Healthy")
        self.unhealthy[resource] = frozenset(device.ID for device in listed if device.health != "Healthy")
        self.sick[resource] = self.unhealthy[resource]
        self._numa[resource] = {
            device.ID: frozenset(node.ID for node in device.topology.nodes)
            for device in listed
            if device.HasField("topology") and device.topology.nodes
        }

    def mark_unhealthy(self, resource: str) -> None:
        """The stream ended: nothing is healthy, capacity stays."""
        everything = self.healthy.get(resource, frozenset()) | self.unhealthy.get(resource, frozenset())
        self.healthy[resource] = frozenset()
        self.unhealthy[resource] = everything

    def forget(self, resource: str) -> None:
        self.healthy.pop(resource, None)
        self.unhealthy.pop(resource, None)

    def known(self, resource: str) -> bool:
        """Whether containers' limits of this name are device requests at all; if not, kubelet ignores them."""
        return resource in self.healthy or resource in self.allocated

    def capacity(self, resource: str) -> int:
        return len(self.healthy.get(resource, ())) + len(self.unhealthy.get(resource, ()))

    def numa_of(self, resource: str, device: str) -> frozenset[int]:
        return self._numa.get(resource, {}).get(device, frozenset())

    def has_topology(self, resource: str) -> bool:
        return bool(self._numa.get(resource))

    def numa_nodes(self) -> frozenset[int]:
        return frozenset(node for devices in self._numa.values() for nodes in devices.values() for node in nodes)

    def take(self, resource: str, devices: Iterable[str]) -> None:
        self.allocated.setdefault(resource, set()).update(devices)

    def hold(self, key: HeldKey, devices: frozenset[str], response: pb.ContainerAllocateResponse) -> None:
        by_numa: dict[int, frozenset[str]] = {}
        for device in devices:
            for node in self.numa_of(key.resource, device) or {NO_NUMA}:
                by_numa[node] = by_numa.get(node, frozenset()) | {device}
        self.held[key] = Held(by_numa, response)
        self.take(key.resource, devices)

    def of_container(self, uid: str, container: str) -> dict[str, Held]:
        return {key.resource: held for key, held in self.held.items() if (key.uid, key.container) == (uid, container)}

    def sick_of(self, uid: str, container: str) -> frozenset[str]:
        """The container's devices that the plugin called unhealthy."""
        if not any(self.sick.values()):
            return frozenset()
        held = self.of_container(uid, container)
        return frozenset().union(*(one.ids & self.sick.get(resource, frozenset()) for resource, one in held.items()))

    def free_inactive(self, active: Iterable[str]) -> None:
        """Drops what ended pods held. Only then is an in-flight reservation of another pod lost too, as upstream."""
        keep = set(active)
        gone = [key for key in self.held if key.uid not in keep]
        for key in gone:
            del self.held[key]
        if gone:
            self.recount()

    def recount(self) -> None:
        """Sets `allocated` to what is held; reservations of a call in flight are forgotten, as kubelet does."""
        allocated: dict[str, set[str]] = {}
        for key, held in self.held.items():
            allocated.setdefault(key.resource, set()).update(held.ids)
        self.allocated = allocated
