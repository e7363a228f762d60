"""Helm and the chart, what it makes of the default values, and the definitions of other projects' kinds."""

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.daemonset.chart import Chart, Object, Rendered
from tests.definitions import published
from tests.programs import helm4_program, helm_program


@pytest.fixture(scope="session")
def helm(request: pytest.FixtureRequest) -> str:
    return helm_program(request)


@pytest.fixture(scope="session")
def helm4(request: pytest.FixtureRequest) -> str:
    return helm4_program(request)


@pytest.fixture(scope="session")
def chart(helm: str, tmp_path_factory: pytest.TempPathFactory) -> Chart:
    base = tmp_path_factory.getbasetemp()
    folder: Path = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "rendered"
    folder.mkdir(exist_ok=True)
    return Chart(helm, folder)


@pytest.fixture
def defaults(chart: Chart) -> Rendered:
    return chart.render()


@pytest.fixture(scope="session")
def foreign_definitions() -> Mapping[str, Object]:
    """By kind; Go fetches them."""
    return published.definitions()
