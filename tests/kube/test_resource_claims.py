"""A ResourceClaim of the API server becomes a `Claim`, whatever parts it lacks. The server is a real local one."""

from dataclasses import dataclass
from fractions import Fraction

import pytest

from deviceplugin.errors import KubeNotFoundError, ParseError
from deviceplugin.kube.client import KubeClient
from deviceplugin.model.claims import Claim, ClaimedDevice, ClaimRef, ClaimUid
from sandbox.apiserver import ApiServer, JsonObject

DRIVER = "gpu.vcuda.tencent.com"
RESULT: JsonObject = {
    "request": "gpu/packed",
    "driver": DRIVER,
    "pool": "node-a",
    "device": "gpu-1",
    "shareID": "s-1",
    "consumedCapacity": {"cores": "20", "memory": "2Gi"},
}


@dataclass
class Scene:
    """An API server and a client of it."""

    server: ApiServer
    client: KubeClient

    async def read(self, status: JsonObject | None, *, uid: str = "", name: str = "one") -> Claim:
        body: JsonObject = {"metadata": {"name": name}, "spec": {}}
        if status is not None:
            body["status"] = status
        self.server.store.create("resourceclaims", body, namespace="default")
        return await self.client.get_claim(ClaimRef(ClaimUid(uid), "default", name))


@pytest.fixture
def scene(server: ApiServer, client: KubeClient) -> Scene:
    return Scene(server, client)


def allocated(*results: JsonObject, **more: object) -> JsonObject:
    return {"allocation": {"devices": {"results": list(results), **more}}}


async def test_what_was_allocated(scene: Scene) -> None:
    found = await scene.read(allocated(RESULT) | {"reservedFor": [{"resource": "pods", "name": "p", "uid": "u"}]})
    consumed = {"cores": Fraction(20), "memory": Fraction(2 << 30)}
    assert found.devices == (ClaimedDevice("gpu", DRIVER, "node-a", "gpu-1", "s-1", consumed),)
    assert (found.consumers, found.configured, found.deleting) == (frozenset({"u"}), frozenset(), False)


async def test_nothing_is_allocated_yet(scene: Scene, subtests: pytest.Subtests) -> None:
    cases: list[JsonObject | None] = [None, {}, {"allocation": None}, {"reservedFor": None}]
    for number, status in enumerate(cases):
        with subtests.test(status=status):
            assert (await scene.read(status, name=f"claim-{number}")).devices is None


async def test_an_allocation_without_devices_is_one(scene: Scene, subtests: pytest.Subtests) -> None:
    cases: list[JsonObject] = [{}, {"devices": None}, {"devices": {"results": None}}]
    for number, allocation in enumerate(cases):
        with subtests.test(allocation=allocation):
            assert (await scene.read({"allocation": allocation}, name=f"claim-{number}")).devices == ()


async def test_administrative_access_and_parameters_are_seen(scene: Scene) -> None:
    config = [
        {"source": "FromClaim", "opaque": {"driver": DRIVER, "parameters": {}}},
        {"source": "FromClass", "opaque": {"driver": "gpu.example.org", "parameters": {}}},
        {"source": "FromClass"},
    ]
    found = await scene.read(allocated(RESULT | {"adminAccess": True}, config=config))
    assert found.devices is not None
    assert [each.is_administrative for each in found.devices] == [True]
    assert found.configured == {DRIVER, "gpu.example.org"}


async def test_another_claim_of_the_name_is_not_it(scene: Scene) -> None:
    with pytest.raises(KubeNotFoundError, match="another claim has its name"):
        await scene.read(None, uid="of-an-earlier-one")


async def test_a_claim_that_cannot_be_read_is_said(scene: Scene) -> None:
    with pytest.raises(ParseError, match="is not a Kubernetes quantity"):
        await scene.read(allocated(RESULT | {"consumedCapacity": {"cores": "many"}}))
