"""The pod status that kubelet writes to the API server.

In: the pod, its containers' states, waiting reasons, held devices. Out: the JSON of `status`. Not here: sending it.
From 1.36 on it lists every device ID of every app container, which is why IDs must be short.
"""

import random
from collections.abc import Mapping
from dataclasses import dataclass

from sandbox.kubelet.devices import DeviceStore
from sandbox.kubelet.options import Json
from sandbox.kubelet.podspec import Container, Pod, Role
from sandbox.kubelet.runtime import Phase, Runtime, now


@dataclass(frozen=True, slots=True)
class Waiting:
    """Why a container does not run."""

    reason: str
    message: str = ""


def rejected(reason: str, message: str) -> Json:
    """The status of a pod that admission refused; what an earlier life of kubelet said of its containers goes."""
    gone: Json = {"containerStatuses": None, "initContainerStatuses": None}
    said: Json = {"phase": "Failed", "reason": reason, "message": f"Pod was rejected: {message}", "startTime": now()}
    return gone | said


@dataclass(frozen=True, slots=True)
class StatusWriter:
    """Builds the status of admitted pods."""

    runtime: Runtime
    store: DeviceStore
    rng: random.Random
    with_health: bool

    def build(self, pod: Pod, waiting: Mapping[str, Waiting], phase: str) -> Json:
        init = [self._container(pod, item, waiting) for item in pod.of_role(Role.INIT, Role.SIDECAR)]
        app = [self._container(pod, item, waiting) for item in pod.of_role(Role.APP)]
        ready = all(status["ready"] for status in app)
        status: Json = {
            "phase": phase,
            "hostIP": "127.0.0.1",
            "startTime": pod.raw["status"].get("startTime") or now(),
            "conditions": [
                {"type": kind, "status": "True" if holds else "False"}
                for kind, holds in (("Initialized", bool(app)), ("Ready", ready), ("ContainersReady", ready))
            ],
            "containerStatuses": app,
        }
        if init:
            status["initContainerStatuses"] = init
        return status

    def _container(self, pod: Pod, container: Container, waiting: Mapping[str, Waiting]) -> Json:
        running = self.runtime.of(pod.uid, container.name)
        state: Json
        if container.name in waiting or running is None:
            why = waiting.get(
                container.name, Waiting("PodInitializing" if pod.of_role(Role.INIT) else "ContainerCreating")
            )
            state = {"waiting": {"reason": why.reason, "message": why.message}}
        elif running.phase is Phase.RUNNING:
            state = {"running": {"startedAt": running.started_at}}
        else:
            reason = "Completed" if running.exit_code == 0 else "Error"
            state = {"terminated": {"exitCode": running.exit_code, "reason": reason}}
        done = container.role is Role.INIT and "terminated" in state and state["terminated"]["exitCode"] == 0
        status: Json = {
            "name": container.name,
            "image": "stand-in",
            "imageID": "",
            "ready": "running" in state or done,
            "started": "running" in state,
            "restartCount": max(0, running.view.start) if running else 0,
            "state": state,
        }
        if running:
            status["containerID"] = f"stand-in://{pod.uid}-{container.name}-{running.view.start}"
        if self.with_health and container.role is Role.APP:
            status["allocatedResourcesStatus"] = self._health(pod.uid, container.name)
        return status

    def _health(self, uid: str, container: str) -> list[Json]:
        out: list[Json] = []
        for resource, held in self.store.of_container(uid, container).items():
            broken = self.store.sick.get(resource, frozenset())
            ids = sorted(held.ids)
            self.rng.shuffle(ids)
            listed = [
                {"resourceID": device, "health": "Unhealthy" if device in broken else "Healthy"} for device in ids
            ]
            out.append({"name": resource, "resources": listed})
        return out
