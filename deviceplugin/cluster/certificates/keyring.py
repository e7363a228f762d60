"""What the Secret holds, and what becomes of it with time: pure, so that every order of events can be tried.

In: a keyring or none, the time, the rules. Out: the keyring that should be, as data of a Secret and back. Invariant:
nothing that a `coming` authority signed is in a keyring; it signs from `promoted` on, which is called only after
clients have had its certificate for a while. So whoever trusts `bundle` trusts what is shown, before and after.
"""

import datetime as dt
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from deviceplugin.cluster.certificates.making import cross_sign, make_authority, make_certificate
from deviceplugin.cluster.certificates.pair import (
    Pair,
    is_due,
    is_good,
    names_of,
    read_authority,
    read_chain,
    read_pair,
    signed,
)
from deviceplugin.errors import ParseError


@dataclass(frozen=True, slots=True)
class Rules:
    """For which names, and how long authority and certificate live."""

    names: tuple[str, ...]
    life: dt.timedelta
    authority_life: dt.timedelta


@dataclass(frozen=True, slots=True)
class Keyring:
    """`former` are authorities that signed earlier, `cross` the present one as its predecessor vouches for it."""

    authority: Pair
    server: Pair
    coming: Pair | None = None
    former: tuple[bytes, ...] = ()
    cross: bytes = b""

    @property
    def authorities(self) -> tuple[bytes, ...]:
        coming = (self.coming.chain,) if self.coming else ()
        return (self.authority.chain, *coming, *self.former)

    @property
    def bundle(self) -> bytes:
        """The authorities that clients must trust."""
        return b"".join(self.authorities)


def new_keyring(rules: Rules, now: dt.datetime) -> Keyring:
    authority = make_authority(now, rules.authority_life)
    return Keyring(authority, make_certificate(rules.names, authority, now, rules.life))


def can_sign(keyring: Keyring, now: dt.datetime) -> bool:
    """Not after a sleep longer than its authority's life, nor when a clock ran far ahead while it was made."""
    return is_good(keyring.authority.certificate, now)


def kept_up(keyring: Keyring, rules: Rules, now: dt.datetime) -> Keyring:
    """What is due is made; the same object where nothing is. Only for one that can sign."""
    kept = replace(keyring, former=tuple(each for each in keyring.former if not _is_over(each, now)))
    if kept.cross and _is_over(kept.cross, now):
        kept = replace(kept, cross=b"")
    if kept.coming is not None and not is_good(kept.coming.certificate, now):
        kept = replace(kept, coming=None)
    if kept.coming is None and is_due(kept.authority.certificate, now):
        kept = replace(kept, coming=make_authority(now, rules.authority_life))
    shown = kept.server.certificate
    if is_due(shown, now) or not names_of(shown) >= frozenset(rules.names):
        kept = replace(kept, server=make_certificate(rules.names, kept.authority, now, rules.life, cross=kept.cross))
    return keyring if kept == keyring else kept


def promoted(keyring: Keyring, rules: Rules, now: dt.datetime) -> Keyring:
    """The coming authority signs from now on."""
    assert keyring.coming is not None
    cross = cross_sign(keyring.coming, keyring.authority, now)
    return Keyring(
        authority=keyring.coming,
        server=make_certificate(rules.names, keyring.coming, now, rules.life, cross=cross),
        former=(keyring.authority.chain, *keyring.former),
        cross=cross,
    )


def _is_over(pem: bytes, now: dt.datetime) -> bool:
    return read_chain(pem)[0].not_valid_after_utc <= now


def to_data(keyring: Keyring) -> dict[str, bytes]:
    """`tls.crt`, `tls.key` and `ca.crt` as everywhere; the rest is ours."""
    return {
        "tls.crt": keyring.server.chain,
        "tls.key": keyring.server.key,
        "ca.crt": keyring.bundle,
        "authority.crt": keyring.authority.chain,
        "authority.key": keyring.authority.key,
        "coming.crt": keyring.coming.chain if keyring.coming else b"",
        "coming.key": keyring.coming.key if keyring.coming else b"",
        "former.crt": b"".join(keyring.former),
        "cross.crt": keyring.cross,
    }


def from_data(data: Mapping[str, bytes]) -> Keyring:
    """ParseError that names the key."""
    former = _certificates(data, "former.crt")
    cross = _certificates(data, "cross.crt")
    keyring = Keyring(
        authority=_pair(data, "authority", read_authority),
        server=_pair(data, "tls", read_pair),
        coming=_pair(data, "coming", read_authority) if data.get("coming.crt") else None,
        former=former,
        cross=b"".join(cross),
    )
    if not signed(keyring.server.certificate, keyring.authority.certificate):
        raise ParseError("tls.crt of the Secret cannot be used: authority.crt did not sign it, so no client trusts it")
    return keyring


def _pair(data: Mapping[str, bytes], name: str, read: Callable[[bytes, bytes], Pair]) -> Pair:
    try:
        return read(data.get(f"{name}.crt", b""), data.get(f"{name}.key", b""))
    except ParseError as error:
        raise ParseError(f"{name}.crt and {name}.key of the Secret cannot be used: {error.message}") from None


def _certificates(data: Mapping[str, bytes], key: str) -> tuple[bytes, ...]:
    if not data.get(key):
        return ()
    try:
        read_chain(data[key])
    except ParseError as error:
        raise ParseError(f"{key} of the Secret cannot be used: {error.message}") from None
    return split(data[key])


_END = b"-----END CERTIFICATE-----\n"


def split(pem: bytes) -> tuple[bytes, ...]:
    """The certificates of a bundle, one by one."""
    return tuple(part.lstrip() + _END for part in pem.replace(b"\r\n", b"\n").split(_END) if part.strip())
