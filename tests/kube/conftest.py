"""The stand-in API server and a client for it."""

import ssl
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs
from structlog.typing import EventDict

from deviceplugin.kube.client import KubeClient
from deviceplugin.kube.credentials import Credentials
from deviceplugin.kube.transport import Timeouts
from sandbox.apiserver import ApiServer
from sandbox.cluster.certificates import ClusterCa
from tests.kube.kubeconfigs import open_transport


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    async with ApiServer(bookmark_seconds=0.05) as running:
        yield running


@pytest.fixture
async def client(server: ApiServer, tmp_path: Path) -> AsyncIterator[KubeClient]:
    timeouts = Timeouts(connect=30.0, request=30.0, silence=1.0)
    # Read in this process: on a busy machine a separate one takes longer than the limit of a request.
    credentials = Credentials(server.kubeconfig(tmp_path / "kubeconfig"))
    transport = await open_transport(None, credentials=credentials, timeouts=timeouts)
    async with KubeClient(transport) as connected:
        yield connected


@pytest.fixture
def logs() -> Iterator[list[EventDict]]:
    """Everything that is logged in the test."""
    with capture_logs() as captured:
        yield captured


@pytest.fixture
def ca(tmp_path: Path) -> ClusterCa:
    return ClusterCa(tmp_path / "pki")


@pytest.fixture
async def secure(ca: ClusterCa) -> AsyncIterator[ApiServer]:
    """Speaks TLS under the names 127.0.0.1 and api.example."""
    pair = ca.issue("serving", common_name="api", names=["127.0.0.1", "api.example"])
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_verify_locations(ca.certificate)
    context.load_cert_chain(pair.certificate, pair.key)
    async with ApiServer(tls=context) as server:
        yield server
