"""The programs of Prometheus, looked for once."""

import pytest

from tests.programs import need_prometheus


@pytest.fixture(scope="session")
def prometheus_programs() -> None:
    need_prometheus()
