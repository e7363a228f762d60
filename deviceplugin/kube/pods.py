"""Pods as JSON turned into pods as placement and identity need them.

In: a pod of the API server or of kubelet's `GET /pods`, which have the same form. Out: `model.pod.Pod`, or ParseError.
Invariant: `ref.uid` is the UID that kubelet knows, for the mirror of a static pod too; containers stand in the order
in which kubelet starts them. Of environment and annotations only what we read is kept: the rest may be secret.
"""

import datetime as dt
from collections.abc import Iterator, Mapping, Sequence

from deviceplugin.errors import ParseError
from deviceplugin.kube.quantity import parse_quantity
from deviceplugin.kube.structs import Container, ContainerStatus, PodListObject, PodObject, PodSpec, PodStatus, decode
from deviceplugin.model.allocation import ContainerRef, ContainerRole, PodRef, PodUid
from deviceplugin.model.pod import ContainerState, Pod, PodContainer
from deviceplugin.model.preferences import FOREIGN
from deviceplugin.model.units import ResourceNames

KEPT_ENV = frozenset({"LD_LIBRARY_PATH", "compat32", "SUBMITTER"})
# Anyone may write a pod with an absurd limit and our node's name: kubelet refuses it, and the others must stay visible.
UNREADABLE_COUNT = 1 << 62
_KEPT_ANNOTATION = "clusterName"
_MIRROR = "kubernetes.io/config.mirror"
_SOURCE = "kubernetes.io/config.source"
_SEEN = "kubernetes.io/config.seen"


def decode_pod(body: bytes, *, names: ResourceNames = ResourceNames()) -> Pod:
    return pod_from(decode(PodObject, body, what="the pod"), names)


def decode_pod_list(body: bytes, *, names: ResourceNames = ResourceNames()) -> tuple[Pod, ...]:
    """Every pod of a list."""
    page = decode(PodListObject, body, what="the list of pods")
    return tuple(pod_from(item, names) for item in page.items or ())


def pod_from(item: PodObject, names: ResourceNames) -> Pod:
    meta, spec, status = item.metadata, item.spec or PodSpec(), item.status or PodStatus()
    annotations = meta.annotations or {}
    mirror = annotations.get(_MIRROR, "")
    is_static = bool(mirror) or annotations.get(_SOURCE, "api") != "api"
    ref = PodRef(uid=PodUid(mirror or meta.uid), namespace=meta.namespace, name=meta.name)
    return Pod(
        ref=ref,
        containers=tuple(_containers(ref, spec, status, names)),
        phase=status.phase or "Pending",
        reason=status.reason or "",
        message=status.message or "",
        node=spec.node_name or "",
        annotations=_ours(annotations, names.domain),
        created=_unix(meta.creation_timestamp),
        seen_by_kubelet=_unix(annotations.get(_SEEN)),
        deleting=bool(meta.deletion_timestamp),
        owner_kind=_owner_kind(item),
        resource_version=meta.resource_version,
        api_uid="" if is_static and not mirror else meta.uid,
        is_static=is_static,
    )


def _containers(ref: PodRef, spec: PodSpec, status: PodStatus, names: ResourceNames) -> Iterator[PodContainer]:
    for index, container in enumerate(spec.init_containers or ()):
        role = ContainerRole.SIDECAR if container.restart_policy == "Always" else ContainerRole.INIT
        yield _container(ref, container, role, index, status.init_container_statuses or (), names)
    for index, container in enumerate(spec.containers or ()):
        yield _container(ref, container, ContainerRole.APP, index, status.container_statuses or (), names)


def _container(
    ref: PodRef,
    container: Container,
    role: ContainerRole,
    index: int,
    statuses: Sequence[ContainerStatus],
    names: ResourceNames,
) -> PodContainer:
    limits = (container.resources.limits if container.resources else None) or {}
    cores, blocks = _count(limits, names.core), _count(limits, names.memory)
    state, reason, message, restarts = _state(container.name, statuses)
    return PodContainer(
        ref=ContainerRef(pod=ref, name=container.name),
        role=role,
        index=index,
        cores=cores,
        blocks=blocks,
        env={var.name: var.value or "" for var in container.env or () if var.name in KEPT_ENV},
        state=state,
        waiting_reason=reason,
        waiting_message=message,
        restarts=restarts,
        runtime_id=_runtime_id(container.name, statuses),
    )


def _count(limits: Mapping[str, str | int], name: str) -> int:
    if name not in limits:
        return 0
    try:
        count = parse_quantity(limits[name])
    except ParseError:
        return UNREADABLE_COUNT
    return count if 0 <= count < UNREADABLE_COUNT else UNREADABLE_COUNT


def _state(name: str, statuses: Sequence[ContainerStatus]) -> tuple[ContainerState, str, str, int]:
    status = next((status for status in statuses if status.name == name), None)
    if status is None or status.state is None:
        return ContainerState.UNKNOWN, "", "", 0 if status is None else status.restart_count
    if status.state.running is not None:
        return ContainerState.RUNNING, "", "", status.restart_count
    if status.state.terminated is not None:
        return ContainerState.TERMINATED, "", "", status.restart_count
    if status.state.waiting is None:
        return ContainerState.UNKNOWN, "", "", status.restart_count
    waiting = status.state.waiting
    return ContainerState.WAITING, waiting.reason or "", waiting.message or "", status.restart_count


def _runtime_id(name: str, statuses: Sequence[ContainerStatus]) -> str:
    """From `containerd://ID`."""
    known = next((each.container_id for each in statuses if each.name == name), None)
    return (known or "").partition("://")[2]


def _ours(annotations: Mapping[str, str], domain: str) -> dict[str, str]:
    return {
        name: text
        for name, text in annotations.items()
        if name.startswith(f"{domain}/") or name == _KEPT_ANNOTATION or name in FOREIGN
    }


def _owner_kind(item: PodObject) -> str:
    owners = item.metadata.owner_references or ()
    return next((owner.kind for owner in owners if owner.controller), owners[0].kind if owners else "")


def _unix(text: str | None) -> float:
    """RFC 3339 as Unix seconds; 0.0 where there is none or it cannot be read: a time only orders pods."""
    if not text:
        return 0.0
    # Kubelet writes nanoseconds, datetime reads microseconds.
    head, dot, fraction = text.partition(".")
    digits = fraction[: len(fraction) - len(fraction.lstrip("0123456789"))]
    try:
        moment = dt.datetime.fromisoformat(f"{head}.{digits[:6]}{fraction[len(digits) :]}" if dot else text)
    except ValueError:
        return 0.0
    return moment.timestamp() if moment.tzinfo else moment.replace(tzinfo=dt.UTC).timestamp()
