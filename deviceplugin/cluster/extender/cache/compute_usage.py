"""The CPU and memory of one node that its pods leave free.

In: what the node offers, and what each pod uses. Out: what is free, or None where the node or a pod does not say.
kube-scheduler alone decides whether a pod fits; this value only ranks the nodes that kube-scheduler left. A reservation
may exceed what the node has, so the free amount may be negative.
"""

from collections.abc import Iterable

from deviceplugin.model.units import MIB, NOTHING, Compute
from deviceplugin.placement.node_state import Spare
from deviceplugin.placement.workload import NO_NEEDS


class ComputeUsage:
    """Running sums: adding a pod costs the same on a node with many pods."""

    def __init__(self) -> None:
        self._taken = NOTHING
        self._unknown = 0

    def add(self, needs: Compute | None) -> None:
        if needs is None:
            self._unknown += 1
        else:
            self._taken += needs

    def remove(self, needs: Compute | None) -> None:
        if needs is None:
            self._unknown -= 1
        else:
            self._taken -= needs

    def spare(
        self, offered: Compute | None, *, without: Iterable[Compute | None] = (), further: Compute = NOTHING
    ) -> Spare | None:
        """What is free, as if the pods of `without` were not there and `further` was used too."""
        taken, unknown = self._taken + further, self._unknown
        for needs in without:
            if needs is None:
                unknown -= 1
            else:
                taken -= needs
        if offered is None or unknown:
            return None
        left = offered - taken
        return Spare(left.cpu_milli, left.memory_bytes // MIB)


def needs_of(found: Compute | None) -> Spare:
    """In the unit of placement: MiB, rounded up."""
    return NO_NEEDS if found is None else Spare(found.cpu_milli, -(-found.memory_bytes // MIB))
