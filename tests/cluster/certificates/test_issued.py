"""Lives, names, and the order in which CAs come and go."""

import datetime as dt
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deviceplugin.cluster.certificates.issued import Issued, Rules, from_data, issue, renewed, to_data
from deviceplugin.cluster.certificates.keypair import is_signed_by, is_valid, names_of, read_chain, read_pair
from deviceplugin.errors import ParseError
from tests.refusals import refusal

DAY = dt.timedelta(days=1)
START = dt.datetime(2026, 11, 21, tzinfo=dt.UTC)
RULES = Rules(("vcuda-scheduler.gpu.svc", "127.0.0.1", "::1"), 90 * DAY, 365 * DAY)


@pytest.fixture(scope="module")
def issued() -> Issued:
    return issue(RULES, START)


def is_accepted(issued: Issued, ca: bytes) -> bool:
    return is_signed_by(issued.server.certificate, read_chain(ca)[0])


def test_a_new_certificate_is_for_the_wanted_names_and_signed_by_its_ca(issued: Issued) -> None:
    assert names_of(issued.server.certificate) == set(RULES.names)
    assert is_accepted(issued, issued.ca.chain)
    assert issued.server.certificate.not_valid_before_utc < START  # other clocks may be behind


def test_a_certificate_is_renewed_after_two_thirds_of_its_life_by_the_same_ca_or_for_another_name(
    issued: Issued,
) -> None:
    assert renewed(issued, RULES, START + 59 * DAY) is issued
    later = renewed(issued, RULES, START + 60 * DAY)
    assert later.server != issued.server
    assert later.cas == issued.cas
    rules = replace(RULES, names=(*RULES.names, "gpu.example"))
    assert "gpu.example" in names_of(renewed(issued, rules, START).server.certificate)


def test_a_new_ca_is_trusted_at_once_and_signs_the_next_certificate(issued: Issued) -> None:
    before = renewed(issued, RULES, START + 243 * DAY)
    rotated = renewed(before, RULES, START + 244 * DAY)
    assert rotated.cas == (rotated.ca.chain, issued.ca.chain)
    assert rotated.ca != issued.ca
    assert rotated.server == before.server, "of the old CA, which clients trust for sure"
    after = renewed(rotated, RULES, START + 304 * DAY)
    assert is_accepted(after, rotated.ca.chain)
    assert after.cas == rotated.cas, "other replicas may still serve the certificate before"
    assert renewed(after, RULES, START + 305 * DAY).cas == (rotated.ca.chain,)


def test_a_certificate_and_a_ca_that_are_due_together_do_not_change_together(issued: Issued) -> None:
    later = renewed(issued, RULES, START + 250 * DAY)
    assert later.ca != issued.ca
    assert later.server != issued.server
    assert is_accepted(later, issued.ca.chain)


def test_a_ca_that_has_ended_leaves(issued: Issued) -> None:
    rotated = renewed(issued, RULES, START + 250 * DAY)
    assert renewed(rotated, RULES, START + 366 * DAY).cas == (rotated.ca.chain,)


def test_a_certificate_never_outlives_its_ca(issued: Issued) -> None:
    late = renewed(issued, RULES, START + 350 * DAY).server.certificate
    assert late.not_valid_after_utc == issued.ca.certificate.not_valid_after_utc


def test_it_is_the_same_after_it_was_stored(issued: Issued) -> None:
    rotated = renewed(issued, RULES, START + 244 * DAY)
    for each in (issued, rotated, renewed(rotated, RULES, START + 304 * DAY)):
        assert from_data(to_data(each)) == each


def test_a_malformed_or_foreign_secret_is_one_sentence(issued: Issued) -> None:
    other = issue(RULES, START).server
    changes: dict[str, dict[str, bytes]] = {
        "tls.crt and tls.key cannot be used: it holds no private key in PEM without a passphrase": {"tls.key": b""},
        "tls.crt and tls.key cannot be used: it holds no certificate in PEM": {"tls.crt": b"x"},
        "authority.crt and authority.key cannot be used: it holds no certificate in PEM": {"authority.crt": b"\xff"},
        "tls.crt cannot be used: no CA of ca.crt signed it": {"tls.crt": other.chain, "tls.key": other.key},
    }
    said = {words: refusal(ParseError, from_data, {**to_data(issued), **each}) for words, each in changes.items()}
    assert [each for each in said.items() if each[0] not in each[1]] == []


def test_a_key_of_another_certificate_is_noticed(issued: Issued) -> None:
    with pytest.raises(ParseError, match="the key does not belong to the certificate"):
        read_pair(issued.server.chain, issued.ca.key)


def test_a_key_is_in_no_representation(issued: Issued) -> None:
    assert "PRIVATE" not in repr(issued)


@settings(max_examples=15, deadline=None)
@given(st.lists(st.integers(1, 100), min_size=1, max_size=12))
def test_whatever_the_checks_are_what_is_served_is_valid_and_trusted_before_it_is_served(waits: list[int]) -> None:
    """Checks at any distance below a third of the shortest life apart."""
    now, known = START, issue(RULES, START)
    for wait in waits:
        now += min(wait, 29) * DAY
        trusted = known.cas
        known = renewed(known, RULES, now)
        assert is_valid(known.server.certificate, now)
        assert any(is_accepted(known, ca) for ca in trusted), "by clients that know only what was trusted before"
        assert any(is_accepted(known, ca) for ca in known.cas)
        assert is_valid(known.ca.certificate, now)
