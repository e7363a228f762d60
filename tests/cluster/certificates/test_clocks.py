"""Wrong clocks, and pauses longer than a certificate's life: no clock replaces the CA, and the next check repairs."""

import asyncio
import datetime as dt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deviceplugin.cluster.certificates.issuer import CA_LIFE, CHECKS_UNTIL_RESTORED
from deviceplugin.cluster.certificates.keypair import make_ca
from deviceplugin.errors import ConfigError
from tests.cluster.certificates.scene import DAY, START, cluster, keys
from tests.examples import examples


async def test_after_any_pause_and_any_mended_clock_one_check_is_enough() -> None:
    async with cluster() as scene:
        for days in (0, 59, 90, 91, 800, 3000, 30):
            replica = scene.replica(ahead=days * DAY)
            await replica.check()
            replica.now = lambda: scene.now
            await replica.check()
            assert scene.trusts(replica), days
            scene.now += DAY


@pytest.mark.parametrize("years", [20, -20])
async def test_a_clock_that_is_years_off_writes_nothing_and_is_named(years: int) -> None:
    async with cluster() as scene:
        running, fresh = scene.replica(), scene.replica(ahead=years * 365 * DAY)
        await running.check()
        before, writes = scene.data, scene.writes
        running.now = fresh.now
        for replica in (running, fresh):
            with pytest.raises(
                ConfigError, match=r"is valid from .* until .*, and not now: correct this machine's clock"
            ):
                await replica.check()
        assert scene.trusts(running), "what it served before"
        assert not fresh.ready.is_set()
        assert (scene.data, scene.writes) == (before, writes)
        for replica in (running, fresh):
            replica.now = lambda: scene.now
            await replica.check()
            assert scene.trusts(replica)


async def test_a_ca_of_a_wrong_clock_or_one_that_has_ended_is_named_and_left_to_the_operator() -> None:
    async with cluster() as scene:
        for made in (START + 800 * DAY, START - CA_LIFE - DAY):
            scene.put(keys(make_ca(made, CA_LIFE)))
            replica = scene.replica()
            with pytest.raises(ConfigError, match=r"or replace the CA \(docs/scheduler.md#certificates\)"):
                await replica.check()
            assert set(scene.bundles) == {b""}
        scene.delete()
        await replica.check()
        assert scene.trusts(replica)


_steps = st.tuples(
    st.integers(0, 300),
    st.integers(0, 1),
    st.sampled_from(["", "secret deleted", "secret malformed", "bundle emptied", "replica restarted"]),
)


@examples(20)
@given(st.lists(_steps, min_size=1, max_size=6))
def test_whatever_happens_after_one_check_of_each_both_are_accepted(steps: list[tuple[int, int, str]]) -> None:
    async def live() -> None:
        async with cluster() as scene:
            replicas = [scene.replica(), scene.replica()]
            for replica in replicas:
                await replica.check()
            for days, first, harm in steps:
                scene.now += days * DAY
                if harm == "secret deleted":
                    scene.delete()
                elif harm == "secret malformed":
                    scene.put({"ca.crt": b"nonsense"}, labels={"app.kubernetes.io/name": "vcuda-scheduler"})
                elif harm == "bundle emptied":
                    scene.configure(b"", b"x")
                elif harm == "replica restarted":
                    replicas[first] = scene.replica()
                for replica in (replicas[first], replicas[1 - first]):
                    await replica.check()
                assert all(scene.trusts(each) for each in replicas)
            for _ in range(CHECKS_UNTIL_RESTORED):
                await replicas[0].check()
            assert replicas[0].ca is not None
            assert scene.data["ca.key"] == replicas[0].ca.key

    asyncio.run(live())


def test_the_slack_of_clocks_is_minutes() -> None:
    assert START - make_ca(START, DAY).certificate.not_valid_before_utc == dt.timedelta(minutes=5)
