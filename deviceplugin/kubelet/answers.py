"""What the agent has answered for containers, and which of these answers kubelet has lost.

In: pods that an identity source shows, the ledger, kubelet's checkpoint, the kernel's processes. Out: `AnswerRecords`,
plain values by which `identity` decides. They are read once for each list of pods.

Invariant: pods first, then the checkpoint, then the ledger. Kubelet writes its record of a container before it asks for
the next one, and PreStartContainer may move a grant while a source is asked: a ledger that is older than the pods shows
a container that has its GPU as one that waits.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence, Set

import msgspec
import structlog

from deviceplugin.errors import VcudaError
from deviceplugin.kubelet.checkpoint import CheckpointReader
from deviceplugin.ledger.grant import Checkpoint, Grant
from deviceplugin.ledger.ledger import Ledger
from deviceplugin.model.allocation import OwnerKey
from deviceplugin.model.pod import ContainerState, Pod, PodContainer
from deviceplugin.model.units import Resource
from deviceplugin.structs import replace

log = structlog.get_logger("vcuda.kubelet")


class AnswerRecords(msgspec.Struct, frozen=True):
    """`given`: the resources for which Allocate was answered, by container. `proved`: PreStartContainer has proved the
    grant.

    `lost`: kubelet has no record of an answer, and no process of the container lives; kubelet that starts again does
    not ask for one that runs.
    """

    given: Mapping[OwnerKey, Set[Resource]] = {}
    proved: frozenset[OwnerKey] = frozenset()
    lost: frozenset[OwnerKey] = frozenset()


class AnswerReader:
    """`running`: the ids of those grants whose directory a living process has mounted; it reads every process."""

    def __init__(
        self, ledger: Ledger, checkpoint: CheckpointReader, running: Callable[[Iterable[Grant]], frozenset[str]]
    ) -> None:
        self._ledger = ledger
        self._checkpoint = checkpoint
        self._running = running

    def checkpoint(self) -> Checkpoint | None:
        """Kubelet's checkpoint; None if it cannot be read, which the reconciler reports."""
        try:
            return self._checkpoint.read()
        except VcudaError as error:
            log.debug("checkpoint_unreadable", error=error.message)
            return None

    def given(self) -> AnswerRecords:
        """With none lost: kubelet may not have seen a pod yet, so that a missing record proves nothing."""
        owners = self._ledger.owners()
        return AnswerRecords(
            given={key: grant.answered for key, grant in owners.items()},
            proved=frozenset(key for key, grant in owners.items() if grant.proved),
        )

    async def read(self, pods: Sequence[Pod], resource: Resource, *, even_running: bool = False) -> AnswerRecords:
        """`lost` are answers for this resource; of containers that run by their status only if `even_running`.

        A status may be older than the end of its container.
        """
        unrecorded = self._unrecorded(
            resource,
            (
                container
                for pod in pods
                if not pod.is_terminal
                for container in pod.containers
                if even_running or container.state is not ContainerState.RUNNING
            ),
        )
        started = [grant for grant in unrecorded if grant.proved]
        living = await asyncio.to_thread(self._running, started) if started else frozenset()
        # The ledger once more, after the wait: PreStartContainer may have moved a grant meanwhile.
        return replace(self.given(), lost=frozenset(_key(grant) for grant in unrecorded if grant.id not in living))

    def _unrecorded(self, resource: Resource, containers: Iterable[PodContainer]) -> list[Grant]:
        """None if the checkpoint cannot be read: then no container counts as lost."""
        owners = self._ledger.owners()
        found = (owners.get(container.ref.key) for container in containers)
        grants = [grant for grant in found if grant is not None and resource in grant.answered]
        checkpoint = self.checkpoint() if grants else None
        return [grant for grant in grants if checkpoint is not None and not checkpoint.has(*_key(grant))]


def _key(grant: Grant) -> OwnerKey:
    return grant.allocation.owner.key
