"""A node with one more pod on it.

In: a node, and what `place_pod` chose on it for a pod of which nothing is there yet. Out: a new node. Pods add up, so
the others need not be known; of one pod the containers do not, and `occupancy` says what they hold together.

Invariant: nothing is taken that was not free.
"""

from collections.abc import Iterable
from dataclasses import replace

from deviceplugin.model.allocation import Allocation
from deviceplugin.placement.node_state import NodeState, Spare, without_spare
from deviceplugin.placement.occupancy import Occupancy, occupied
from deviceplugin.placement.snapshot import GpuView, Snapshot


def with_pod(state: NodeState, allocations: Iterable[Allocation], *, needs: Spare) -> NodeState:
    """`needs` is what the pod takes beside the GPUs, where the node has that counted."""
    held = occupied(allocations)
    if held:
        gpus = tuple(_less(view, held.get(view.gpu.uuid)) for view in state.snapshot.gpus)
        state = replace(state, snapshot=Snapshot(gpus, state.snapshot.topology))
    return without_spare(state, needs)


def _less(view: GpuView, held: Occupancy | None) -> GpuView:
    if held is None:
        return view
    cores, blocks = view.free_cores - held.cores, view.free_blocks - held.blocks
    assert cores >= 0 and blocks >= 0, f"more of {view.gpu.uuid} is taken than is free"  # noqa: PT018
    return replace(view, free_cores=cores, free_blocks=blocks)
