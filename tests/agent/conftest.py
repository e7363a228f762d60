"""The scenarios need the emulated driver."""

import pytest

from tests.hardware.emulator import build


@pytest.fixture(scope="session", autouse=True)
def emulated_driver() -> None:
    build()
