"""A minute of the soak, three in the thorough run: whatever pods and faults the seed brings, no promise is broken."""

import os
import secrets

import pytest
from hypothesis import settings

from sandbox.cluster.cluster import Cluster
from tests.e2e.soak.report import table
from tests.e2e.soak.soak import Plan, soak

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1800)]

SEED = 11 if os.environ.get("CI") == "true" else secrets.randbelow(10**6)


def test_no_promise_is_broken_in_minutes_of_faults(empty_cluster: Cluster) -> None:
    minutes = 3 if settings.get_current_profile_name() == "thorough" else 1
    found = soak(empty_cluster, Plan(minutes=minutes, seed=SEED))

    print(table(found))
    assert found.wrong == []
