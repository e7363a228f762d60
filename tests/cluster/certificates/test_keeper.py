"""Leader and followers over the same Secret, with crashes, refusals and people who interfere."""

import asyncio
import datetime as dt

import pytest

from deviceplugin.cluster.certificates.keeper import Keeper
from deviceplugin.cluster.certificates.keyring import Rules, from_data, kept_up, new_keyring, promoted, split, to_data
from deviceplugin.cluster.certificates.pair import Pair
from deviceplugin.errors import KubeError
from tests.cluster.certificates.stores import SecretInMemory, TrustInMemory

DAY = dt.timedelta(days=1)
START = dt.datetime(2026, 11, 21, tzinfo=dt.UTC)
RULES = Rules(("vcuda-scheduler",), 90 * DAY, 365 * DAY)


def has_coming(keeper: Keeper) -> bool:
    assert keeper.keyring is not None
    return keeper.keyring.coming is not None


class Scene:
    """One Secret, one webhook configuration, and as many replicas as a test starts."""

    def __init__(self) -> None:
        self.secret = SecretInMemory()
        self.trust = TrustInMemory()
        self.now = START
        self.seconds = 0.0

    def replica(self) -> tuple[Keeper, list[Pair]]:
        shown: list[Pair] = []
        keeper = Keeper(
            self.secret,
            self.trust,
            rules=RULES,
            settle=60,
            show=shown.append,
            now=lambda: self.now,
            clock=lambda: self.seconds,
        )
        return keeper, shown

    @property
    def bundle(self) -> set[bytes]:
        assert self.trust.bundles is not None
        assert len(set(self.trust.bundles)) == 1
        return set(split(self.trust.bundles[0]))


async def test_the_leader_makes_what_the_others_show() -> None:
    scene = Scene()
    leader, shown = scene.replica()
    follower, shown_there = scene.replica()
    await follower.round(leads=False)
    assert (shown_there, follower.ready.is_set()) == ([], False)
    await leader.round(leads=True)
    await follower.round(leads=False)
    assert shown == shown_there != []
    assert leader.ready.is_set()
    assert leader.keyring is not None
    assert scene.bundle == {leader.keyring.authority.chain}


async def test_a_new_authority_is_trusted_for_the_whole_time_before_it_signs() -> None:
    scene = Scene()
    leader, shown = scene.replica()
    await leader.round(leads=True)
    scene.now += 250 * DAY
    await leader.round(leads=True)
    await leader.round(leads=True)
    before = len(shown)
    assert leader.keyring is not None
    coming = leader.keyring.coming
    assert coming is not None
    assert coming.chain in scene.bundle
    scene.seconds += 59
    await leader.round(leads=True)
    assert len(shown) == before
    scene.seconds += 1
    await leader.round(leads=True)
    shown[-1].certificate.verify_directly_issued_by(coming.certificate)
    assert len(scene.bundle) == 2


async def test_nothing_is_promoted_while_the_bundle_cannot_be_written() -> None:
    scene = Scene()
    leader, _ = scene.replica()
    await leader.round(leads=True)
    scene.now += 250 * DAY
    scene.trust.refuse = 5
    for _ in range(5):
        with pytest.raises(KubeError):
            await leader.round(leads=True)
        scene.seconds += 100
    stored = scene.secret.stored
    assert stored is not None
    assert from_data(stored.data).coming is not None
    await leader.round(leads=True)
    assert has_coming(leader), "it was written only now, so its time begins now"


async def test_a_new_leader_goes_on_where_the_old_one_died() -> None:
    scene = Scene()
    first, _ = scene.replica()
    await first.round(leads=True)
    scene.now += 250 * DAY
    await first.round(leads=True)
    scene.seconds += 59
    second, shown = scene.replica()
    await second.round(leads=True)
    scene.seconds += 1
    await second.round(leads=True)
    assert has_coming(second), "how long it was trusted nobody knows, so it waits anew"
    scene.seconds += 60
    await second.round(leads=True)
    assert not has_coming(second)
    assert len(shown) == 2


async def test_a_bundle_that_somebody_emptied_is_filled_again() -> None:
    scene = Scene()
    leader, shown = scene.replica()
    await leader.round(leads=True)
    wanted = scene.bundle
    scene.trust.bundles = (b"", b"nonsense")
    await leader.round(leads=True)
    assert scene.bundle == wanted
    assert len(shown) == 1


async def test_a_configuration_that_comes_later_gets_its_bundle() -> None:
    scene = Scene()
    scene.trust.bundles = None
    leader, shown = scene.replica()
    await leader.round(leads=True)
    assert len(shown) == 1
    scene.trust.bundles = (b"", b"")
    await leader.round(leads=True)
    assert len(scene.bundle) == 1


@pytest.mark.parametrize("harm", ["deleted", "broken"])
async def test_a_secret_that_is_lost_is_written_again_and_nobody_sees_a_difference(harm: str) -> None:
    scene = Scene()
    leader, shown = scene.replica()
    await leader.round(leads=True)
    trusted = scene.bundle
    if harm == "deleted":
        scene.secret.stored = None
    else:
        scene.secret.put({"tls.crt": b"nonsense"})
    await leader.round(leads=True)
    follower, shown_there = scene.replica()
    await follower.round(leads=False)
    assert shown_there == shown
    assert scene.bundle == trusted


async def test_a_follower_keeps_what_it_shows_where_the_secret_is_broken() -> None:
    scene = Scene()
    leader, _ = scene.replica()
    follower, shown = scene.replica()
    await leader.round(leads=True)
    await follower.round(leads=False)
    scene.secret.put({"tls.crt": b"nonsense"})
    await follower.round(leads=False)
    assert len(shown) == 1
    assert follower.ready.is_set()


async def test_where_secret_and_memory_are_lost_the_old_authority_stays_trusted_while_others_show_it() -> None:
    scene = Scene()
    leader, _ = scene.replica()
    await leader.round(leads=True)
    old = scene.bundle
    scene.secret.stored = None
    fresh, _ = scene.replica()
    await fresh.round(leads=True)
    assert old < scene.bundle
    await fresh.round(leads=True)
    assert old.isdisjoint(scene.bundle), "one round later, the others have read the new one"


async def test_two_leaders_at_once_end_with_one_authority() -> None:
    scene = Scene()
    one, shown = scene.replica()
    two, shown_there = scene.replica()
    await asyncio.gather(one.round(leads=True), two.round(leads=True))
    for keeper in (one, two, one, two):
        await keeper.round(leads=True)
    assert one.keyring == two.keyring
    assert shown[-1] == shown_there[-1]
    assert one.keyring is not None
    assert scene.bundle == {one.keyring.authority.chain}


async def test_a_failing_api_server_changes_nothing_and_is_asked_again() -> None:
    scene = Scene()
    keeper, shown = scene.replica()
    scene.secret.refuse = 1
    running = asyncio.create_task(keeper.run(lambda: True, period=0.01))
    try:
        async with asyncio.timeout(10):
            await keeper.ready.wait()
    finally:
        running.cancel()
    assert len(shown) == 1


async def test_a_secret_written_by_an_earlier_promotion_is_shown_with_its_cross_certificate() -> None:
    scene = Scene()
    kept = kept_up(new_keyring(RULES, START), RULES, START + 250 * DAY)
    scene.now += 250 * DAY
    scene.secret.put(to_data(promoted(kept, RULES, scene.now)))
    follower, shown = scene.replica()
    await follower.round(leads=False)
    assert shown[0].chain.count(b"BEGIN CERTIFICATE") == 2
