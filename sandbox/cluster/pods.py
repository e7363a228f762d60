"""Pods, as the tests make and watch them.

In: a client. Out: manifests, states, logs. Not here: vcuda's resources and what a container sees (`tests/e2e/node`).
Invariant: waiting looks at all pods with one list call, however many they are.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial

from sandbox.cluster.client import ApiError, Client, JsonObject
from sandbox.cluster.images import BUSYBOX
from sandbox.cluster.waiting import DeadlineError, wait_until

NAMESPACE = "default"
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
NOTHING: Mapping[str, int] = {}


@dataclass(frozen=True, slots=True)
class ContainerState:
    """One container's state: `what` is waiting, running or terminated."""

    name: str
    what: str
    reason: str
    message: str
    restarts: int
    container_id: str


@dataclass(frozen=True, slots=True)
class PodState:
    """A pod as the API server shows it."""

    name: str
    uid: str
    phase: str
    reason: str
    message: str
    node: str
    deleting: bool
    annotations: Mapping[str, str]
    containers: tuple[ContainerState, ...] = field(default=())

    @property
    def is_running(self) -> bool:
        """Every app container runs."""
        return self.phase == "Running" and all(each.what == "running" for each in self.containers)

    def __str__(self) -> str:
        waiting = [f"{each.name}: {each.reason} {each.message}" for each in self.containers if each.what != "running"]
        return f"{self.name}: {self.phase} {self.reason} {self.message} {'; '.join(waiting)}".strip()


def container(name: str, script: str, limits: Mapping[str, int] = NOTHING, **more: object) -> JsonObject:
    """A busybox container that runs a shell script."""
    counts = {resource: str(count) for resource, count in limits.items()}
    return {
        "name": name,
        "image": BUSYBOX,
        "imagePullPolicy": "Never",
        "command": ["/bin/sh", "-c", script],
        "resources": {"limits": counts},
        **more,
    }


def pod(name: str, containers: list[JsonObject], *, init: Iterable[JsonObject] = (), **spec: object) -> JsonObject:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {
            "containers": containers,
            "initContainers": list(init),
            "automountServiceAccountToken": False,
            "terminationGracePeriodSeconds": 1,
            "restartPolicy": "Always",
            **spec,
        },
    }


def create(client: Client, manifest: JsonObject) -> PodState:
    return _state(client.post(PODS, manifest))


def states(client: Client) -> dict[str, PodState]:
    return {state.name: state for state in map(_state, client.get(PODS)["items"])}


def wait_for(
    client: Client,
    names: Iterable[str],
    condition: Callable[[PodState], bool],
    *,
    what: str,
) -> dict[str, PodState]:
    """Waits until the condition holds for every named pod; a failure shows the pods for which it does not, and why."""
    wanted = set(names)

    def all_hold() -> dict[str, PodState] | None:
        found = {name: state for name, state in states(client).items() if name in wanted}
        return found if found.keys() == wanted and all(map(condition, found.values())) else None

    evidence = partial(_what_is_wrong, client, wanted, condition)
    return wait_until(all_hold, f"{len(wanted)} pods: {what}", evidence=evidence)


def wait_running(client: Client, names: Iterable[str]) -> dict[str, PodState]:
    """A pod that has failed is never going to run: that ends the wait at once."""
    wanted = set(names)

    def all_run() -> dict[str, PodState] | None:
        found = {name: state for name, state in states(client).items() if name in wanted}
        failed = [state for state in found.values() if state.phase == "Failed"]
        if failed:
            raise DeadlineError("Pods that will never run:\n" + "\n".join(map(str, failed)))
        return found if found.keys() == wanted and all(state.is_running for state in found.values()) else None

    evidence = partial(_what_is_wrong, client, wanted, lambda state: state.is_running)
    return wait_until(all_run, f"{len(wanted)} pods: all Running", evidence=evidence)


def log(client: Client, name: str, container_name: str) -> str:
    return client.text("GET", f"{PODS}/{name}/log?container={container_name}")


def delete(client: Client, names: Iterable[str], *, grace_s: int = 1) -> None:
    """`grace_s`: between SIGTERM and SIGKILL, whatever the pods ask for."""
    for name in names:
        try:
            client.delete(f"{PODS}/{name}?gracePeriodSeconds={grace_s}")
        except ApiError as error:
            if error.status != 404:
                raise


def wait_gone(client: Client, names: Iterable[str]) -> None:
    wanted = set(names)
    wait_until(
        lambda: not wanted & states(client).keys(),
        f"{len(wanted)} pods are gone",
        evidence=lambda: "\n".join(str(state) for state in states(client).values() if state.name in wanted),
    )


def delete_all(client: Client) -> None:
    client.delete(f"{PODS}?gracePeriodSeconds=1")
    wait_until(lambda: not states(client), "all pods are gone")


def events(client: Client, name: str) -> list[str]:
    """What was said about one pod, oldest first."""
    items = client.get(f"/api/v1/namespaces/{NAMESPACE}/events?fieldSelector=involvedObject.name={name}")["items"]
    return [f"{item.get('reason')}: {item.get('message')}" for item in items]


def _what_is_wrong(client: Client, wanted: set[str], condition: Callable[[PodState], bool]) -> str:
    found = states(client)
    lines = [f"{name}: does not exist" for name in sorted(wanted - found.keys())]
    for state in (found[name] for name in sorted(wanted & found.keys())):
        if not condition(state):
            lines += [str(state), *(f"    {line}" for line in events(client, state.name)[-4:])]
    return "\n".join(lines[:60])


def _state(item: JsonObject) -> PodState:
    metadata, status = item["metadata"], item.get("status", {})
    return PodState(
        name=metadata["name"],
        uid=metadata["uid"],
        phase=status.get("phase", ""),
        reason=status.get("reason", ""),
        message=status.get("message", ""),
        node=item["spec"].get("nodeName", ""),
        deleting="deletionTimestamp" in metadata,
        annotations=metadata.get("annotations", {}),
        containers=tuple(map(_container_state, status.get("containerStatuses", []))),
    )


def _only_state(states_by_name: JsonObject) -> tuple[str, JsonObject]:
    """Kubelet sets one of waiting, running, terminated; none before it looked."""
    return next(iter(states_by_name.items()), ("waiting", {}))


def _container_state(item: JsonObject) -> ContainerState:
    what, details = _only_state(item["state"])
    return ContainerState(
        name=item["name"],
        what=what,
        reason=details.get("reason", ""),
        message=details.get("message", ""),
        restarts=item["restartCount"],
        container_id=item.get("containerID", ""),
    )
