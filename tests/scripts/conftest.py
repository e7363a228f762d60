"""What several tests of scripts/ read."""

import os

import pytest

from tests.programs import helm_program
from tests.scripts.released import Release, made_once


@pytest.fixture(scope="session")
def released(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Release:
    helm_program(request)
    base = tmp_path_factory.getbasetemp()
    return made_once((base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "released")
