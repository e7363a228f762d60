"""The short form of `python -m benchmarks.dra --kubelet`: every kind of pod runs and is timed.

The cluster is that of the other tests: a second one would want the same addresses.
"""

import pytest

from benchmarks.claims.pods import measure_pods
from sandbox.cluster import claims
from sandbox.cluster.cluster import Cluster

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]
JUDGED = {"pods_ratio", "pods_bare_ratio", "pods_over_bare_ratio", "kubelet_prepare_ms", "kubelet_bare_prepare_ms"}


def test_pods_with_claims_and_without_are_timed_on_one_kubelet(empty_cluster: Cluster) -> None:
    figures = measure_pods(empty_cluster, turns=1, count=2)
    assert figures.keys() >= JUDGED
    assert all(isinstance(value, (int, float)) and value > 0 for value in figures.values())
    assert not claims.slices(empty_cluster.admin), "nothing is left over"
