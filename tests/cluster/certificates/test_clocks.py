"""Sleeps longer than a certificate's life, clocks that were wrong, Secrets that somebody else filled: it all mends."""

import asyncio
import datetime as dt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deviceplugin.cluster.certificates.keeper import Keeper
from deviceplugin.cluster.certificates.keyring import from_data, new_keyring, to_data
from deviceplugin.cluster.certificates.making import make_authority, make_certificate
from deviceplugin.cluster.certificates.pair import Pair, is_good, read_chain, signed
from deviceplugin.errors import ConfigError
from tests.cluster.certificates.test_keeper import DAY, RULES, START, Scene
from tests.examples import examples


def is_believed(scene: Scene, shown: Pair) -> bool:
    """By a client whose clock is right, from the certificate to what is in the caBundle."""
    certificate, now = shown.certificate, scene.now
    authorities = [read_chain(each)[0] for each in scene.bundle]
    return is_good(certificate, now) and any(is_good(each, now) and signed(certificate, each) for each in authorities)


@pytest.mark.parametrize("days", [90, 364, 365, 366, 800, 4000, -1, -4000])
async def test_after_any_sleep_and_any_mended_clock_one_look_is_enough(days: int) -> None:
    scene = Scene()
    leader, shown = scene.replica()
    await leader.round(leads=True)
    scene.now += days * DAY
    await leader.round(leads=True)
    assert is_believed(scene, shown[-1])
    fresh, shown_there = scene.replica()
    await fresh.round(leads=False)
    assert shown_there[-1] == shown[-1]


async def test_a_coming_authority_that_ended_in_a_sleep_never_signs() -> None:
    scene = Scene()
    leader, shown = scene.replica()
    await leader.round(leads=True)
    scene.now += 250 * DAY
    await leader.round(leads=True)
    scene.now += 1000 * DAY
    scene.seconds += 1000
    await leader.round(leads=True)
    assert is_believed(scene, shown[-1])


async def test_replicas_whose_clocks_differ_agree_after_a_round_each() -> None:
    scene = Scene()
    ahead, shown = scene.replica()
    behind, shown_there = scene.replica()
    right = scene.now
    scene.now = right + DAY
    await ahead.round(leads=True)
    scene.now = right
    await behind.round(leads=True)
    scene.now = right + DAY
    for _ in range(2):
        await ahead.round(leads=True)
    assert shown[-1] == shown_there[-1]
    scene.now = right
    assert is_believed(scene, shown[-1])
    writes = scene.secret.writes
    await behind.round(leads=True)
    scene.now = right + DAY
    await ahead.round(leads=True)
    assert scene.secret.writes == writes


_steps = st.tuples(
    st.integers(-500, 900),
    st.integers(0, 1),
    st.sampled_from(["", "secret deleted", "secret broken", "bundle emptied", "replica restarted"]),
)


@examples(30)
@given(st.lists(_steps, min_size=1, max_size=6))
def test_whatever_happens_after_two_rounds_of_a_leader_and_one_of_the_other_both_are_believed(
    steps: list[tuple[int, int, str]],
) -> None:
    async def live() -> None:
        scene = Scene()
        replicas: list[tuple[Keeper, list[Pair]]] = [scene.replica(), scene.replica()]
        for days, leading, harm in steps:
            scene.now += days * DAY
            scene.seconds += 61
            if harm == "secret deleted":
                scene.secret.stored = None
            elif harm == "secret broken":
                scene.secret.put({"tls.crt": b"nonsense"})
            elif harm == "bundle emptied":
                scene.trust.bundles = (b"", b"x")
            elif harm == "replica restarted":
                replicas[leading] = scene.replica()
            for _ in range(2):
                await replicas[leading][0].round(leads=True)
            await replicas[1 - leading][0].round(leads=False)
            assert all(is_believed(scene, shown[-1]) for _, shown in replicas)

    asyncio.run(live())


def _foreign_pair() -> Pair:
    authority = make_authority(START, 30 * DAY)
    return make_certificate(["elsewhere"], authority, START, 10 * DAY)


@pytest.mark.parametrize("foreign", ["tls.crt and tls.key of somebody else", "no authority", "another tool's keys"])
async def test_a_secret_that_somebody_else_filled_becomes_ours_again(foreign: str) -> None:
    scene = Scene()
    other, own = _foreign_pair(), to_data(new_keyring(RULES, START))
    content = {
        "tls.crt and tls.key of somebody else": {**own, "tls.crt": other.chain, "tls.key": other.key},
        "no authority": {**own, "authority.crt": other.chain, "authority.key": other.key},
        "another tool's keys": {"tls.crt": other.chain, "tls.key": other.key, "ca.crt": b"", "keystore.p12": b"\x00"},
    }[foreign]
    scene.secret.put(content)
    leader, shown = scene.replica()
    await leader.round(leads=True)
    assert is_believed(scene, shown[-1])
    stored = scene.secret.stored
    assert stored is not None
    assert from_data(stored.data).server == shown[-1]


async def test_what_could_not_be_shown_is_shown_at_the_next_look() -> None:
    scene = Scene()
    refusals = 1
    shown: list[Pair] = []

    def show(pair: Pair) -> None:
        nonlocal refusals
        if refusals:
            refusals -= 1
            raise ConfigError("too many open files")
        shown.append(pair)

    keeper = Keeper(scene.secret, scene.trust, rules=RULES, settle=60, show=show, now=lambda: scene.now)
    with pytest.raises(ConfigError):
        await keeper.round(leads=True)
    assert not keeper.ready.is_set()
    await keeper.round(leads=True)
    assert len(shown) == 1
    assert keeper.ready.is_set()


def test_the_slack_of_clocks_is_minutes() -> None:
    begin = new_keyring(RULES, START).authority.certificate.not_valid_before_utc
    assert START - begin == dt.timedelta(minutes=5)
