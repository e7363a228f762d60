"""A browser for the tests that need one."""

import pytest

from tests.programs import need_chromium


@pytest.fixture(scope="session")
def chromium() -> None:
    need_chromium()
