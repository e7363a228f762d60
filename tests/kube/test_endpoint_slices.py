"""Where the agents are, from a real server's EndpointSlices."""

from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from deviceplugin.errors import KubeError
from deviceplugin.kube.client import ObjectClient
from deviceplugin.kube.cluster_client import Address, addresses_by_name, addresses_by_node
from deviceplugin.kube.credentials import Credentials
from deviceplugin.kube.transport import Timeouts, Transport
from sandbox.apiserver import ApiServer, JsonObject
from tests.kube.kubeconfigs import open_transport

SLICES = "/apis/discovery.k8s.io/v1/namespaces/gpu/endpointslices"


@pytest.fixture
async def transport(server: ApiServer, tmp_path: Path) -> AsyncIterator[Transport]:
    timeouts = Timeouts(connect=30.0, request=30.0)
    credentials = Credentials(server.kubeconfig(tmp_path / "kubeconfig"))
    made = await open_transport(None, credentials=credentials, timeouts=timeouts)
    yield made
    await made.close()


async def create(transport: Transport, name: str, endpoints: list[JsonObject], **more: object) -> None:
    labels = {"kubernetes.io/service-name": more.pop("service", "vcuda-agent")}
    item = {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"name": name, "namespace": "gpu", "labels": labels},
        "addressType": "IPv4",
        "endpoints": endpoints,
        "ports": [{"name": "http", "port": 5678}],
        **more,
    }
    await transport.request("POST", SLICES, what="prepare", body=msgspec.json.encode(item))


def endpoint(address: str, node: str, **more: object) -> JsonObject:
    return {"addresses": [address], "nodeName": node, "conditions": {"ready": True}, **more}


async def test_one_ready_agent_of_each_node_is_found(transport: Transport) -> None:
    await create(transport, "one", [endpoint("10.0.0.1", "a"), endpoint("10.0.0.2", "b", conditions={"ready": False})])
    await create(transport, "two", [endpoint("fd00::3", "c", conditions={}), {"addresses": ["10.0.0.4"]}])
    await create(transport, "other", [endpoint("10.0.0.9", "d")], service="else")
    await create(transport, "empty", [], ports=[])
    found = await addresses_by_node(ObjectClient(transport), "gpu", "vcuda-agent")
    assert found == {"a": Address("10.0.0.1", 5678), "c": Address("fd00::3", 5678)}
    assert found["c"].url("/usage") == "http://[fd00::3]:5678/usage"
    assert found["a"].url("/usage") == "http://10.0.0.1:5678/usage"


async def test_a_ready_replica_is_found_by_its_name_and_by_its_node_s(transport: Transport) -> None:
    ports = [{"name": "kube-scheduler", "port": 10259}, {"name": "https", "port": 8443}]
    one = endpoint("10.0.0.1", "host", targetRef={"kind": "Pod", "name": "replica-a"})
    two = endpoint("10.0.0.2", "replica-a", targetRef={"kind": "Pod", "name": "replica-b"})
    await create(transport, "one", [one, two, {"addresses": ["10.0.0.3"]}], service="vcuda-scheduler", ports=ports)
    found = await addresses_by_name(ObjectClient(transport), "gpu", "vcuda-scheduler", port="https")
    assert found == {
        "host": Address("10.0.0.1", 8443),
        "replica-a": Address("10.0.0.1", 8443),
        "replica-b": Address("10.0.0.2", 8443),
    }
    assert found["host"].url("/explain", scheme="https") == "https://10.0.0.1:8443/explain"


async def test_without_a_namespace_those_of_no_other_one_are_taken(transport: Transport) -> None:
    """A user can label a slice of a namespace of his own."""
    await create(transport, "one", [endpoint("10.0.0.1", "a")])
    with pytest.raises(KubeError, match="no namespace is named"):
        await addresses_by_node(ObjectClient(transport), "", "vcuda-agent")


async def test_a_server_that_does_not_answer_is_an_error(transport: Transport, server: ApiServer) -> None:
    await server.stop()
    with pytest.raises(KubeError):
        await addresses_by_node(ObjectClient(transport), "gpu", "vcuda-agent")
