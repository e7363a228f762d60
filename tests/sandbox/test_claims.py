"""Kubelet's side of claims: one call for all of a pod, and kubelet's sentences about the answer."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest

from deviceplugin.model.claims import ClaimRef, ClaimUid
from deviceplugin.wire import dra_pb2 as pb
from deviceplugin.wire import dra_pb2_grpc as rpc
from sandbox.claims import ClaimCallError, DriverConnection

ONE, TWO = (ClaimRef(ClaimUid(f"uid-{name}"), "research", name) for name in ("one", "two"))


class BareDriver(rpc.DRAPluginServicer):
    """Says what it is told to say; `asked` are the UIDs of each call."""

    def __init__(self, errors: Mapping[str, str]) -> None:
        self._errors = errors
        self.asked: list[list[str]] = []

    async def NodePrepareResources(  # noqa: N802
        self, request: pb.NodePrepareResourcesRequest, _context: object
    ) -> pb.NodePrepareResourcesResponse:
        self.asked.append([each.uid for each in request.claims])
        claims = {uid: pb.NodePrepareResourceResponse(error=error) for uid, error in self._errors.items()}
        return pb.NodePrepareResourcesResponse(claims=claims)

    async def NodeUnprepareResources(  # noqa: N802
        self, request: pb.NodeUnprepareResourcesRequest, _context: object
    ) -> pb.NodeUnprepareResourcesResponse:
        self.asked.append([each.uid for each in request.claims])
        claims = {uid: pb.NodeUnprepareResourceResponse(error=error) for uid, error in self._errors.items()}
        return pb.NodeUnprepareResourcesResponse(claims=claims)


@asynccontextmanager
async def connected(folder: Path, driver: BareDriver) -> AsyncIterator[DriverConnection]:
    server = grpc.aio.server()
    rpc.add_DRAPluginServicer_to_server(driver, server)
    server.add_insecure_port(f"unix:{folder / 'd.sock'}")
    await server.start()
    try:
        async with grpc.aio.insecure_channel(f"unix:{folder / 'd.sock'}") as channel:
            yield DriverConnection(rpc.DRAPluginStub(channel))
    finally:
        await server.stop(None)


async def test_all_claims_of_a_pod_are_in_one_call(short_tmp: Path) -> None:
    driver = BareDriver({ONE.uid: "", TWO.uid: ""})
    async with connected(short_tmp, driver) as connection:
        assert set(await connection.prepare(ONE, TWO)) == {ONE.uid, TWO.uid}
        await connection.unprepare(ONE, TWO)
    assert driver.asked == [[ONE.uid, TWO.uid]] * 2


@pytest.mark.parametrize(
    ("answered", "said"),
    [
        ({}, "skipped 2 ResourceClaims"),
        ({TWO.uid: ""}, "skipped 1 ResourceClaims"),
        ({ONE.uid: "", "uid-other": ""}, "returned result for unknown claim UID uid-other"),
        ({TWO.uid: "no room", "uid-other": ""}, "returned result for unknown claim UID uid-other"),
        ({TWO.uid: "no room"}, "failed for ResourceClaim two: no room"),
    ],
)
async def test_kubelet_says_what_is_wrong_with_the_answer(
    short_tmp: Path, answered: Mapping[str, str], said: str
) -> None:
    async with connected(short_tmp, BareDriver(answered)) as connection:
        with pytest.raises(ClaimCallError) as prepared:
            await connection.prepare(ONE, TWO)
        with pytest.raises(ClaimCallError) as unprepared:
            await connection.unprepare(ONE, TWO)
    assert str(prepared.value) == f"NodePrepareResources {said}"
    assert str(unprepared.value) == f"NodeUnprepareResources {said}"


async def test_a_call_that_fails_as_a_whole_has_its_sentence_too(short_tmp: Path) -> None:
    async with grpc.aio.insecure_channel(f"unix:{short_tmp / 'nobody.sock'}") as channel:
        with pytest.raises(ClaimCallError, match=r"^NodePrepareResources: rpc error: code = Unavailable desc = "):
            await DriverConnection(rpc.DRAPluginStub(channel)).prepare(ONE)
