"""The scheduler's metrics for Prometheus.

In: `asked` for each request, figures when scraped. Out: a registry of its own and its text. `FAMILIES` is the
reference: names, labels and meanings are interfaces, and docs are made from it.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping

import prometheus_client
from prometheus_client.core import CollectorRegistry, GaugeMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from deviceplugin.cluster.http.verbs import Figures
from deviceplugin.model.metric import Family

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
        # Otherwise each counter brings a second series that nobody reads.
        prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry()
        self.registry.register(_FiguresCollector(figures))
        ProcessCollector(registry=self.registry)
        self._requests = prometheus_client.Counter(
            REQUESTS.name, REQUESTS.help, REQUESTS.labels, registry=self.registry
        )
        self._seconds = prometheus_client.Histogram(
            SECONDS.name, SECONDS.help, SECONDS.labels, buckets=_BUCKETS, registry=self.registry
        )
        self._rejections = prometheus_client.Counter(
            REJECTIONS.name, REJECTIONS.help, REJECTIONS.labels, registry=self.registry
        )
        build = prometheus_client.Gauge(BUILD.name, BUILD.help, BUILD.labels, registry=self.registry)
        build.labels(version=version).set(1)

    def asked(self, verb: str, outcome: str, seconds: float, rejections: Mapping[str, int]) -> None:
        """One request was answered, either way."""
        self._requests.labels(verb=verb, outcome=outcome).inc()
        self._seconds.labels(verb=verb).observe(seconds)
        for reason, count in rejections.items():
            self._rejections.labels(reason=reason).inc(count)

    def render(self, accept: str = "") -> tuple[bytes, str]:
        """The text in the format that the scraper asks for, and its content type."""
        encode, content_type = choose_encoder(accept)
        return encode(self.registry), content_type


class _FiguresCollector(Collector):
    """Turns figures into gauges at each scrape, so that they agree with each other."""

    def __init__(self, figures: Callable[[], Figures]) -> None:
        self._figures = figures

    def describe(self) -> Iterable[Metric]:
        return ()  # registering must not ask what is not there yet

    def collect(self) -> Iterator[Metric]:
        now = self._figures()
        for family, value in (
            (RESERVATIONS, now.reservations),
            (PODS, now.pods),
            (UNCONFIRMED, now.unconfirmed),
            (OVERBOOKED, now.overbooked),
            (NODES, now.nodes),
            (GPUS, now.gpus),
            (LEADER, now.leads),
        ):
            yield _gauge(family, {"": float(value)})
        yield _gauge(DAYS_LEFT, now.days_left)
        yield _gauge(SILENCE, now.silence)


def _gauge(family: Family, values: Mapping[str, float]) -> Metric:
    gauge = GaugeMetricFamily(family.name, family.help, labels=family.labels)
    for label, value in values.items():
        gauge.add_metric((label,) if family.labels else (), value)
    return gauge
