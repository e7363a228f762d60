"""Pods per second that a real kube-scheduler and API server place on hollow nodes, with and without the extender.

In: a folder, counts. Out: both rates, and the processor time of each program per pod. Both kube-schedulers are the
same build with the same client limits, and the pods differ only in `schedulerName`. Without the extender the resources
are plain extended resources, no GPUs are chosen, and the extender does not run. There is no kubelet, as in Kubernetes'
own scheduler benchmarks. In a round all pods are created, then the scheduler starts; the clock runs from the first to
the last bound pod. Rounds alternate, so that other load on the machine affects both.
"""

import statistics
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import yaml

from benchmarks.cluster.changes import changes
from benchmarks.cluster.measured import cpu_seconds, measured_scheduler
from benchmarks.command import BenchmarkError
from deviceplugin.model.units import ResourceNames
from sandbox.cluster import pods
from sandbox.cluster.cluster import running_control_plane
from sandbox.cluster.control_plane import Component, ControlPlane
from sandbox.cluster.hollow import hollow_nodes
from sandbox.cluster.prerequisites import kubernetes_programs
from sandbox.cluster.schedulers import ExtenderAddress, Limits, scheduler_with
from sandbox.inventories import made_up_inventory

CONFIGURATION = Path(__file__).resolve().parents[2] / "daemonset" / "scheduler" / "configmap.yaml"
OURS, PLAIN = "vcuda-scheduler", "plain-scheduler"
ROUND_SECONDS = 300.0
NAMES = ResourceNames()
STARTUP = 20
"""Pods that are bound before the clock starts, while kube-scheduler fills its caches."""


@dataclass(frozen=True, slots=True)
class Round:
    """Pods per second, and ms of processor time per pod, by program."""

    rate: float
    cpu_ms: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Throughput:
    """Pods per second, medians over the rounds."""

    ratio: float
    with_extender: float
    without: float
    rounds_with: tuple[Round, ...]
    rounds_without: tuple[Round, ...]


def shipped_limits() -> Limits:
    """The limits of the kube-scheduler that the chart installs."""
    text = yaml.safe_load(CONFIGURATION.read_text())["data"]["kube-scheduler.yaml"]
    connection = yaml.safe_load(text)["clientConnection"]
    return Limits(connection["qps"], connection["burst"])


def measure_throughput(folder: Path, *, nodes: int, count: int, rounds: int, limits: Limits) -> Throughput:
    inventories = {f"hollow-{number:04d}": made_up_inventory(f"hollow-{number:04d}") for number in range(nodes)}
    found: dict[str, list[Round]] = {OURS: [], PLAIN: []}
    with (
        running_control_plane(kubernetes_programs()) as plane,
        hollow_nodes(plane.admin, inventories, runs_pods=False),
    ):
        plain = scheduler_with(plane, PLAIN, None, limits=limits)
        startup = limits.burst if limits.burst < count // 2 else STARTUP  # the burst ends before the clock starts
        for number in range(rounds + 1):
            with measured_scheduler(folder / f"{number}", plane.admin_kubeconfig, core=None) as extender:
                ours = scheduler_with(plane, OURS, ExtenderAddress(extender.url), limits=limits)
                found[OURS].append(_round(plane, ours, number, count, startup, beside=(extender.process.pid,)))
            found[PLAIN].append(_round(plane, plain, number, count, startup))
    with_extender, without = found[OURS][1:], found[PLAIN][1:]  # the first round of each is a warm-up
    ours_rate = statistics.median(each.rate for each in with_extender)
    plain_rate = statistics.median(each.rate for each in without)
    return Throughput(ours_rate / plain_rate, ours_rate, plain_rate, tuple(with_extender), tuple(without))


def _round(
    plane: ControlPlane, scheduler: Component, number: int, count: int, startup: int, *, beside: tuple[int, ...] = ()
) -> Round:
    admin = plane.admin
    for place in range(count):
        limits = {NAMES.core: 5 + place % 4 * 5, NAMES.memory: 4 + place % 5 * 4}
        container = pods.container("main", "sleep 1000", limits)
        pods.create(admin, pods.pod(f"pod-{number}-{place:05d}", [container], schedulerName=scheduler.process.name))
    version = admin.get("/api/v1/pods?limit=1")["metadata"]["resourceVersion"]
    try:
        with _started(scheduler):
            return _rate(plane, version, count, startup, beside)
    finally:
        pods.delete_all(admin)


@contextmanager
def _started(scheduler: Component) -> Iterator[None]:
    scheduler.process.start()  # not `start`: the first pods are bound before it is ready
    try:
        yield
    finally:
        scheduler.kill()


def _rate(plane: ControlPlane, version: str, count: int, startup: int, beside: tuple[int, ...]) -> Round:
    """Measured by a watch, because times in conditions of pods are whole seconds."""
    bound: set[str] = set()
    already, began, before = 0, 0.0, _worked(plane, beside)
    deadline = time.monotonic() + ROUND_SECONDS
    while time.monotonic() < deadline:  # the API server ends the watch of a slow reader
        for item in changes(plane.admin, "/api/v1/pods", version):
            now = time.monotonic()
            version = item["metadata"]["resourceVersion"]
            if item["spec"].get("nodeName"):
                bound.add(item["metadata"]["uid"])
            if not began and len(bound) >= startup:
                already, began, before = len(bound), now, _worked(plane, beside)
            if len(bound) == count:
                rate = (count - already) / (now - began)
                after = _worked(plane, beside)
                spent = {what: (after[what] - before[what]) * 1000 / (count - already) for what in after}
                return Round(rate, spent)
    raise BenchmarkError(f"only {len(bound)} of {count} pods were bound within {ROUND_SECONDS:.0f} s")


def _worked(plane: ControlPlane, beside: tuple[int, ...]) -> Mapping[str, float]:
    """Processor seconds of each program of the cluster, of the extender, and of this process."""
    found = defaultdict(float, {"benchmark": time.process_time()})
    for pid in (*plane.files.cgroup.pids(), *beside):
        with suppress(OSError):  # it has ended
            name = "vcuda" if pid in beside else Path(f"/proc/{pid}/comm").read_text().strip()
            found[name] += cpu_seconds(pid)
    return found
