"""Pauses longer than a certificate's life, wrong clocks, foreign Secrets: the next check repairs all of them."""

import asyncio
import datetime as dt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deviceplugin.cluster.certificates.issued import from_data, issue, to_data
from deviceplugin.cluster.certificates.keypair import (
    KeyPair,
    is_signed_by,
    is_valid,
    make_ca,
    make_certificate,
    read_chain,
)
from deviceplugin.cluster.certificates.rotation import Rotation
from deviceplugin.errors import ConfigError
from tests.cluster.certificates.test_rotation import DAY, RULES, START, Scene
from tests.examples import examples


def is_accepted(scene: Scene, shown: KeyPair) -> bool:
    """By a client whose clock is right and that trusts the caBundle."""
    certificate, now = shown.certificate, scene.now
    cas = [read_chain(each)[0] for each in scene.bundle]
    return is_valid(certificate, now) and any(is_valid(each, now) and is_signed_by(certificate, each) for each in cas)


async def test_after_any_sleep_and_any_mended_clock_one_check_is_enough() -> None:
    for days in (90, 364, 365, 366, 800, 4000, -1, -4000):
        scene = Scene()
        leader, shown = scene.replica()
        await leader.check(leads=True)
        scene.now += days * DAY
        await leader.check(leads=True)
        assert is_accepted(scene, shown[-1]), days
        fresh, shown_there = scene.replica()
        await fresh.check(leads=False)
        assert shown_there[-1] == shown[-1], days


async def test_replicas_whose_clocks_differ_agree_after_a_check_each() -> None:
    scene = Scene()
    ahead, shown = scene.replica()
    behind, shown_there = scene.replica()
    right = scene.now
    scene.now = right + DAY
    await ahead.check(leads=True)
    scene.now = right
    await behind.check(leads=True)
    scene.now = right + DAY
    for _ in range(2):
        await ahead.check(leads=True)
    assert shown[-1] == shown_there[-1]
    scene.now = right
    assert is_accepted(scene, shown[-1])
    writes = scene.api.writes
    await behind.check(leads=True)
    scene.now = right + DAY
    await ahead.check(leads=True)
    assert scene.api.writes == writes


_steps = st.tuples(
    st.integers(-500, 900),
    st.integers(0, 1),
    st.sampled_from(["", "secret deleted", "secret malformed", "bundle emptied", "replica restarted"]),
)


@examples(30)
@given(st.lists(_steps, min_size=1, max_size=6))
def test_whatever_happens_after_two_checks_of_a_leader_and_one_of_the_other_both_are_accepted(
    steps: list[tuple[int, int, str]],
) -> None:
    async def live() -> None:
        scene = Scene()
        replicas: list[tuple[Rotation, list[KeyPair]]] = [scene.replica(), scene.replica()]
        for days, leading, harm in steps:
            scene.now += days * DAY
            if harm == "secret deleted":
                scene.api.secret = None
            elif harm == "secret malformed":
                scene.api.put({"tls.crt": b"nonsense"})
            elif harm == "bundle emptied":
                scene.api.bundles = (b"", b"x")
            elif harm == "replica restarted":
                replicas[leading] = scene.replica()
            for _ in range(2):
                await replicas[leading][0].check(leads=True)
            await replicas[1 - leading][0].check(leads=False)
            assert all(is_accepted(scene, shown[-1]) for _, shown in replicas)

    asyncio.run(live())


def _foreign_pair() -> KeyPair:
    ca = make_ca(START, 30 * DAY)
    return make_certificate(["elsewhere"], ca, START, 10 * DAY)


async def test_a_secret_with_foreign_content_is_replaced() -> None:
    other, own = _foreign_pair(), to_data(issue(RULES, START))
    contents = {
        "tls.crt and tls.key of somebody else": {**own, "tls.crt": other.chain, "tls.key": other.key},
        "not a CA": {**own, "authority.crt": other.chain, "authority.key": other.key},
        "another tool's keys": {"tls.crt": other.chain, "tls.key": other.key, "ca.crt": b"", "keystore.p12": b"\x00"},
    }
    for foreign, content in contents.items():
        scene = Scene()
        scene.api.put(content)
        leader, shown = scene.replica()
        await leader.check(leads=True)
        assert is_accepted(scene, shown[-1]), foreign
        assert from_data(scene.data).server == shown[-1], foreign


async def test_what_could_not_be_served_is_served_at_the_next_check() -> None:
    scene = Scene()
    refusals = 1
    shown: list[KeyPair] = []

    def show(pair: KeyPair) -> None:
        nonlocal refusals
        if refusals:
            refusals -= 1
            raise ConfigError("too many open files")
        shown.append(pair)

    rotation = Rotation(
        scene.api, namespace="gpu", secret="s", configuration="w", rules=RULES, show=show, now=lambda: scene.now
    )
    with pytest.raises(ConfigError):
        await rotation.check(leads=True)
    assert not rotation.ready.is_set()
    await rotation.check(leads=True)
    assert len(shown) == 1
    assert rotation.ready.is_set()


def test_the_slack_of_clocks_is_minutes() -> None:
    begin = issue(RULES, START).ca.certificate.not_valid_before_utc
    assert START - begin == dt.timedelta(minutes=5)
