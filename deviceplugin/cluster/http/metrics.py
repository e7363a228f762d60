"""The scheduler's metrics for Prometheus.

In: `asked` for each request, figures when scraped. Out: a registry of its own and its text. `FAMILIES` is the
reference: names, labels and meanings are interfaces, and docs are made from it.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import cache

from prometheus_client.core import Metric

from deviceplugin.cluster.http.verbs import Figures
from deviceplugin.exposition import Exposition, Family, metric_of

REQUESTS = Family(
    "vcuda_scheduler_requests_total",
    "counter",
    "Requests by verb and outcome. webhook: passed, changed, denied; filter: chosen, refused; bind: bound, refused; "
    "preempt: room, no_room; any: answered, malformed, too_large, slow, gone, busy, not_now, far_caller, stranger, "
    "failed.",
    ("verb", "outcome"),
)
SECONDS = Family(
    "vcuda_scheduler_request_duration_seconds",
    "histogram",
    "Time from the whole request to the answer.",
    ("verb",),
)
REJECTIONS = Family(
    "vcuda_scheduler_rejections_total", "counter", "Nodes that filter refused, by constant reason.", ("reason",)
)
RESERVATIONS = Family(
    "vcuda_scheduler_reservations", "gauge", "Pods that hold GPUs by filter's choice and are not bound yet."
)
PODS = Family("vcuda_scheduler_pods", "gauge", "Bound pods that hold GPUs.")
UNCONFIRMED = Family(
    "vcuda_scheduler_unconfirmed_pods",
    "gauge",
    "Pods of which only this replica says that they are bound or may be: the watch has not told, or a Binding got no "
    "answer.",
)
OVERBOOKED = Family(
    "vcuda_scheduler_overbooked_gpus",
    "gauge",
    "GPUs of which bound pods hold more than there is, because another scheduler or a former replica bound one.",
)
NODES = Family("vcuda_scheduler_nodes", "gauge", "Nodes whose GPUs are known.")
GPUS = Family("vcuda_scheduler_gpus", "gauge", "GPUs of these nodes.")
LEADER = Family(
    "vcuda_scheduler_leader", "gauge", "1 while this replica answers kube-scheduler, 0 in a replica beside it."
)
DAYS_LEFT = Family(
    "vcuda_scheduler_certificate_days_left",
    "gauge",
    "Days until a certificate is over; it is replaced when a third of its life is left.",
    ("certificate",),
)
SILENCE = Family(
    "vcuda_scheduler_watch_silence_seconds",
    "gauge",
    "Seconds since the API server last said anything about these objects.",
    ("kind",),
)
BUILD = Family("vcuda_scheduler_build_info", "gauge", "Always 1; the label is the version of vcuda.", ("version",))

FAMILIES = (
    *(REQUESTS, SECONDS, REJECTIONS, RESERVATIONS, PODS, UNCONFIRMED, OVERBOOKED, NODES, GPUS, LEADER),
    *(DAYS_LEFT, SILENCE, BUILD),
)
_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)


class SchedulerMetrics:
    """Everything that one scheduler counts."""

    def __init__(self, figures: Callable[[], Figures], *, version: str) -> None:
        self._exposition = out = Exposition(lambda: _collect(figures()), build=BUILD, version=version)
        # Kept: to look one up by its labels takes prometheus_client longer than to count.
        self._requests = cache(out.counter(REQUESTS).labels)
        self._seconds = cache(out.histogram(SECONDS, _BUCKETS).labels)
        self._rejections = cache(out.counter(REJECTIONS).labels)

    def asked(self, verb: str, outcome: str, seconds: float, rejections: Mapping[str, int]) -> None:
        """One request was answered, either way."""
        self._requests(verb, outcome).inc()
        self._seconds(verb).observe(seconds)
        for reason, count in rejections.items():
            self._rejections(reason).inc(count)

    def render(self, accept: str = "") -> tuple[bytes, str]:
        """The text in the format that the scraper asks for, and its content type."""
        return self._exposition.render(accept)


def _collect(now: Figures) -> Iterator[Metric]:
    for family, value in (
        (RESERVATIONS, now.reservations),
        (PODS, now.pods),
        (UNCONFIRMED, now.unconfirmed),
        (OVERBOOKED, now.overbooked),
        (NODES, now.nodes),
        (GPUS, now.gpus),
        (LEADER, now.leads),
    ):
        yield metric_of(family, [((), float(value))])
    for family, values in ((DAYS_LEFT, now.days_left), (SILENCE, now.silence)):
        yield metric_of(family, [((label,), value) for label, value in values.items()])
