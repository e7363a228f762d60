"""An extender on a clock that the test moves."""

import pytest

from deviceplugin.cluster.extender.extender import Extender
from tests.cluster.extender.api import MemoryApi
from tests.cluster.extender.makers import node


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


@pytest.fixture
def busy(extender: Extender) -> Extender:
    """With a node that has two GPUs."""
    extender.put_node(node("a", 2))
    return extender
