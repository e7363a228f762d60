"""Helm for the tests of the chart."""

import pytest

from tests.daemonset.chart import helm_program


@pytest.fixture(scope="session")
def helm(request: pytest.FixtureRequest) -> str:
    return helm_program(request)
