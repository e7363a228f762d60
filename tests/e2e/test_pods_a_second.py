"""The short form of `python -m benchmarks.dra --kubelet`: every kind of pod runs, and the figures have their keys.

The cluster is that of the other tests: a second one would want the same addresses.
"""

import pytest

from benchmarks.claims.pods import measure_pods
from sandbox.cluster import claims
from sandbox.cluster.cluster import Cluster
from tests.benchmarks.test_short import DRA_PODS

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]


def test_pods_with_claims_and_without_are_timed_on_one_kubelet(empty_cluster: Cluster) -> None:
    figures = measure_pods(empty_cluster, turns=1, count=2)
    assert figures.keys() == DRA_PODS
    assert all(isinstance(value, (int, float)) and value > 0 for value in figures.values())
    assert not claims.slices(empty_cluster.admin), "nothing is left over"
