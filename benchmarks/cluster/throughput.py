"""Pods a second that a real kube-scheduler and API server schedule onto hollow nodes, with our extender and without.

In: the folder of the Kubernetes programs, counts. Out: both rates. Both kube-schedulers are of the same build with the
same client limits, and the pods are the same but for `schedulerName`; without the extender the resources are plain
extended resources and nobody chooses GPUs. A round creates all pods while its scheduler is away, starts it, and counts
from the first to the last bound pod; rounds alternate, so that whatever else the machine does touches both.
"""

import json
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import urllib3

from benchmarks.cluster.measured import measured_scheduler
from tests.e2e.cluster import pods
from tests.e2e.cluster.client import Client, JsonObject
from tests.e2e.cluster.cluster import running_control_plane
from tests.e2e.cluster.control_plane import Component, ControlPlane
from tests.e2e.cluster.hollow import hollow_nodes
from tests.e2e.cluster.prerequisites import kubernetes_programs
from tests.e2e.cluster.schedulers import ExtenderAddress, scheduler_with
from tests.e2e.node.workload import share
from tests.fakes.inventories import made_up_inventory

OURS, PLAIN = "vcuda-scheduler", "plain-scheduler"
ROUND_SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class Throughput:
    """Pods a second, medians over the rounds."""

    ratio: float
    with_extender: float
    without: float
    rounds_with: tuple[float, ...]
    rounds_without: tuple[float, ...]


def measure_throughput(folder: Path, *, nodes: int, count: int, rounds: int) -> Throughput:
    inventories = {f"hollow-{number:04d}": made_up_inventory(f"hollow-{number:04d}") for number in range(nodes)}
    found: dict[str, list[float]] = {OURS: [], PLAIN: []}
    with (
        running_control_plane(kubernetes_programs()) as plane,
        hollow_nodes(plane.admin, inventories),
        measured_scheduler(folder, plane.admin_kubeconfig, core=None) as extender,
    ):
        ours = scheduler_with(plane, OURS, ExtenderAddress(extender.url, extender.authority))
        plain = scheduler_with(plane, PLAIN, None)
        for number in range(rounds + 1):
            for name, scheduler in ((OURS, ours), (PLAIN, plain)):
                rate = _round(plane, scheduler, name, count)
                if number:  # the first of each warms up
                    found[name].append(rate)
    ours_rate, plain_rate = statistics.median(found[OURS]), statistics.median(found[PLAIN])
    return Throughput(ours_rate / plain_rate, ours_rate, plain_rate, tuple(found[OURS]), tuple(found[PLAIN]))


def _round(plane: ControlPlane, scheduler: Component, name: str, count: int) -> float:
    admin = plane.admin
    for number in range(count):
        manifest = share(f"pod-{number:05d}", 5 + number % 4 * 5, 4 + number % 5 * 4).manifest()
        manifest["spec"]["schedulerName"] = name
        pods.create(admin, manifest)
    version = admin.get("/api/v1/pods?limit=1")["metadata"]["resourceVersion"]
    try:
        with _started(scheduler):
            rate = _rate(admin, version, count)
    finally:
        pods.delete_all(admin)
    return rate


@contextmanager
def _started(scheduler: Component) -> Iterator[None]:
    scheduler.process.start()  # not `start`: the first pods are bound before anybody sees it ready
    try:
        yield
    finally:
        scheduler.kill()


def _rate(admin: Client, version: str, count: int) -> float:
    """By a watch, so that a moment is not rounded to seconds as in the pods' conditions."""
    bound: dict[str, float] = {}
    deadline = time.monotonic() + ROUND_SECONDS
    while time.monotonic() < deadline:  # the API server ends a watch whose reader falls behind
        for item in _changes(admin, version):
            version = item["metadata"]["resourceVersion"]
            if item["spec"].get("nodeName"):
                bound.setdefault(item["metadata"]["uid"], time.monotonic())
            if len(bound) == count:
                moments = sorted(bound.values())
                return (count - 1) / (moments[-1] - moments[0])
    raise SystemExit(f"benchmark: only {len(bound)} of {count} pods were bound within {ROUND_SECONDS:.0f} s")


def _changes(admin: Client, version: str) -> Iterator[JsonObject]:
    path = f"/api/v1/pods?watch=true&resourceVersion={version}&timeoutSeconds=30"
    reply = admin.pool.request(
        "GET", admin.server + path, preload_content=False, timeout=urllib3.Timeout(60), retries=False
    )
    try:
        rest = b""
        for chunk in reply.stream(1 << 16):
            *lines, rest = (rest + chunk).split(b"\n")
            for event in map(json.loads, lines):
                if event["type"] == "ERROR":
                    raise SystemExit(f"benchmark: the watch of pods failed: {event['object'].get('message')}")
                yield event["object"]
    finally:
        reply.close()
