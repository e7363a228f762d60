"""Pods a second on a real kubelet: pods that ask for no device, and pods with a claim of either driver.

In: a running cluster, counts. Out: figures of all turns. In a turn the same number of pods of each kind is
created at once, and the clock runs from the first request to the API server until the last pod runs; they are gone
before the next kind. The first turn is a warm-up. Claims come from templates, as users make them.
"""

import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

from benchmarks.claims.cluster import BARE_CLASS, serving_claims
from benchmarks.claims.node import BARE_DRIVER
from benchmarks.cluster.changes import changes
from benchmarks.command import BenchmarkError
from sandbox.cluster import claims, pods
from sandbox.cluster.claims import DRIVER, SHARES, TEMPLATES
from sandbox.cluster.client import Client, JsonObject
from sandbox.cluster.cluster import Cluster

PLAIN, OWN, BARE = "plain", "claim", "bare"
TURN_S = 240.0
_STAY = "trap 'exit 0' TERM; while :; do sleep 3600 & wait $!; done"
_CLASSES = {OWN: SHARES, BARE: BARE_CLASS}
_PREPARE = "dra_grpc_operations_duration_seconds"


@dataclass(frozen=True, slots=True)
class Started:
    """Seconds from the first request until all pods were bound, and until all ran."""

    bound_s: float
    running_s: float


Turn = Mapping[str, Started]


def measure_pods(cluster: Cluster, *, turns: int, count: int) -> dict[str, object]:
    with serving_claims(cluster):
        for kind, name in _CLASSES.items():
            cluster.admin.post(TEMPLATES, _template(kind, name))
        made = [_turn(cluster, turn, count) for turn in range(turns + 1)]
        prepare = {driver: kubelets_mean_ms(cluster, driver) for driver in (DRIVER, BARE_DRIVER)}
        claims.delete_all(cluster.admin)
    return of_turns(made[1:], count) | {
        "kubelet_prepare_ms": prepare[DRIVER],
        "kubelet_bare_prepare_ms": prepare[BARE_DRIVER],
    }


def of_turns(turns: Sequence[Turn], count: int) -> dict[str, object]:
    found: dict[str, object] = {"pods": count, "pods_turns": len(turns)}
    for kind in (PLAIN, OWN, BARE):
        found[f"{kind}_pods_per_s"] = statistics.median(count / turn[kind].running_s for turn in turns)
        found[f"{kind}_bound_s"] = statistics.median(turn[kind].bound_s for turn in turns)
    for name, mine, other in (
        ("pods_ratio", OWN, PLAIN),
        ("pods_bare_ratio", BARE, PLAIN),
        ("pods_over_bare_ratio", OWN, BARE),
    ):
        ratios = sorted(turn[other].running_s / turn[mine].running_s for turn in turns)
        found |= {name: statistics.median(ratios), f"{name}_min": ratios[0], f"{name}_max": ratios[-1]}
    return found


def _turn(cluster: Cluster, number: int, count: int) -> Turn:
    """Another kind is the first in each turn."""
    kinds = (PLAIN, OWN, BARE)
    first = number % len(kinds)
    return {kind: _started(cluster, f"{kind}-{number}", kind, count) for kind in (*kinds[first:], *kinds[:first])}


def _started(cluster: Cluster, name: str, kind: str, count: int) -> Started:
    admin = cluster.admin
    version = admin.get(pods.PODS + "?limit=1")["metadata"]["resourceVersion"]
    began = time.monotonic()
    for at in range(count):
        pods.create(admin, _pod(f"{name}-{at}", kind))
    try:
        return _watch(admin, version, count, began)
    finally:
        pods.delete_all(admin)


def _watch(admin: Client, version: str, count: int, began: float) -> Started:
    bound: dict[str, float] = {}
    running: dict[str, float] = {}
    while time.monotonic() < began + TURN_S:
        for item in changes(admin, pods.PODS, version):
            version, uid, now = item["metadata"]["resourceVersion"], item["metadata"]["uid"], time.monotonic()
            if item["spec"].get("nodeName"):
                bound.setdefault(uid, now)
            if item["status"].get("phase") == "Running":
                running.setdefault(uid, now)
            if len(running) == count:
                return Started(max(bound.values()) - began, now - began)
    raise BenchmarkError(f"only {len(running)} of {count} pods ran within {TURN_S:.0f} s")


def _pod(name: str, kind: str) -> JsonObject:
    container = pods.container("main", _STAY)
    if kind == PLAIN:
        return pods.pod(name, [container])
    container["resources"] = {"claims": [{"name": "gpu"}]}
    return pods.pod(name, [container], resourceClaims=[{"name": "gpu", "resourceClaimTemplateName": kind}])


def _template(name: str, device_class: str) -> JsonObject:
    exactly = {"deviceClassName": device_class, "capacity": {"requests": {"cores": "20", "memory": "2Gi"}}}
    return {
        "metadata": {"name": name},
        "spec": {"spec": {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}}},
    }


def kubelets_mean_ms(cluster: Cluster, driver: str) -> float:
    """Of NodePrepareResources, as kubelet has timed it."""
    text = cluster.admin.text("GET", f"/api/v1/nodes/{cluster.kubelet.node}/proxy/metrics")
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = sample.labels
            if labels.get("driver_name") == driver and labels.get("method_name", "").endswith("/NodePrepareResources"):
                found[sample.name] = found.get(sample.name, 0.0) + sample.value
    calls = found.get(f"{_PREPARE}_count")
    if not calls:
        raise BenchmarkError(f"kubelet's metrics have no call of {driver}: {sorted(found)}")
    return found[f"{_PREPARE}_sum"] / calls * 1000
