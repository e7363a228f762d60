"""The CPU and memory of one node that pods of all kinds leave.

In: what the node offers, and what each pod takes. Out: what is spare, or None where it is not known: the node does not
say, or some pod does not. kube-scheduler alone sees to it that a pod fits; this is for the choice among the nodes that
it left. A node may be short of what was reserved on it, so what is spare may be less than nothing.
"""

from collections.abc import Iterable

from deviceplugin.model.units import MIB, NOTHING, Compute
from deviceplugin.placement.node_state import Spare
from deviceplugin.placement.workload import NO_NEEDS


class Beside:
    """Sums, so that a pod costs the same on a node of many."""

    def __init__(self) -> None:
        self._taken = NOTHING
        self._unknown = 0

    def take(self, needs: Compute | None) -> None:
        if needs is None:
            self._unknown += 1
        else:
            self._taken += needs

    def give_back(self, needs: Compute | None) -> None:
        if needs is None:
            self._unknown -= 1
        else:
            self._taken -= needs

    def spare(
        self, offered: Compute | None, *, without: Iterable[Compute | None] = (), further: Compute = NOTHING
    ) -> Spare | None:
        """As if some pods were not there, and as if something further was taken."""
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
    """As placement counts it: MiB, rounded up."""
    return NO_NEEDS if found is None else Spare(found.cpu_milli, -(-found.memory_bytes // MIB))
