"""The scheduler's metrics for Prometheus.

In: `observe` for each request, the gauges when scraped. Out: a registry and its text. `FAMILIES` is the reference:
names, labels and meanings are interfaces, and docs/reference is generated from it.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import cache

from prometheus_client.core import Metric

from deviceplugin.cluster.extender.rejection import KNOWN, WRONG_REQUEST, label_of
from deviceplugin.exposition import Exposition, Family, families_of
from deviceplugin.serve.connections import CLOSED, ClosedBecause
from deviceplugin.serve.messages import GONE

REQUESTS = Family(
    "vcuda_scheduler_requests_total",
    "counter",
    "Requests by verb and outcome. webhook: passed, changed, denied; filter: chosen, refused; bind: bound, refused; "
    "preempt: room, no_room; any: answered, malformed, too_large, slow, disconnected, busy, unavailable, non_loopback, "
    "unauthorized, failed.",
    ("verb", "outcome"),
)
SECONDS = Family(
    "vcuda_scheduler_request_duration_seconds",
    "histogram",
    "Time from the complete request to the answer.",
    ("verb",),
)
REJECTIONS = Family(
    "vcuda_scheduler_rejections_total", "counter", "Nodes that filter rejected, by reason.", ("reason",)
)
RESERVATIONS = Family(
    "vcuda_scheduler_reservations", "gauge", "Pods with reserved or assumed GPUs that are not bound yet."
)
PENDING = Family(
    "vcuda_scheduler_pending_pods",
    "gauge",
    "Pending pods with GPUs, by the main reason; only the leader knows it.",
    ("reason",),
)
PODS = Family("vcuda_scheduler_pods", "gauge", "Bound pods with GPUs.")
UNCONFIRMED = Family(
    "vcuda_scheduler_unconfirmed_pods",
    "gauge",
    "Pods assumed bound by this replica but not yet confirmed by the API server.",
)
OVERCOMMITTED = Family(
    "vcuda_scheduler_overcommitted_gpus",
    "gauge",
    "GPUs that bound pods over-commit, for example after a Binding by another scheduler.",
)
NODES = Family("vcuda_scheduler_nodes", "gauge", "Nodes with a readable GPU inventory.")
NODES_WITHOUT_AGENT = Family(
    "vcuda_scheduler_nodes_without_agent",
    "gauge",
    "Nodes with a readable GPU inventory that offer no GPU resources, because their agent is down.",
)
GPUS = Family("vcuda_scheduler_gpus", "gauge", "GPUs of the nodes with a readable GPU inventory.")
READY = Family(
    "vcuda_scheduler_ready", "gauge", "1 while this replica knows the cluster and has its certificate, else 0."
)
LEADER = Family(
    "vcuda_scheduler_leader", "gauge", "1 while this replica is the leader and answers kube-scheduler, else 0."
)
EXPIRATION = Family(
    "vcuda_scheduler_certificate_expiration_timestamp_seconds",
    "gauge",
    "Unix time at which a certificate expires. server: the replica's own, replaced when a third of its lifetime is "
    "left; ca: the CA that signs it, replaced by you.",
    ("certificate",),
)
LAST_EVENT = Family(
    "vcuda_scheduler_watch_last_event_timestamp_seconds",
    "gauge",
    "Unix time of the last event of the watch, by kind of object.",
    ("kind",),
)
UNREADABLE = Family(
    "vcuda_scheduler_objects_unreadable",
    "gauge",
    "Objects that the scheduler cannot read, by kind; what it knew of them before counts. The log says which and why.",
    ("kind",),
)
CLAIMS_REFUSED = Family(
    "vcuda_scheduler_claim_templates_refused_total",
    "counter",
    "Pods that got no claim template, by reason: wrong_name, not for what the pod's annotations say; too_many_names, "
    "more than containers; namespace_full, the namespace has as many as vcuda keeps for one. write_failed: templates "
    "that the API server refused. Only with --translate-to-claims.",
    ("reason",),
)
CONNECTIONS_CLOSED = Family(
    "vcuda_scheduler_connections_closed_total",
    "counter",
    f"Connections that the scheduler closed: {CLOSED}.",
    ("reason",),
)
BUILD = Family("vcuda_scheduler_build_info", "gauge", "Always 1; the label has the version of vcuda.", ("version",))

FAMILIES = families_of(globals())
FAILURES = ("malformed", "too_large", "slow", GONE, "busy", "unavailable", "failed")
"""What can become of a request of any verb; where callers are restricted, non_loopback and unauthorized too."""
_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)


class SchedulerMetrics(Exposition):
    """All metrics of one scheduler."""

    def __init__(self, gauges: Callable[[], Iterable[Metric]], *, version: str) -> None:
        super().__init__(build=BUILD, version=version)
        self._gauges = gauges
        # Cached: in prometheus_client the lookup by labels takes longer than counting.
        self._requests = cache(self.counter(REQUESTS).labels)
        self._seconds = cache(self.histogram(SECONDS, _BUCKETS).labels)
        self._rejections = cache(self.counter(REJECTIONS).labels)
        for reason in (*sorted(KNOWN), WRONG_REQUEST):
            self._rejections(reason)
        closed = self.counter(CONNECTIONS_CLOSED)
        self._closed = {reason: closed.labels(reason=reason.value) for reason in ClosedBecause}

    def expect(self, verb: str, outcomes: Iterable[str]) -> None:
        """Starts at 0 what can happen, so that a rate sees the first time."""
        self._seconds(verb)
        for outcome in (*outcomes, *FAILURES):
            self._requests(verb, outcome)

    def observe(self, verb: str, outcome: str, seconds: float, rejections: Mapping[str, int]) -> None:
        """Counts one answered request."""
        self._requests(verb, outcome).inc()
        self._seconds(verb).observe(seconds)
        for reason, count in rejections.items():
            self._rejections(label_of(reason)).inc(count)

    def connection_closed(self, reason: ClosedBecause) -> None:
        self._closed[reason].inc()

    def collect(self) -> Iterable[Metric]:
        return self._gauges()
