"""The stand-in API server and a client of it, for every test of the edge."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from deviceplugin.kube.client import KubeClient
from deviceplugin.kube.transport import Timeouts
from tests.fakes.apiserver import ApiServer


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    async with ApiServer(bookmark_seconds=0.05) as running:
        yield running


@pytest.fixture
async def client(server: ApiServer, tmp_path: Path) -> AsyncIterator[KubeClient]:
    timeouts = Timeouts(connect=1.0, request=1.0, silence=1.0)
    async with await KubeClient.connect(server.kubeconfig(tmp_path / "kubeconfig"), timeouts=timeouts) as connected:
        yield connected
