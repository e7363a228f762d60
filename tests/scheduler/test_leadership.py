"""Which replica answers kube-scheduler, over a real local API server: one at a time, and never one that is unsure."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from deviceplugin.config.scheduler import SCHEDULER, Election, SchedulerSettings
from deviceplugin.kube.cluster_client import ClusterClient
from deviceplugin.kube.credentials import Credentials
from deviceplugin.kube.transport import Timeouts
from deviceplugin.scheduler.leadership import KubeSchedulerLeadership, Leadership, leadership_of
from sandbox.apiserver import ApiServer, Harm, JsonObject
from sandbox.apiserver.reviews import SELF, token_of
from tests.config.resolving import resolve
from tests.kube.kubeconfigs import open_transport
from tests.waiting import in_background, until

TIMEOUTS = Timeouts(connect=0.5, request=30.0, silence=30.0)
WHO_AM_I = ("POST", SELF)
LEASE = {"namespace": "gpu", "name": "the-lease"}


class World:
    """The server, and a leadership for each name, each with its own client."""

    def __init__(self, server: ApiServer, folder: Path, stack: AsyncExitStack) -> None:
        self.server = server
        self.now = 500.0
        self._folder = folder
        self._stack = stack

    async def client(self) -> ClusterClient:
        credentials = Credentials(self.server.kubeconfig(self._folder / "kubeconfig"))
        made = ClusterClient(await open_transport(None, timeouts=TIMEOUTS, credentials=credentials))
        self._stack.push_async_callback(made.close)
        return made

    async def own(self, identity: str, *, seconds: int = 1) -> Leadership:
        return leadership_of(settings(Election.OWN, identity, seconds=seconds), await self.client())

    async def following(self, identity: str) -> KubeSchedulerLeadership:
        return KubeSchedulerLeadership(
            await self.client(), **LEASE, identity=identity, retry=0.02, clock=lambda: self.now
        )

    def kube_scheduler(self, holder: str, *, renewed: str = "2026-01-01T00:00:00.000000Z", seconds: int = 15) -> None:
        """Its Lease, as it writes it."""
        spec = {
            "holderIdentity": holder,
            "leaseDurationSeconds": seconds,
            "renewTime": renewed,
            "acquireTime": renewed,
            "leaseTransitions": 1,
        }
        if any(found["metadata"]["name"] == "the-lease" for found in self.leases()):
            self.server.store.patch("leases", "the-lease", {"spec": spec}, namespace="gpu")
        else:
            self.server.store.create("leases", {"metadata": {"name": "the-lease"}, "spec": spec}, namespace="gpu")

    def leases(self) -> list[JsonObject]:
        try:
            return [self.server.store.get("leases", "the-lease", namespace="gpu")]
        except Exception:
            return []

    def holder(self) -> str:
        return str(self.leases()[0]["spec"]["holderIdentity"])

    def asked(self) -> set[tuple[str, str]]:
        return {(method, path.partition("?")[0]) for method, path in self.server.requests}


def settings(election: Election, identity: str, *, seconds: int = 1) -> SchedulerSettings:
    """A lease of so many seconds, renewed within two thirds of it."""
    found = resolve(SCHEDULER, flags={}, env={}).settings
    return replace(
        found,
        cluster=replace(found.cluster, namespace="gpu", identity=identity),
        leader=replace(found.leader, election=election, lease="the-lease", duration=seconds),
    )


def leads(found: Leadership) -> bool:
    return found.leads


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with ApiServer() as server, AsyncExitStack() as stack:
        yield World(server, tmp_path, stack)


async def test_a_single_replica_leads_without_a_lease(world: World) -> None:
    found = leadership_of(settings(Election.NONE, "a"), await world.client())
    await found.run()
    assert (found.leads, found.leader, await found.confirm()) == (True, "a", True)
    await found.resign()
    assert world.server.requests == []


async def test_of_two_one_leads_and_the_other_knows_who(world: World) -> None:
    first, second = await world.own("a"), await world.own("b")
    async with in_background(first.run()):
        await until(lambda: leads(first))
        async with in_background(second.run()):
            await until(lambda: second.leader == "a")
            assert (leads(second), await second.confirm()) == (False, False)


async def test_a_killed_leader_is_replaced_when_its_lease_expires_and_never_before(world: World) -> None:
    first, second = await world.own("a"), await world.own("b")
    killed = asyncio.create_task(first.run())
    await until(lambda: leads(first))
    async with in_background(second.run()):
        await until(lambda: second.leader == "a")
        killed.cancel()
        both = 0
        while not leads(second):
            both += leads(first) and leads(second)
            await asyncio.sleep(0.005)
        assert not leads(first)
        assert (both, world.holder()) == (0, "b")
    with pytest.raises(asyncio.CancelledError):
        await killed


async def test_a_leader_that_resigns_is_replaced_at_once(world: World) -> None:
    first, second = await world.own("a", seconds=40), await world.own("b", seconds=40)
    await_first = asyncio.create_task(first.run())
    await until(lambda: leads(first))
    await_first.cancel()
    await first.resign()
    assert (leads(first), world.holder()) == (False, "")
    async with in_background(second.run()):
        await until(lambda: leads(second))
    with pytest.raises(asyncio.CancelledError):
        await await_first


@pytest.mark.parametrize("harm", [Harm.HANG, Harm.STATUS, Harm.RESET])
async def test_a_leader_that_cannot_renew_stops_by_itself_even_while_a_request_hangs(world: World, harm: Harm) -> None:
    found = await world.own("a")
    async with in_background(found.run()):
        await until(lambda: leads(found))
        world.server.faults.add(harm, times=1000)
        await until(lambda: not leads(found))
        assert not await found.confirm()
        world.server.faults.clear()
        await until(lambda: leads(found))


async def test_a_lease_taken_by_another_is_lost(world: World) -> None:
    found = await world.own("a")
    async with in_background(found.run()):
        await until(lambda: leads(found))
        world.kube_scheduler("thief", seconds=3600)
        await until(lambda: found.leader == "thief")
        assert not leads(found)


async def test_rights_that_our_own_election_needs_are_get_create_and_patch(world: World) -> None:
    found = await world.own("a")
    async with in_background(found.run()):
        await until(lambda: leads(found))
        await until(lambda: len(world.server.requests) > 4)
    await found.resign()
    leases = "/apis/coordination.k8s.io/v1/namespaces/gpu/leases"
    wanted = {("GET", f"{leases}/the-lease"), ("POST", leases), ("PATCH", f"{leases}/the-lease")}
    assert world.asked() - {WHO_AM_I} == wanted


async def test_beside_kube_scheduler_its_host_name_decides_and_only_get_is_needed(world: World) -> None:
    here, there = await world.following("host-1"), await world.following("host-2")
    assert not await here.confirm()
    world.kube_scheduler("host-1_3f7a-11")
    assert (await here.confirm(), await there.confirm()) == (True, False)
    assert (here.leader, there.leader) == ("host-1", "host-1")
    await here.resign()
    assert world.holder() == "host-1_3f7a-11"
    path = "/apis/coordination.k8s.io/v1/namespaces/gpu/leases/the-lease"
    assert world.asked() - {WHO_AM_I} == {("GET", path)}


@pytest.fixture
async def in_a_pod(world: World) -> World:
    """Its clients have the scheduler's account."""
    world.server.token = token_of("system:serviceaccount:gpu:vcuda-scheduler")
    return world


OWNED = [
    {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "name": "vcuda-scheduler",
        "uid": "uid-of-system:serviceaccount:gpu:vcuda-scheduler",
    }
]


async def test_the_lease_of_our_own_election_goes_with_the_account(in_a_pod: World) -> None:
    found = await in_a_pod.own("a")
    async with in_background(found.run()):
        await until(lambda: leads(found))
    (lease,) = in_a_pod.leases()
    assert lease["metadata"]["ownerReferences"] == OWNED


async def test_beside_kube_scheduler_the_lease_is_there_before_it_and_nobody_leads_until_it_does(
    in_a_pod: World,
) -> None:
    here, there = await in_a_pod.following("host-1"), await in_a_pod.following("host-2")
    for replica in (here, there, here):
        assert not await replica.confirm()
    (lease,) = in_a_pod.leases()
    assert (lease["metadata"]["ownerReferences"], lease["spec"].get("holderIdentity")) == (OWNED, None)
    in_a_pod.kube_scheduler("host-1_3f7a-11")
    assert (await here.confirm(), await there.confirm()) == (True, False)
    assert in_a_pod.leases()[0]["metadata"]["ownerReferences"] == OWNED


async def test_the_clock_of_the_holder_says_nothing(world: World) -> None:
    found = await world.following("host-1")
    for renewed in ("1970-01-01T00:00:00.000000Z", "2999-01-01T00:00:00.000000Z"):
        world.kube_scheduler("host-1_x", renewed=renewed)
        assert await found.confirm(), renewed
        world.now += 14.9
        assert leads(found), renewed
        world.now += 0.2
        assert not leads(found), renewed


async def test_no_replica_leads_beside_a_kube_scheduler_whose_lease_expired(world: World) -> None:
    found = await world.following("host-1")
    world.kube_scheduler("host-1_x")
    assert await found.confirm()
    world.now += 16
    assert (await found.confirm(), found.leader) == (False, "")
    world.kube_scheduler("host-1_x", renewed="2026-01-01T00:00:16.000000Z")
    assert await found.confirm()


async def test_a_released_lease_makes_no_replica_lead(world: World) -> None:
    found = await world.following("host-1")
    world.kube_scheduler("host-1_x")
    assert await found.confirm()
    world.kube_scheduler("", seconds=1)
    async with in_background(found.run()):
        await until(lambda: not leads(found))
    assert (await found.confirm(), found.leader) == (False, "")


async def test_many_who_ask_a_replica_that_does_not_lead_cause_one_look(world: World) -> None:
    found = await world.following("host-2")
    world.kube_scheduler("host-1_x")
    assert await asyncio.gather(*(found.confirm() for _ in range(50))) == [False] * 50
    assert len(world.server.requests) == 1


@pytest.mark.parametrize("harm", [Harm.STATUS, Harm.RESET, Harm.BODY])
async def test_an_api_server_that_fails_does_not_end_a_lease_that_is_still_good(world: World, harm: Harm) -> None:
    found = await world.following("host-1")
    world.kube_scheduler("host-1_x")
    assert await found.confirm()
    world.server.faults.add(harm, times=1000, body=b"{", code=403)
    async with in_background(found.run()):
        before = len(world.server.requests)
        await until(lambda: len(world.server.requests) > before + 2)
        assert leads(found)
        world.now += 16
        assert not await found.confirm()
