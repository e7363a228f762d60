"""An extender on a clock that the test moves."""

import pytest

from deviceplugin.cluster.extender.extender import Extender
from tests.cluster.extender.api import MemoryApi


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def api() -> MemoryApi:
    return MemoryApi()


@pytest.fixture
async def extender(api: MemoryApi, clock: Clock) -> Extender:
    return Extender(api, clock=clock)
