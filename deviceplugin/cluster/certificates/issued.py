"""What the Secret of the scheduler holds, and how it changes with time: pure, so tests can try every order of events.

In: a Secret's data, lifetimes, the time. Out: `Issued` and back; ParseError that names the key. Invariant: a CA is in
`cas`, which clients trust, long before it signs anything. A CA that is due is replaced at once, but the serving
certificate of the old CA stays until it is due itself; only its successor is signed by the new CA. The old CA leaves
`cas` when every replica serves that successor.
"""

import datetime as dt
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from deviceplugin.cluster.certificates.keypair import (
    KeyPair,
    is_due,
    is_signed_by,
    is_valid,
    make_ca,
    make_certificate,
    names_of,
    read_ca,
    read_chain,
    read_pair,
    split,
)
from deviceplugin.errors import ParseError


@dataclass(frozen=True, slots=True)
class Rules:
    """`overlap`: how long after its successor signed a CA stays trusted, because a replica may not know that yet."""

    names: tuple[str, ...]
    life: dt.timedelta
    ca_life: dt.timedelta
    overlap: dt.timedelta = dt.timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class Issued:
    """`ca` signs from now on; `server` is signed by it or by one of the `older` CAs."""

    ca: KeyPair
    server: KeyPair
    older: tuple[bytes, ...] = ()

    @property
    def cas(self) -> tuple[bytes, ...]:
        """The CAs that clients must trust, in PEM."""
        return (self.ca.chain, *self.older)


def issue(rules: Rules, now: dt.datetime, *, trusted: Iterable[bytes] = ()) -> Issued:
    """Everything new; `trusted` CAs stay for the overlap, because other replicas may serve what they signed."""
    ca = make_ca(now, rules.ca_life)
    return Issued(ca, make_certificate(rules.names, ca, now, rules.life), tuple(trusted))


def renewed(issued: Issued, rules: Rules, now: dt.datetime, *, keeps_ca: bool = False) -> Issued:
    """With what is due made new; the same object where nothing is. Only for a valid CA.

    `keeps_ca`: this one is all that clients will trust, as far as is known here.
    """
    found = issued
    server = found.server.certificate
    if is_due(server, now) or not names_of(server) >= frozenset(rules.names):
        found = replace(found, server=make_certificate(rules.names, found.ca, now, rules.life))
    if not keeps_ca and is_due(found.ca.certificate, now):
        found = replace(found, ca=make_ca(now, rules.ca_life), older=found.cas)
    needed = tuple(each for each in found.older if _is_needed(each, found.server, rules, now))
    return found if needed == found.older else replace(found, older=needed)


def _is_needed(ca: bytes, server: KeyPair, rules: Rules, now: dt.datetime) -> bool:
    certificate, served = read_chain(ca)[0], server.certificate
    if not is_valid(certificate, now):
        return False
    return is_signed_by(served, certificate) or now < served.not_valid_before_utc + rules.overlap


def to_data(issued: Issued) -> dict[str, bytes]:
    """The Secret's data.

    Versions before 0.2 name the CA `authority` as well, so replicas of both versions share one Secret in an upgrade.
    """
    return {
        "tls.crt": issued.server.chain,
        "tls.key": issued.server.key,
        "ca.crt": b"".join(issued.cas),
        "authority.crt": issued.ca.chain,
        "authority.key": issued.ca.key,
    }


def from_data(data: Mapping[str, bytes]) -> Issued:
    """ParseError that names the key."""
    ca, server = _pair(data, "authority"), _pair(data, "tls")
    # Versions before 0.2 prepare a CA under this name; it has signed nothing.
    prepared = split(data.get("coming.crt", b""))
    older = tuple(each for each in split(data.get("ca.crt", b"")) if each != ca.chain and each not in prepared)
    if not any(is_signed_by(server.certificate, read_chain(each)[0]) for each in (ca.chain, *older)):
        raise ParseError("tls.crt cannot be used: no CA of ca.crt signed it, so no client accepts it")
    return Issued(ca, server, older)


def _pair(data: Mapping[str, bytes], name: str) -> KeyPair:
    read = read_pair if name == "tls" else read_ca
    try:
        return read(data.get(f"{name}.crt", b""), data.get(f"{name}.key", b""))
    except ParseError as error:
        raise ParseError(f"{name}.crt and {name}.key cannot be used: {error.message}") from None
