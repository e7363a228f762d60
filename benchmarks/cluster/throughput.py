"""Pods per second that a real kube-scheduler and API server place: with the extender, an empty one, and none.

In: a folder, counts. Out: the rates, and the processor time of each program per pod. All kube-schedulers are the same
build with the same client limits, and the pods differ only in `schedulerName`. Without an extender the resources are
plain extended resources, and no GPUs are chosen. Only the extender that is asked runs. The nodes are hollow and have no
kubelet, as in Kubernetes' own scheduler benchmarks. In a round all pods are created, then the scheduler starts; the
clock runs from the first to the last bound pod. Rounds alternate, so that other load on the machine affects all.
"""

import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import yaml

from benchmarks.cluster.changes import changes
from benchmarks.cluster.measured import cpu_seconds, empty_extender, measured_scheduler
from benchmarks.cluster.turns import ratios
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
OURS, EMPTY, PLAIN = "vcuda-scheduler", "empty-scheduler", "plain-scheduler"
WORDS = {OURS: "with_extender", EMPTY: "with_empty", PLAIN: "without"}
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
class Size:
    """Of the cluster, and how many rounds each scheduler has."""

    nodes: int
    pods: int
    rounds: int


@dataclass(frozen=True, slots=True)
class Throughput:
    """The rounds of each scheduler, in their order."""

    rounds: Mapping[str, Sequence[Round]]

    def as_json(self, under: str) -> dict[str, float]:
        found: dict[str, float] = {}
        for name, rounds in self.rounds.items():
            found[f"pods_per_s_{WORDS[name]}{under}"] = median(each.rate for each in rounds)
            for what in sorted({what for each in rounds for what in each.cpu_ms}):
                spent = median(each.cpu_ms.get(what, 0.0) for each in rounds)
                found[f"cpu_ms_a_pod_{WORDS[name]}{under}_{what}"] = spent
        found |= ratios(f"throughput_ratio{under}", self._over(PLAIN))
        if under:
            found |= ratios("throughput_ratio_empty", self._over(EMPTY))
        return found

    def _over(self, other: str) -> list[float]:
        return [mine.rate / its.rate for mine, its in zip(self.rounds[OURS], self.rounds[other], strict=True)]


def shipped_limits() -> Limits:
    """The limits of the kube-scheduler that the chart installs."""
    text = yaml.safe_load(CONFIGURATION.read_text())["data"]["kube-scheduler.yaml"]
    connection = yaml.safe_load(text)["clientConnection"]
    return Limits(connection["qps"], connection["burst"])


def measure_throughput(folder: Path, size: Size, limits: Limits) -> Throughput:
    inventories = {f"hollow-{number:04d}": made_up_inventory(f"hollow-{number:04d}") for number in range(size.nodes)}
    found: dict[str, list[Round]] = {OURS: [], EMPTY: [], PLAIN: []}
    with (
        running_control_plane(kubernetes_programs()) as plane,
        hollow_nodes(plane.admin, inventories, runs_pods=False),
    ):
        startup = limits.burst if limits.burst < size.pods // 2 else STARTUP  # the burst ends before the clock starts
        for number in range(size.rounds + 1):
            for name, extending in (
                (OURS, measured_scheduler(folder / f"{number}", plane.admin_kubeconfig, core=None)),
                (EMPTY, empty_extender(plane.admin_kubeconfig, core=None)),
                (PLAIN, nullcontext()),
            ):
                with extending as extender:
                    address = None if extender is None else ExtenderAddress(extender.url)
                    beside = () if extender is None else (extender.process.pid,)
                    scheduler = scheduler_with(plane, name, address, limits=limits)
                    found[name].append(_round(plane, scheduler, number, size.pods, startup, beside=beside))
    return Throughput({name: rounds[1:] for name, rounds in found.items()})  # the first is a warm-up


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
            name = "extender" if pid in beside else Path(f"/proc/{pid}/comm").read_text().strip()
            found[name] += cpu_seconds(pid)
    return found
