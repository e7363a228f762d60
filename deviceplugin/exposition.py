"""A registry of metrics and its text, for the agent and the scheduler.

In: descriptions (`Family`), and values. Out: counters, gauges and histograms, and the text of all of them. Not here:
which metrics exist.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import msgspec
import prometheus_client
from prometheus_client.core import CollectorRegistry, CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

OPENMETRICS = "application/openmetrics-text; version=1.0.0"


class Family(msgspec.Struct, frozen=True):
    """One metric as docs/reference describes it: its name as scraped, type, meaning and labels."""

    name: str
    type: str
    help: str
    labels: tuple[str, ...] = ()


def families_of(module: Mapping[str, object]) -> tuple[Family, ...]:
    """Those that a module defines, in their order; `module` is its `globals()`."""
    return tuple(each for each in module.values() if isinstance(each, Family))


class Exposition(Collector):
    """`collect` of the subclass is asked at each scrape and not before, so that its gauges agree with each other.

    `build` gets the version of vcuda as its label; the process itself is described too.
    """

    def __init__(self, *, build: Family, version: str) -> None:
        # Otherwise each counter has a second series, `_created`, that no query needs.
        prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]
        self._registry = CollectorRegistry()
        self._registry.register(self)
        ProcessCollector(registry=self._registry)
        self.gauge(build).labels(version=version).set(1)

    def counter(self, family: Family) -> prometheus_client.Counter:
        return prometheus_client.Counter(family.name, family.help, family.labels, registry=self._registry)

    def gauge(self, family: Family) -> prometheus_client.Gauge:
        return prometheus_client.Gauge(family.name, family.help, family.labels, registry=self._registry)

    def histogram(self, family: Family, buckets: Sequence[float]) -> prometheus_client.Histogram:
        return prometheus_client.Histogram(
            family.name, family.help, family.labels, buckets=buckets, registry=self._registry
        )

    def render(self, accept: str = "") -> tuple[bytes, str]:
        """The text in the format that the scraper asks for, and its content type."""
        encode, content_type = choose_encoder(OPENMETRICS if wants_openmetrics(accept) else "")
        return encode(self._registry), content_type


def wants_openmetrics(accept: str) -> bool:
    """The two formats are all there are: names have no characters to escape, and any version is answered by 1.0.0."""
    try:
        _, content_type = choose_encoder(accept)
    except (TypeError, ValueError):  # a version that is no number
        return False
    return content_type.startswith("application/openmetrics-text")


def metric_of(family: Family, rows: Iterable[tuple[tuple[str, ...], float]]) -> Metric:
    """One gauge or counter for a scrape: values by their labels; values with the same labels are added up."""
    sums: dict[tuple[str, ...], float] = defaultdict(float)
    for labels, value in rows:
        sums[labels] += value
    kind = CounterMetricFamily if family.type == "counter" else GaugeMetricFamily
    metric = kind(family.name, family.help, labels=family.labels)
    for labels, value in sums.items():
        metric.add_metric(labels, value)
    return metric
