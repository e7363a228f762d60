"""Helm for the tests of the chart, and what it makes of the default values."""

from pathlib import Path

import pytest

from tests.daemonset.chart import Rendered, helm_program, render


@pytest.fixture(scope="session")
def helm(request: pytest.FixtureRequest) -> str:
    return helm_program(request)


@pytest.fixture
def defaults(helm: str, tmp_path: Path) -> Rendered:
    return render(helm, folder=tmp_path)
