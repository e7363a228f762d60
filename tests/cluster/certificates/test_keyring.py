"""Lives, names and the order in which authorities come and go."""

import datetime as dt
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deviceplugin.cluster.certificates.keyring import (
    Keyring,
    Rules,
    from_data,
    kept_up,
    new_keyring,
    promoted,
    split,
    to_data,
)
from deviceplugin.cluster.certificates.pair import names_of, read_chain, read_pair
from deviceplugin.errors import ParseError
from tests.examples import examples

DAY = dt.timedelta(days=1)
START = dt.datetime(2026, 11, 21, tzinfo=dt.UTC)
RULES = Rules(("vcuda-scheduler.gpu.svc", "127.0.0.1", "::1"), 90 * DAY, 365 * DAY)


@pytest.fixture(scope="module")
def keyring() -> Keyring:
    return new_keyring(RULES, START)


def signed_by(keyring: Keyring, authority: bytes) -> bool:
    certificate = keyring.server.certificate
    try:
        certificate.verify_directly_issued_by(read_chain(authority)[0])
    except ValueError:
        return False
    return True


def test_a_new_certificate_is_for_the_wanted_names_and_signed_by_its_authority(keyring: Keyring) -> None:
    assert names_of(keyring.server.certificate) == set(RULES.names)
    assert signed_by(keyring, keyring.authority.chain)
    assert keyring.server.certificate.not_valid_before_utc < START  # other clocks may be behind


def test_nothing_is_made_before_two_thirds_of_a_life(keyring: Keyring) -> None:
    assert kept_up(keyring, RULES, START + 59 * DAY) is keyring


def test_a_certificate_is_renewed_after_two_thirds_of_its_life_by_the_same_authority(keyring: Keyring) -> None:
    later = kept_up(keyring, RULES, START + 60 * DAY)
    assert later.server != keyring.server
    assert later.authority == keyring.authority
    assert later.bundle == keyring.bundle


def test_a_certificate_is_renewed_when_another_name_is_wanted(keyring: Keyring) -> None:
    rules = replace(RULES, names=(*RULES.names, "gpu.example"))
    assert "gpu.example" in names_of(kept_up(keyring, rules, START).server.certificate)


def test_a_new_authority_comes_into_the_bundle_and_signs_nothing(keyring: Keyring) -> None:
    later = kept_up(keyring, RULES, START + 244 * DAY)
    assert later.coming is not None
    assert split(later.bundle) == (keyring.authority.chain, later.coming.chain)
    assert signed_by(later, keyring.authority.chain)
    assert not signed_by(later, later.coming.chain)


def test_a_promoted_authority_signs_and_the_former_stays_in_the_bundle_until_it_is_over(keyring: Keyring) -> None:
    now = START + 244 * DAY
    before = kept_up(keyring, RULES, now)
    after = promoted(before, RULES, now)
    assert before.coming is not None
    assert signed_by(after, before.coming.chain)
    assert set(split(after.bundle)) == set(split(before.bundle))
    assert kept_up(after, RULES, START + 303 * DAY).former == (keyring.authority.chain,)
    over = kept_up(after, RULES, START + 366 * DAY)
    assert (over.former, over.cross) == ((), b"")


def test_a_certificate_never_outlives_its_authority(keyring: Keyring) -> None:
    now = START + 350 * DAY
    late = kept_up(keyring, RULES, now).server.certificate
    assert late.not_valid_after_utc == keyring.authority.certificate.not_valid_after_utc


def test_a_keyring_is_the_same_after_it_was_stored(keyring: Keyring) -> None:
    coming = kept_up(keyring, RULES, START + 244 * DAY)
    for each in (keyring, coming, promoted(coming, RULES, START + 244 * DAY)):
        assert from_data(to_data(each)) == each


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tls.key": b""}, "tls.crt and tls.key of the Secret cannot be used: there is no key without a passphrase"),
        ({"tls.crt": b"x"}, "tls.crt and tls.key of the Secret cannot be used: there is no certificate in it"),
        ({"authority.crt": b"\xff"}, "authority.crt and authority.key of the Secret cannot be used: there is no"),
        ({"former.crt": b"-----BEGIN"}, "former.crt of the Secret cannot be used: there is no certificate in it"),
    ],
)
def test_a_broken_secret_is_one_sentence(keyring: Keyring, change: dict[str, bytes], message: str) -> None:
    with pytest.raises(ParseError) as caught:
        from_data({**to_data(keyring), **change})
    assert caught.value.message.startswith(message)


def test_a_key_of_another_certificate_is_noticed(keyring: Keyring) -> None:
    with pytest.raises(ParseError, match="the key does not belong to the certificate"):
        read_pair(keyring.server.chain, keyring.authority.key)


def test_a_key_is_in_no_representation(keyring: Keyring) -> None:
    assert "PRIVATE" not in repr(keyring)


@examples(15)
@given(st.lists(st.integers(1, 100), min_size=1, max_size=12))
def test_whatever_the_rounds_are_what_is_shown_is_good_and_trusted_by_the_bundle_before_it(waits: list[int]) -> None:
    """Rounds at any distance below a third of the shortest life apart."""
    now, known = START, new_keyring(RULES, START)
    for wait in waits:
        now += min(wait, 29) * DAY
        trusted = set(split(known.bundle))
        kept = kept_up(known, RULES, now)
        steps = [kept, promoted(kept, RULES, now)] if kept.coming and kept.coming == known.coming else [kept]
        for step in steps:
            shown = step.server.certificate
            assert shown.not_valid_before_utc <= now < shown.not_valid_after_utc
            assert any(signed_by(step, authority) for authority in trusted)
            assert now < read_chain(step.authority.chain)[0].not_valid_after_utc
        known = steps[-1]
