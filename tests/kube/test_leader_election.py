"""Of several replicas at most one leads at any moment, and when it fails another one does."""

import asyncio
import datetime as dt
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from structlog.typing import EventDict

from deviceplugin.kube.cluster_client import ClusterClient
from deviceplugin.kube.credentials import Credentials
from deviceplugin.kube.leader_election import LeaderElector, LeaseTiming
from deviceplugin.kube.transport import Timeouts, Transport
from sandbox.apiserver import ApiServer, Harm, JsonObject
from tests.examples import examples
from tests.kube.kubeconfigs import open_transport
from tests.waiting import PATIENCE_S, in_background, until

TIMEOUTS = Timeouts(connect=PATIENCE_S, request=PATIENCE_S)
IMPATIENT = Timeouts(connect=PATIENCE_S, request=0.2)
NOW = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)


class World:
    """Time that stands still unless it is moved, and the term as the server has it."""

    def __init__(self, server: ApiServer, client: ClusterClient) -> None:
        self.now = 1000.0
        self.server = server
        self._client = client

    def elector(self, identity: str, *, skew: float = 0.0) -> LeaderElector:
        """`skew` is how far its clocks are from the others': monotonic ones begin anywhere."""
        return LeaderElector(
            self._client,
            namespace="kube-system",
            name="vcuda",
            identity=identity,
            clock=lambda: self.now + skew,
            now=lambda: NOW + dt.timedelta(seconds=self.now + skew),
        )

    def spec(self) -> JsonObject:
        found: JsonObject = self.server.store.get("leases", "vcuda", namespace="kube-system")["spec"]
        return found


def leads(elector: LeaderElector) -> bool:
    """A call, because mypy takes a property for what it was the last time."""
    return elector.is_leader


@pytest.fixture
async def world(server: ApiServer, tmp_path: Path) -> AsyncIterator[World]:
    async with ClusterClient(await open_transport(server.kubeconfig(tmp_path / "kc"), timeouts=TIMEOUTS)) as client:
        yield World(server, client)


async def test_the_first_takes_the_lease_and_the_second_does_not(world: World) -> None:
    a, b = world.elector("a"), world.elector("b", skew=5000)
    await a.attempt()
    await b.attempt()
    assert (leads(a), leads(b)) == (True, False)
    assert (a.holder, b.holder) == ("a", "a")
    assert world.spec() == {
        "holderIdentity": "a",
        "leaseDurationSeconds": 15,
        "acquireTime": "2026-01-01T00:16:40.000000Z",
        "renewTime": "2026-01-01T00:16:40.000000Z",
        "leaseTransitions": 0,
    }


async def test_a_renewal_keeps_the_beginning_of_the_term_and_needs_one_request(world: World) -> None:
    a = world.elector("a")
    await a.attempt()
    world.now += 9
    before = len(world.server.requests)
    await a.attempt()
    world.now += 9
    assert leads(a)
    assert [method for method, _ in world.server.requests[before:]] == ["PATCH"]
    spec = world.spec()
    assert spec["acquireTime"] == "2026-01-01T00:16:40.000000Z"
    assert spec["renewTime"] == "2026-01-01T00:16:49.000000Z"
    assert spec["leaseTransitions"] == 0


async def test_who_does_not_renew_stops_before_another_may_begin(world: World) -> None:
    a, b = world.elector("a"), world.elector("b", skew=-700)
    await a.attempt()
    await b.attempt()
    world.now += 10
    assert not leads(a)
    await b.attempt()
    assert not leads(b)
    world.now += 4.9
    await b.attempt()
    assert not leads(b)
    world.now += 0.1
    await b.attempt()
    assert leads(b)
    assert (world.spec()["holderIdentity"], world.spec()["leaseTransitions"]) == ("b", 1)
    await a.attempt()
    assert (leads(a), a.holder) == (False, "b")


async def test_one_that_came_late_waits_a_whole_lease_whatever_the_lease_says_of_its_time(world: World) -> None:
    a, b = world.elector("a"), world.elector("b", skew=90_000)
    await a.attempt()
    world.now += 14
    await b.attempt()  # sees the lease for the first time
    world.now += 14
    await b.attempt()
    assert not leads(b)
    world.now += 1
    await b.attempt()
    assert leads(b)


async def test_a_lease_that_is_given_up_is_taken_at_once(world: World, logs: list[EventDict]) -> None:
    a, b = world.elector("a"), world.elector("b")
    await a.attempt()
    await a.release()
    assert [entry["event"] for entry in logs] == ["leadership_gained", "leadership_lost"]
    assert (world.spec()["holderIdentity"], world.spec()["leaseDurationSeconds"]) == ("", 1)
    await b.attempt()
    assert leads(b)
    await a.release()  # holds nothing: takes nothing from others
    assert world.spec()["holderIdentity"] == "b"


@pytest.mark.parametrize("harm", [Harm.SLOW, Harm.LOST])
async def test_a_lease_is_given_up_while_a_renewal_is_on_its_way(world: World, harm: Harm) -> None:
    """The renewal may be carried out although its caller does not wait for it any more."""
    a = world.elector("a")
    await a.attempt()
    world.now += 2
    world.server.faults.add(harm, method="PATCH", seconds=0.2)
    before = len(world.server.requests)
    async with in_background(a.run()):
        await until(lambda: len(world.server.requests) > before)
        await a.release()
        assert (leads(a), world.spec()["holderIdentity"]) == (False, "")
        await asyncio.sleep(0.3)
    assert (leads(a), world.spec()["holderIdentity"]) == (False, "")


async def test_a_lease_is_given_up_though_its_last_renewal_was_not_heard_of(world: World) -> None:
    a, unheard = world.elector("a"), world.elector("a")
    await a.attempt()
    world.now += 2
    await unheard.attempt()
    await a.release()
    assert world.spec()["holderIdentity"] == ""


async def test_a_lease_that_others_took_away_ends_the_term_at_the_next_look(world: World) -> None:
    a = world.elector("a")
    await a.attempt()
    theft = {"spec": {"holderIdentity": "z", "leaseDurationSeconds": 60}}
    world.server.store.patch("leases", "vcuda", theft, namespace="kube-system")
    await a.attempt()
    await a.attempt()
    assert (leads(a), a.holder) == (False, "z")


@pytest.mark.parametrize("harm", [Harm.STATUS, Harm.RESET, Harm.LOST, Harm.BODY])
async def test_a_failed_renewal_is_tried_again_within_the_term(world: World, harm: Harm) -> None:
    a = world.elector("a")
    await a.attempt()
    world.server.faults.add(harm, body=b"{", times=2)
    for _ in range(4):
        world.now += 2
        await a.attempt()
        assert leads(a)
    world.now += 9
    assert leads(a)


async def test_a_renewal_that_hangs_is_tried_again_within_the_term(server: ApiServer, tmp_path: Path) -> None:
    kubeconfig = server.kubeconfig(tmp_path / "kc")
    async with ClusterClient(await open_transport(kubeconfig, timeouts=IMPATIENT)) as client:
        world = World(server, client)
        a = world.elector("a")
        await renewed(world, a)
        server.faults.add(Harm.HANG, times=2)
        for _ in range(2):
            world.now += 2
            await a.attempt()
            assert leads(a)
        world.now += 2
        await renewed(world, a)


async def renewed(world: World, elector: LeaderElector) -> None:
    """Tries at one moment until it succeeds: a busy machine may answer later than an impatient client waits."""
    moment = world.now
    async with asyncio.timeout(PATIENCE_S):
        while True:
            await elector.attempt()
            world.now = moment + 9.9
            until_then = leads(elector)
            world.now = moment
            if until_then:
                return


async def test_a_lease_that_was_deleted_is_made_again(world: World) -> None:
    a = world.elector("a")
    await a.attempt()
    world.server.store.delete("leases", "vcuda", namespace="kube-system")
    for _ in range(12):
        world.now += 1
        await a.attempt()
    assert leads(a)
    assert world.spec()["holderIdentity"] == "a"


async def test_running_electors_hand_over_when_the_leader_is_cut_off(server: ApiServer, tmp_path: Path) -> None:
    timing = LeaseTiming(lease=1, renew=0.5, retry=0.05)
    async with AsyncExitStack() as stack:
        kubeconfig = server.kubeconfig(tmp_path / "kc")
        clients = [ClusterClient(await open_transport(kubeconfig, timeouts=TIMEOUTS)) for _ in "ab"]
        for client in clients:
            stack.push_async_callback(client.close)
        a, b = (
            LeaderElector(client, namespace="n", name="l", identity=name, timing=timing)
            for name, client in zip("ab", clients, strict=True)
        )
        first = asyncio.create_task(a.run())
        await until(lambda: leads(a))
        async with in_background(b.run()):
            first.cancel()  # as if killed: nothing is given up
            await until(lambda: leads(b))
            assert not leads(a)
    with pytest.raises(asyncio.CancelledError):
        await first


steps = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["a", "b", "c"]), st.sampled_from(["attempt", "attempt", "attempt", "release"])),
        st.tuples(st.just("wait"), st.floats(0.1, 16)),
        st.tuples(st.just("harm"), st.sampled_from([Harm.STATUS, Harm.RESET, Harm.LOST])),
    ),
    max_size=30,
)


@given(steps, st.tuples(*[st.floats(0, 1e6)] * 3))
@examples(40, suppress=[HealthCheck.function_scoped_fixture])
def test_no_two_lead_at_once(tmp_path: Path, script: list[tuple[str, object]], skews: tuple[float, ...]) -> None:
    asyncio.run(elections(script, skews, tmp_path / "kc"))


async def elections(script: list[tuple[str, object]], skews: tuple[float, ...], kubeconfig: Path) -> None:
    async with (
        ApiServer() as server,
        ClusterClient(Transport(Credentials(server.kubeconfig(kubeconfig)), timeouts=TIMEOUTS)) as client,
    ):
        world = World(server, client)
        electors = {name: world.elector(name, skew=skew) for name, skew in zip("abc", skews, strict=True)}
        for who, what in script:
            if who == "wait":
                assert isinstance(what, float)
                world.now += what
            elif who == "harm":
                assert isinstance(what, Harm)
                server.faults.add(what)
            elif what == "attempt":
                await electors[who].attempt()
            elif what == "release":
                await electors[who].release()
            leaders = [name for name, elector in electors.items() if leads(elector)]
            assert len(leaders) <= 1
            if leaders:
                assert world.spec()["holderIdentity"] == leaders[0]
        server.faults.clear()
        for _ in range(3):
            for elector in electors.values():
                await elector.attempt()
            world.now += 15.0
        for elector in electors.values():
            await elector.attempt()
        assert sum(leads(elector) for elector in electors.values()) == 1
