"""What the agent tells people about its decisions: one log line, one event, one count for each.

In: the facts from kubelet's flows and from upkeep. Out: structlog lines, events on the pod or the node, metrics.
Nothing here waits or raises: a decision must not fail because nobody could be told.
"""

from collections.abc import Sequence

import structlog

from deviceplugin.errors import VcudaError
from deviceplugin.hardware.health import HealthChange
from deviceplugin.kube.events import EventReason, EventRecorder
from deviceplugin.kubelet.claims import Claim
from deviceplugin.ledger.grant import Grant, GrantId
from deviceplugin.model.allocation import ContainerRef
from deviceplugin.model.gpu import GpuUuid, Inventory
from deviceplugin.model.request import RequestKind
from deviceplugin.model.units import CORES_PER_GPU, format_blocks
from deviceplugin.model.usage import Breach, Overrun
from deviceplugin.observe.metrics import AgentMetrics
from deviceplugin.placement.place import Choice

log = structlog.get_logger("vcuda.agent")
_TELL_AGAIN_S = 600.0
_BreachKey = tuple[Breach, GpuUuid]


class AgentReport:
    """Serves kubelet's flows (`kubelet.allocate_context.Report`) and upkeep."""

    def __init__(self, metrics: AgentMetrics, events: EventRecorder) -> None:
        self._metrics = metrics
        self._events = events
        self._breaches: dict[GrantId, dict[_BreachKey, float]] = {}

    def granted(self, claim: Claim, grant: Grant, choice: Choice) -> None:
        owner = grant.allocation.owner
        log.info(
            "allocated",
            **_container(owner),
            grant=grant.id,
            cores=grant.allocation.request.cores,
            blocks=grant.allocation.request.blocks,
            gpus=[{"uuid": gpu.uuid, "minor": gpu.minor} for gpu in choice.gpus],
            evaluator=choice.evaluator.value,
            because=choice.reason,
            identity=grant.source.value,
            certain=claim.certain,
        )
        log.debug("passed over", **_container(owner), gpus={each.gpu.minor: each.reason for each in choice.passed_over})
        self._metrics.granted()
        self._events.about_pod(claim.pod.api_ref, EventReason.ALLOCATED, _sentence(grant, choice))

    def refused(self, claim: Claim | None, resource_name: str, count: int, error: VcudaError) -> None:
        owner = _container(claim.container.ref) if claim else {}
        log.warning("allocation refused", **owner, resource=resource_name, count=count, cause=error.message)
        self._metrics.refused(error)
        if claim is not None:
            self._events.about_pod(claim.pod.api_ref, EventReason.of(error), error.message)

    def started(self, grant: Grant, *, written: bool) -> None:
        self._metrics.started()
        if not written:
            return
        owner = grant.allocation.owner
        log.info("limits written", **_container(owner), grant=grant.id)
        if owner.pod.name:
            text = f"the limits of container {owner.name} are in place"
            self._events.about_pod(owner.pod, EventReason.CONFIG_WRITTEN, text)

    def limits_changed(self, grant: Grant) -> None:
        owner, cores, soft = grant.allocation.owner, grant.allocation.request.cores_per_gpu, grant.soft_cores
        log.info("limits changed", **_container(owner), grant=grant.id, cores=cores, soft_cores=soft)
        if owner.pod.name:
            now = f"may borrow idle time up to {soft} cores" if soft > cores else f"is held to its {cores} cores"
            self._events.about_pod(owner.pod, EventReason.CONFIG_WRITTEN, f"container {owner.name} now {now}")

    def start_failed(self, owner: ContainerRef | None, error: VcudaError) -> None:
        log.warning("start refused, kubelet tries again", **(_container(owner) if owner else {}), cause=error.message)
        self._metrics.start_failed(error)
        if owner is not None and owner.pod.name:
            self._events.about_pod(owner.pod, EventReason.of(error), error.message)

    def repaired(self, before: ContainerRef, grant: Grant) -> None:
        owner = grant.allocation.owner
        log.warning("a grant changed hands", **_container(owner), grant=grant.id, recorded_for=str(before))
        self._metrics.repaired()
        if owner.pod.name:
            text = f"the GPU slice of container {owner.name} was recorded for {before} first and has been put right"
            self._events.about_pod(owner.pod, EventReason.LEDGER_REPAIRED, text)

    def released(self, grant: Grant) -> None:
        log.info("released", **_container(grant.allocation.owner), grant=grant.id)

    def conduct(self, grant: Grant, overruns: Sequence[Overrun], *, now: float) -> None:
        """What a container does beyond its limits: told when it begins, again now and then, and when it is over."""
        told = self._breaches.setdefault(grant.id, {}) if overruns else self._breaches.get(grant.id, {})
        owner = grant.allocation.owner
        for each in overruns:
            key = (each.breach, each.gpu)
            if now - told.get(key, -_TELL_AGAIN_S) >= _TELL_AGAIN_S:
                told[key] = now
                log.warning("over its limit", **_container(owner), breach=each.breach.value, cause=each.sentence)
                if owner.pod.name:
                    self._events.about_pod(owner.pod, EventReason.OVER_LIMIT, each.sentence)
        for key in told.keys() - {(each.breach, each.gpu) for each in overruns}:
            del told[key]
            log.info("within its limit again", **_container(owner), breach=key[0].value)

    def forget(self, grant: GrantId) -> None:
        """The grant is no more."""
        self._breaches.pop(grant, None)

    def health_changed(self, change: HealthChange, inventory: Inventory) -> None:
        gpu = inventory.gpu(change.uuid)
        name = f"GPU {gpu.minor} ({gpu.model}, {gpu.uuid})" if gpu else f"GPU {change.uuid}"
        if change.new.healthy:
            self._events.about_node(EventReason.RECOVERED, f"{name} is healthy again ({change.old.reason} before)")
        else:
            self._events.about_node(
                EventReason.UNHEALTHY, f"{name} is unhealthy: {change.new.reason}; nothing new is placed on it"
            )


def _container(owner: ContainerRef) -> dict[str, str]:
    return {
        "namespace": owner.pod.namespace,
        "pod": owner.pod.name,
        "uid": owner.pod.uid,
        "container": owner.name,
    }


def _sentence(grant: Grant, choice: Choice) -> str:
    request = grant.allocation.request
    where = ", ".join(str(gpu.minor) for gpu in choice.gpus)
    if choice.evaluator is RequestKind.SHARE:
        gpus = f"GPU {where}" if request.gpus == 1 else f"each of GPUs {where}"
        what = f"{request.cores_per_gpu} cores and {format_blocks(request.blocks_per_gpu)} of {gpus}"
    else:
        what = f"{request.cores // CORES_PER_GPU} whole GPU{'s' if request.gpus > 1 else ''}: {where}"
    return f"container {grant.allocation.owner.name} got {what} ({choice.reason})"
