"""Reports the agent's decisions: one log line, one event and one count for each.

In: facts from kubelet's flows, the reconciler and the container watch. Out: log lines, events on the pod or the node,
metrics. Nothing here waits or raises: a decision must not fail because a report could not be sent.
"""

import asyncio
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

import structlog

from deviceplugin.agent.unallocated import has_controller
from deviceplugin.errors import VcudaError
from deviceplugin.hardware.health import HealthChange
from deviceplugin.kube.events import EventReason, EventRecorder
from deviceplugin.kubelet.dra.claim_grants import PreparedDevice
from deviceplugin.kubelet.identity import IdentifiedContainer
from deviceplugin.ledger.grant import Grant, GrantId
from deviceplugin.log import Pace
from deviceplugin.model.allocation import ContainerRef
from deviceplugin.model.gpu import Breach, GpuUuid, Inventory, Overrun
from deviceplugin.model.pod import Pod, PodContainer
from deviceplugin.model.request import RequestKind
from deviceplugin.model.units import CORES_PER_GPU, MIB, memory_text
from deviceplugin.observe.metrics import REFUSED_CONNECTIONS, REPAIRS, STARTS, AgentMetrics, reason_of
from deviceplugin.placement.pod import Choice

log = structlog.get_logger("vcuda.agent")
_REPEAT_S = 600.0
_ViolationKey = tuple[Breach, GpuUuid]


class AgentReport:
    """Serves kubelet's flows (`kubelet.allocate_context.Report`), the reconciler and the container watch."""

    def __init__(self, metrics: AgentMetrics, events: EventRecorder) -> None:
        self._metrics = metrics
        self._events = events
        self._reported: dict[GrantId, dict[_ViolationKey, float]] = {}
        self._told: dict[GrantId, set[EventReason]] = {}
        self._refusals = Pace(_REPEAT_S)

    def granted(self, asking: IdentifiedContainer, grant: Grant, choice: Choice, *, seconds: float) -> None:
        """Soon: kubelet waits for its answer."""
        asyncio.get_running_loop().call_soon(self._granted, asking, grant, choice, seconds)

    def _granted(self, asking: IdentifiedContainer, grant: Grant, choice: Choice, seconds: float) -> None:
        owner = grant.allocation.owner
        log.info(
            "grant_created",
            **owner_fields(owner),
            grant=grant.id,
            cores=grant.allocation.request.cores,
            blocks=grant.allocation.request.blocks,
            gpus=[{"uuid": gpu.uuid, "minor": gpu.minor} for gpu in choice.gpus],
            evaluator=choice.evaluator.value,
            reason=choice.reason,
            identity=grant.source.value,
            certain=asking.certain,
        )
        passed_over = {each.gpu.minor: each.reason for each in choice.passed_over}
        log.debug("gpus_passed_over", **owner_fields(owner), gpus=passed_over)
        self._metrics.granted(seconds)
        self._events.about_pod(asking.pod.api_ref, EventReason.ALLOCATED, _sentence(grant, choice))

    def refused(
        self,
        asking: IdentifiedContainer | None,
        resource_name: str,
        count: int,
        error: VcudaError,
        *,
        seconds: float,
    ) -> None:
        owner = owner_fields(asking.container.ref) if asking else {}
        log.warning("allocation_refused", **owner, resource=resource_name, count=count, error=error.message)
        self._metrics.refused(reason_of(error), seconds)
        if asking is not None:
            self._events.about_pod(asking.pod.api_ref, EventReason.of(error), error.message)

    def claim_prepared(
        self, grants: Sequence[Grant], devices: Sequence[PreparedDevice], pods: Sequence[Pod], *, seconds: float
    ) -> None:
        """Soon: kubelet waits for its answer."""
        asyncio.get_running_loop().call_soon(self._claim_prepared, grants, devices, pods, seconds)

    def _claim_prepared(
        self, grants: Sequence[Grant], devices: Sequence[PreparedDevice], pods: Sequence[Pod], seconds: float
    ) -> None:
        for grant in grants:
            owner = grant.allocation.owner
            self._metrics.granted(seconds)
            text = _claim_sentence(grant, [each.device for each in devices if each.request == owner.name])
            for pod in pods:
                self._events.about_pod(pod.api_ref, EventReason.ALLOCATED, text)

    def claim_refused(self, error: VcudaError, *, seconds: float) -> None:
        """Kubelet makes the pod's event of the answer, and who answers logs it."""
        self._metrics.refused(reason_of(error), seconds)

    def claims_joined(self, container: PodContainer, pod: Pod, held: Collection[str]) -> None:
        """Kubelet starts such a container without a call."""
        text = (
            f"container {container.ref.name} has {len(held)} parts of GPUs ({', '.join(sorted(held))}), and the "
            "limits of only one of them count in it; delete the pod, and name one request in its resources.claims"
        )
        log.warning("pod_has_two_claims", **owner_fields(container.ref), error=text)
        self._events.about_pod(pod.api_ref, EventReason.START_FAILED, text)

    def started(self) -> None:
        self._metrics.count(STARTS, outcome="started", reason="")

    def limits_written(self, grant: Grant) -> None:
        owner = grant.allocation.owner
        log.info("limits_written", **owner_fields(owner), grant=grant.id)
        self._tell(owner, EventReason.CONFIG_WRITTEN, f"the limits of container {owner.name} are in place")

    def limits_changed(self, grants: Sequence[Grant]) -> None:
        """By one change of a pod: a line with its first container and their number, an event for each of them."""
        first = grants[0]
        cores, soft, mib = _limits_of(first)
        numbers = {"containers": len(grants), "cores": cores, "soft_cores": soft, "memory_mib": mib}
        log.info("limits_changed", **owner_fields(first.allocation.owner), grant=first.id, **numbers)
        for grant in grants:
            cores, soft, mib = _limits_of(grant)
            owner = grant.allocation.owner
            now = f"may borrow idle time up to {soft} cores" if soft > cores else f"is limited to its {cores} cores"
            self._tell(
                owner, EventReason.CONFIG_WRITTEN, f"container {owner.name} now {now} and to {mib} MiB of memory"
            )

    def start_failed(self, owner: ContainerRef | None, error: VcudaError) -> None:
        log.warning("start_refused", **(owner_fields(owner) if owner else {}), error=error.message)
        self._metrics.start_failed(reason_of(error))
        if owner is not None:
            self._tell(owner, EventReason.of(error), error.message)

    def unstartable(self, pod: Pod, container: str, why: str) -> None:
        """Only a new pod can start; the agent deletes the pod if its controller creates it again."""
        command = f"kubectl delete pod -n {pod.api_ref.namespace} {pod.api_ref.name}"
        what = "vcuda deletes the pod" if has_controller(pod) else f"run `{command}` and create the pod again"
        text = f"container {container} can never start in this pod, so {what}: {why}"
        self._events.about_pod(pod.api_ref, EventReason.START_FAILED, text)

    def repaired(self, before: ContainerRef, grant: Grant) -> None:
        owner = grant.allocation.owner
        log.warning("grant_repaired", **owner_fields(owner), grant=grant.id, recorded_for=str(before))
        self._metrics.count(REPAIRS)
        text = f"the GPU slice of container {owner.name} was recorded for {before} first and is now corrected"
        self._tell(owner, EventReason.LEDGER_REPAIRED, text)

    def released(self, grant: Grant) -> None:
        log.info("grant_released", **owner_fields(grant.allocation.owner), grant=grant.id)
        self.forget(grant.id)

    def violations(self, grant: Grant, overruns: Sequence[Overrun], *, now: float) -> None:
        """A container exceeds its limits: reported when it starts, every ten minutes, and when it has ended."""
        reported = self._reported.setdefault(grant.id, {}) if overruns else self._reported.get(grant.id, {})
        owner = grant.allocation.owner
        for each in overruns:
            key = (each.breach, each.gpu)
            if now - reported.get(key, -_REPEAT_S) >= _REPEAT_S:
                reported[key] = now
                log.warning("limit_violated", **owner_fields(owner), violation=each.breach.value, error=each.sentence)
                self._tell(owner, EventReason.OVER_LIMIT, each.sentence)
        for key in reported.keys() - {(each.breach, each.gpu) for each in overruns}:
            del reported[key]
            log.info("violation_ended", **owner_fields(owner), violation=key[0].value)

    def registration_refused(self, grant: Grant, why: str) -> None:
        """What came through the socket of this container is not of gpu-manager's client; said every ten minutes."""
        self._metrics.count(REFUSED_CONNECTIONS)
        if self._refusals.allows(grant.id):
            error = f"a connection to vcuda.sock was ended: {why}; only this container waits longer for its next ones"
            log.warning("registration_refused", **owner_fields(grant.allocation.owner), grant=grant.id, error=error)

    def files_lost(self, grant: Grant) -> None:
        text = (
            f"the files of container {grant.allocation.owner.name} on the node were removed while it runs, so new "
            "processes in it have no limits and its use is not known; delete the pod, so that it starts with new files"
        )
        self._tell_once(grant, EventReason.FILES_LOST, "files_lost", text)

    def gpu_gone(self, grant: Grant, gpus: Sequence[GpuUuid]) -> None:
        text = (
            f"GPU {', '.join(gpus)} of container {grant.allocation.owner.name} is not on this node any more; "
            "if another GPU has its device node now, the container may use that one uncounted, so delete the pod"
        )
        self._tell_once(grant, EventReason.GONE, "gpu_gone", text)

    def _tell_once(self, grant: Grant, reason: EventReason, entry: str, text: str) -> None:
        """Once for each grant in the life of this agent."""
        told = self._told.setdefault(grant.id, set())
        if reason in told:
            return
        told.add(reason)
        owner = grant.allocation.owner
        log.warning(entry, **owner_fields(owner), grant=grant.id, error=text)
        self._tell(owner, reason, text)

    def _tell(self, owner: ContainerRef, reason: EventReason, text: str) -> None:
        """On the pod, unless its grant was rebuilt without it: then only the UID is known."""
        if owner.pod.name:
            self._events.about_pod(owner.pod, reason, text)

    def forget(self, grant: GrantId) -> None:
        self._reported.pop(grant, None)
        self._told.pop(grant, None)

    def health_changed(self, change: HealthChange, inventory: Inventory) -> None:
        gpu = inventory.gpu(change.uuid)
        name = f"GPU {gpu.minor} ({gpu.model}, {gpu.uuid})" if gpu else f"GPU {change.uuid}"
        if change.new.healthy:
            self._events.about_node(EventReason.RECOVERED, f"{name} is healthy again ({change.old.reason} before)")
        else:
            self._events.about_node(
                EventReason.UNHEALTHY, f"{name} is unhealthy: {change.new.reason}; no new pod is placed on it"
            )


def delays_said() -> Callable[[Path, str], None]:
    """Says of files that containers have let grow, and that cannot be cut yet, each reason once a minute."""
    pace = Pace()

    def delayed(path: Path, why: str) -> None:
        if pace.allows(why):
            log.warning("cutting_delayed", error=f"{path} keeps its size until another look: {why}")

    return delayed


def owner_fields(owner: ContainerRef) -> dict[str, str]:
    """How a log line names a container; a grant that was rebuilt without its pod has only the UID."""
    return {"pod": str(owner.pod) if owner.pod.name else "", "uid": owner.pod.uid, "container": owner.name}


def _limits_of(grant: Grant) -> tuple[int, int, int]:
    """Cores, soft cores, MiB of memory."""
    request, limits = grant.allocation.request, grant.limits
    return request.cores_per_gpu, limits.soft_cores, limits.memory_bytes(request.blocks_per_gpu) // MIB


def _claim_sentence(grant: Grant, devices: Sequence[str]) -> str:
    owner, request, where = grant.allocation.owner, grant.allocation.request, ", ".join(devices)
    if grant.is_share:
        each = f"each of {where}" if len(devices) > 1 else where
        what = f"{request.cores_per_gpu} cores and {memory_text(request.blocks_per_gpu)} of {each}"
    else:
        what = f"{len(devices)} whole GPU{'s' if len(devices) > 1 else ''}: {where}"
    return f"request {owner.name} of claim {owner.pod.name} got {what} (kube-scheduler's choice)"


def _sentence(grant: Grant, choice: Choice) -> str:
    request = grant.allocation.request
    where = ", ".join(str(gpu.minor) for gpu in choice.gpus)
    if choice.evaluator is RequestKind.SHARE:
        gpus = f"GPU {where}" if request.gpus == 1 else f"each of GPUs {where}"
        what = f"{request.cores_per_gpu} cores and {memory_text(request.blocks_per_gpu)} of {gpus}"
    else:
        what = f"{request.cores // CORES_PER_GPU} whole GPU{'s' if request.gpus > 1 else ''}: {where}"
    return f"container {grant.allocation.owner.name} got {what} ({choice.reason})"
