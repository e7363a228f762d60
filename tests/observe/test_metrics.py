"""The metrics: values, and the rules that Prometheus has for names, units and HELP."""

import re
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from deviceplugin.errors import CapacityError, DriverMissingError, LedgerError
from deviceplugin.ledger.grant import Source
from deviceplugin.model.gpu import (
    NEWEST_CUDA,
    Breach,
    ComputeMode,
    ContainerUse,
    Driver,
    GpuProcess,
    GpuSample,
    GpuUse,
    Health,
    Overrun,
)
from deviceplugin.model.pod import PodLimits
from deviceplugin.model.topology import Level
from deviceplugin.observe.metrics import FAMILIES, REASONS, REGISTRATIONS, REPAIRS, STARTS, AgentMetrics, reason_of
from deviceplugin.observe.node_view import AgentState, NodePicture
from deviceplugin.structs import replace
from tests.observe.pictures import by_groups, gpu, grant, node, uuid

GIB = 1 << 30
SERVING = AgentState(registered=True, synced=True)
PICTURE = node(
    [gpu(0), gpu(1)],
    by_groups(2, (Level.PIX, 2)),
    grant("ml/train/main", 0, cores=50, blocks=64),
    grant("ml/nb/c", 0, cores=20, blocks=32),
    health={uuid(1): Health(healthy=False, reason="gone")},
    samples={uuid(0): GpuSample(75, 10 * GIB, (GpuProcess(1, 5), GpuProcess(2, 5)))},
    uses={
        "ml/train/main": ContainerUse(
            (GpuUse(uuid(0), 5 * GIB, GIB, 6 * GIB, 2, 40.0, 50.0, 120.5, 3.25, 70, pids=(1, 2)),),
            processes=2,
            overruns=(Overrun(Breach.BYPASS, uuid(0), "says so"),),
            over_seconds={(uuid(0), Breach.BYPASS): 40.0, (uuid(0), Breach.MEMORY): 2.5},
            unknown_functions=4,
        )
    },
    xids={(uuid(1), "79"): 1, (uuid(1), "other"): 3},
    critical_errors={uuid(1): 1},
)


@pytest.fixture
def metrics() -> AgentMetrics:
    found = AgentMetrics(version="1.2.3")
    found.granted(0.004)
    found.refused("capacity", 3.0)
    found.identified(Source.PODS, 0.003)
    found.identified(None, 0.003)
    found.count(STARTS, outcome="started", reason="")
    found.start_failed("capacity")
    found.count(REGISTRATIONS)
    found.count(REPAIRS)
    found.event_seen(1_760_000_000.0)
    found.mirrored(driver="580.65.06", missing=["libnvidia-nvvm.so.4"], enforceable=True)
    return found


def rendered(metrics: AgentMetrics, picture: NodePicture = PICTURE, state: AgentState = SERVING) -> str:
    return metrics.render_with(picture, state)[0].decode()


def values(
    metrics: AgentMetrics, picture: NodePicture = PICTURE, state: AgentState = SERVING
) -> dict[tuple[str, ...], float]:
    """(name, label=value, ...) to value."""
    text = rendered(metrics, picture, state)
    return {
        (sample.name, *(f"{name}={value}" for name, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_gpus_and_containers_are_reported_in_base_units(metrics: AgentMetrics) -> None:
    found = values(metrics)
    on = ("node=gpu-7", "uuid=GPU-00000000")
    assert found["vcuda_gpu_memory_capacity_bytes", *on] == 80 * GIB
    assert found["vcuda_gpu_memory_allocated_bytes", *on] == 24 * GIB
    assert found["vcuda_gpu_memory_used_bytes", *on] == 10 * GIB
    assert found["vcuda_gpu_cores_allocated_ratio", *on] == pytest.approx(0.7)
    assert found["vcuda_gpu_utilization_ratio", *on] == 0.75
    assert found["vcuda_gpu_processes", *on] == 2
    assert found["vcuda_gpu_healthy", *on] == 1
    assert found["vcuda_gpu_healthy", "node=gpu-7", "uuid=GPU-00000001"] == 0
    container = ("container=main", "namespace=ml", "node=gpu-7", "pod=train", "uuid=GPU-00000000")
    assert found["vcuda_container_memory_limit_bytes", *container] == 16 * GIB
    assert found["vcuda_container_cores_limit_ratio", *container] == 0.5
    info = ("cuda=12.4", "driver=550.54.15", "index=1", "minor=1", "node=gpu-7")
    assert found["vcuda_gpu_info", *info, "product=NVIDIA A100-SXM4-80GB", "uuid=GPU-00000001"] == 1


def test_a_limit_below_the_grant_is_the_limit_and_not_what_is_allocated(metrics: AgentMetrics) -> None:
    limited = replace(grant("ml/train/main", 0, cores=50, blocks=64), limits=PodLimits(memory_mib=5000))
    found = values(metrics, node([gpu(0)], by_groups(1, (Level.PIX, 1)), limited))
    assert [value for key, value in found.items() if key[0] == "vcuda_container_memory_limit_bytes"] == [5000 << 20]
    assert [value for key, value in found.items() if key[0] == "vcuda_gpu_memory_allocated_bytes"] == [16 * GIB]


def test_the_query_for_the_room_left_counts_only_what_takes_new_containers() -> None:
    """NVML D8: it counted GPUs in MIG mode, in compute mode prohibited, and cordoned ones."""
    prohibited = replace(gpu(3), compute_mode=ComputeMode.PROHIBITED)
    gpus = [gpu(0), gpu(1), gpu(2, mig=True), prohibited, gpu(4)]
    ill = {uuid(1): Health(healthy=False, reason="gone")}
    shown = node(gpus, by_groups(5, (Level.PIX, 5)), grant("ml/a/b", 0, cores=40), health=ill)
    found = values(AgentMetrics(version="1.2.3"), replace(shown, cordoned=frozenset({uuid(4)})))
    available = {key[2]: value for key, value in found.items() if key[0] == "vcuda_gpu_available"}
    assert available == {f"uuid={uuid(minor)}": float(minor == 0) for minor in range(5)}
    page = (Path(__file__).parents[2] / "docs" / "reference" / "metrics.md").read_text()
    assert "Room left, in GPUs: `sum(vcuda_gpu_available * (1 - vcuda_gpu_cores_allocated_ratio))`" in page


def test_a_memory_repair_that_waits_for_a_reset_and_closed_nvml_are_shown() -> None:
    found = values(AgentMetrics(version="1.2.3"), replace(PICTURE, repairs_pending=frozenset({uuid(1)})))
    pending = {key[2]: value for key, value in found.items() if key[0] == "vcuda_gpu_memory_repair_pending"}
    assert pending == {f"uuid={uuid(0)}": 0, f"uuid={uuid(1)}": 1}
    assert found["vcuda_nvml_open", "node=gpu-7"] == 1
    assert (
        values(AgentMetrics(version="1.2.3"), replace(PICTURE, nvml_open=False))["vcuda_nvml_open", "node=gpu-7"] == 0
    )


def test_a_driver_newer_than_the_library_is_shown() -> None:
    assert PICTURE.inventory is not None
    known = {(12, 4): 1, NEWEST_CUDA: 1, (13, NEWEST_CUDA[1] + 1): 0, (14, 0): 0}
    shown = {}
    for cuda in known:
        newer = replace(PICTURE.inventory, driver=Driver("700.1", cuda))
        found = values(AgentMetrics(version="1.2.3"), replace(PICTURE, inventory=newer))
        shown[cuda] = found["vcuda_driver_known", f"cuda={cuda[0]}.{cuda[1]}", "node=gpu-7"]
    assert shown == known


def test_container_use_is_reported_if_it_is_measured(metrics: AgentMetrics) -> None:
    found = values(metrics)
    pod = ("namespace=ml", "node=gpu-7", "pod=train")
    on = ("container=main", *pod, "uuid=GPU-00000000")
    assert found["vcuda_container_memory_used_bytes", *on] == 5 * GIB
    assert found["vcuda_container_memory_overhead_bytes", *on] == GIB
    assert found["vcuda_container_memory_peak_bytes", *on] == 6 * GIB
    assert found["vcuda_container_memory_refusals_total", *on] == 2
    assert found["vcuda_container_cores_used_ratio", *on] == 0.4
    assert found["vcuda_container_cores_in_force_ratio", *on] == 0.5
    assert found["vcuda_container_gpu_seconds_total", *on] == 120.5
    assert found["vcuda_container_throttled_seconds_total", *on] == 3.25
    assert found["vcuda_container_throttled_launches_total", *on] == 70
    assert found["vcuda_container_processes", "container=main", *pod] == 2
    assert found["vcuda_container_unknown_functions_total", "container=main", *pod] == 4
    breaches = {key[1]: value for key, value in found.items() if key[0] == "vcuda_container_over_limit"}
    assert breaches == {"breach=bypass": 1}, "what is not so has no series"
    seconds = {key[1]: value for key, value in found.items() if key[0] == "vcuda_container_over_limit_seconds_total"}
    assert seconds == {"breach=bypass": 40, "breach=memory": 2.5, "breach=cores": 0, "breach=state": 0}
    assert not [key for key in found if "pod=nb" in key and key[0].startswith("vcuda_container_memory_used")]


def test_values_that_nvml_did_not_read_are_not_reported(metrics: AgentMetrics) -> None:
    assert not any("GPU-00000001" in str(key) and key[0].startswith("vcuda_gpu_memory_used") for key in values(metrics))


def test_xids_are_counted_by_gpu_and_number(metrics: AgentMetrics) -> None:
    found = {key[1:]: value for key, value in values(metrics).items() if key[0] == "vcuda_gpu_xids_total"}
    on = ("node=gpu-7", "uuid=GPU-00000001")
    assert found == {(*on, "xid=79"): 1, (*on, "xid=other"): 3}


def test_errors_that_make_a_gpu_unhealthy_are_counted_from_0(metrics: AgentMetrics) -> None:
    """An increase over the first error is seen only if the series was there before."""
    found = {key[2]: value for key, value in values(metrics).items() if key[0] == "vcuda_gpu_xid_errors_total"}
    assert found == {"uuid=GPU-00000000": 0, "uuid=GPU-00000001": 1}


def test_every_known_outcome_begins_at_0() -> None:
    """Otherwise a rate does not see the first refusal."""
    found = values(AgentMetrics(version="1"))
    for name, success in (("vcuda_allocations_total", "allocated"), ("vcuda_container_starts_total", "started")):
        assert found[name, f"outcome={success}", "reason="] == 0
        for reason in REASONS:
            assert found[name, "outcome=refused", f"reason={reason}"] == 0
    assert {reason_of(error("x")) for error in (CapacityError, DriverMissingError, LedgerError)} <= set(REASONS)


def test_allocations_and_their_durations_count_containers(metrics: AgentMetrics) -> None:
    """Kubelet asks twice for a container with cores and memory; 3 containers had 3 allocations and 6 durations."""
    found = values(metrics)
    counted = sum(value for key, value in found.items() if key[0] == "vcuda_allocations_total")
    assert found["vcuda_allocation_duration_seconds_count",] == counted == 2


def test_what_is_not_known_of_a_container_has_no_series_and_a_gauge_says_so() -> None:
    """It was 0 while a program held 2 GiB."""
    lost = ContainerUse((GpuUse(uuid(0), peak_bytes=6 * GIB, refusals=2),), processes=None)
    whole = ContainerUse((GpuUse(uuid(0), 5 * GIB),), processes=1)
    grants = (grant("ml/lost/c", 0, cores=20), grant("ml/seen/c", 0, cores=20), grant("ml/new/c", 0, cores=20))
    shown = node([gpu(0)], by_groups(1), *grants, uses={"ml/lost/c": lost, "ml/seen/c": whole})
    found = {
        (key[0], label.removeprefix("pod=")): value
        for key, value in values(AgentMetrics(version="1"), shown).items()
        for label in key
        if label.startswith("pod=")
    }
    known = {pod: value for (name, pod), value in found.items() if name == "vcuda_container_use_known"}
    assert known == {"lost": 0, "seen": 1}, "of one that was never measured nothing is said"
    assert found["vcuda_container_memory_peak_bytes", "lost"] == 6 * GIB
    for name in ("vcuda_container_memory_used_bytes", "vcuda_container_processes"):
        assert {pod for each, pod in found if each == name} == {"seen"}


def test_events_are_counted(metrics: AgentMetrics) -> None:
    found = values(metrics)
    assert found["vcuda_allocations_total", "outcome=allocated", "reason="] == 1
    assert found["vcuda_allocations_total", "outcome=refused", "reason=capacity"] == 1
    assert found["vcuda_container_starts_total", "outcome=started", "reason="] == 1
    assert found["vcuda_container_starts_total", "outcome=refused", "reason=capacity"] == 1
    assert found["vcuda_allocation_duration_seconds_bucket", "le=0.005"] == 1
    assert found["vcuda_allocation_duration_seconds_bucket", "le=0.0025"] == 0
    assert found["vcuda_kubelet_registrations_total",] == 1
    assert found["vcuda_ledger_repairs_total",] == 1
    assert found["vcuda_watch_last_event_timestamp_seconds",] == 1_760_000_000
    assert found["vcuda_build_info", "version=1.2.3"] == 1
    assert found["vcuda_kubelet_registered",] == 1
    assert found["process_resident_memory_bytes",] > 0


def test_the_driver_mirror_metrics_show_the_present_state(metrics: AgentMetrics) -> None:
    found = values(metrics)
    assert found["vcuda_driver_mirror_info", "driver=580.65.06"] == 1
    assert found["vcuda_driver_mirror_missing", "library=libnvidia-nvvm.so.4"] == 1
    assert found["vcuda_shares_enforceable",] == 1
    metrics.mirrored(driver="590.10", missing=[], enforceable=False)
    found = values(metrics)
    assert [key for key in found if key[0] == "vcuda_driver_mirror_info"] == [
        ("vcuda_driver_mirror_info", "driver=590.10")
    ]
    assert not [key for key in found if key[0] == "vcuda_driver_mirror_missing"]
    assert found["vcuda_shares_enforceable",] == 0


def test_a_pod_and_its_successor_of_the_same_name_are_one_series() -> None:
    twice = [grant("ml/web-0/c", 0, cores=10, blocks=8, uid=uid) for uid in ("old", "new")]
    found = values(AgentMetrics(version="1"), node([gpu(0)], by_groups(1), *twice))
    cores = [value for key, value in found.items() if key[0] == "vcuda_container_cores_limit_ratio"]
    assert cores == [pytest.approx(0.2)]


def test_before_the_first_event_the_watch_has_no_time() -> None:
    """It was the year 1970."""
    found = values(AgentMetrics(version="1"))
    assert not [key for key in found if key[0] == "vcuda_watch_last_event_timestamp_seconds"]


def test_before_the_driver_has_answered_there_are_metrics_of_the_agent_only() -> None:
    found = values(AgentMetrics(version="1"), NodePicture("n", None), AgentState(registered=False, synced=False))
    assert found["vcuda_kubelet_registered",] == 0
    assert not any(key[0].startswith("vcuda_gpu") for key in found)


def test_the_reference_lists_exactly_what_is_scraped_with_its_labels(metrics: AgentMetrics) -> None:
    text = rendered(metrics)
    scraped = {}
    for family in text_string_to_metric_families(text):
        name = f"{family.name}_total" if family.type == "counter" else family.name
        labels = {label for sample in family.samples for label in sample.labels} - {"le"}
        if not name.startswith("process_"):
            scraped[name] = (family.type, family.documentation, labels)
    assert scraped == {family.name: (family.type, family.help, set(family.labels)) for family in FAMILIES}


BASE_UNITS = ("_seconds", "_bytes", "_ratio", "_info", "_total", "_healthy", "_registered", "_processes")
STATES = (
    "_known",
    "_missing",
    "_enforceable",
    "_over_limit",
    "_cordoned",
    "_available",
    "_open",
    "_pending",
    "_unreadable",
)
OTHER_UNITS = r"(milli|micro|nano|minutes|hours|days|percent|[kmg]i?b\b|kilobytes|megabytes|celsius)"


def test_names_follow_the_rules_of_prometheus() -> None:
    for family in FAMILIES:
        name, kind = family.name, family.type
        assert re.fullmatch(r"vcuda(_[a-z]+)+", name)
        assert name.endswith((*BASE_UNITS, *STATES))
        assert not re.search(OTHER_UNITS, name)
        assert (kind == "counter") == name.endswith("_total"), name
        assert not name.endswith(("_count", "_sum", "_bucket"))
        assert kind not in name.split("_")
        assert re.fullmatch(r"[A-Z0-9].{15,}\.", family.help), name
        assert {"le", "quantile", "job", "instance"}.isdisjoint(family.labels), name
        assert [label for label in family.labels if not re.fullmatch(r"[a-z]+", label)] == [], name


def test_each_event_is_a_change(metrics: AgentMetrics) -> None:
    """So that the next scrape shows it, and not the text of the last sample period."""
    assert metrics.changes == 10


def test_no_series_is_exposed_twice(metrics: AgentMetrics) -> None:
    lines = [line.rpartition(" ")[0] for line in rendered(metrics).splitlines() if not line.startswith("#")]
    assert len(set(lines)) == len(lines)


def test_openmetrics_is_given_to_scrapers_that_ask_for_it(metrics: AgentMetrics) -> None:
    body, content_type = metrics.render("application/openmetrics-text; version=1.0.0")
    assert content_type.startswith("application/openmetrics-text")
    assert body.endswith(b"# EOF\n")
    assert metrics.render()[1].startswith("text/plain; version=")


def test_a_malformed_accept_header_is_answered_in_the_usual_format(metrics: AgentMetrics) -> None:
    malformed = ("application/openmetrics-text; version=x", "text/plain; version=1..2", ",;=,")
    assert {metrics.render(accept)[1] for accept in malformed} == {metrics.render()[1]}


def test_the_reason_of_a_refusal_is_the_kind_of_its_error() -> None:
    assert reason_of(CapacityError("x")) == "capacity"
    assert reason_of(DriverMissingError("x")) == "driver_missing"
