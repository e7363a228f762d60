"""A certificate and its key: read, and asked how long and for whom it is good.

In: PEM. Out: `Pair`, PEM inside; ParseError where bytes are none. Not here: how they are made (`making`).
"""

import datetime as dt
from dataclasses import dataclass

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from deviceplugin.errors import ParseError

_PUBLIC = (serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)


@dataclass(frozen=True, slots=True)
class Pair:
    """`chain` is PEM, the certificate first; `key` is PEM without a passphrase."""

    chain: bytes
    key: bytes

    @property
    def certificate(self) -> x509.Certificate:
        return read_chain(self.chain)[0]

    def __repr__(self) -> str:
        return f"Pair({self.certificate.subject.rfc4514_string()}, until {self.certificate.not_valid_after_utc})"


def is_good(certificate: x509.Certificate, now: dt.datetime) -> bool:
    """Whether anybody whose clock is right believes it now; one of the future was made while a clock was wrong."""
    return certificate.not_valid_before_utc <= now < certificate.not_valid_after_utc


def is_due(certificate: x509.Certificate, now: dt.datetime) -> bool:
    """Whether two thirds of its life are over, or it is not good at all."""
    begin, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    return now >= end - (end - begin) / 3 or not is_good(certificate, now)


def names_of(certificate: x509.Certificate) -> frozenset[str]:
    """The names and addresses that it is for."""
    try:
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return frozenset()
    return frozenset(found.get_values_for_type(x509.DNSName)) | {
        str(address) for address in found.get_values_for_type(x509.IPAddress)
    }


def signed(certificate: x509.Certificate, authority: x509.Certificate) -> bool:
    """Whether the one was signed by the other."""
    try:
        certificate.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def read_authority(chain: bytes, key: bytes) -> Pair:
    """ParseError where it could not sign, besides what `read_pair` says."""
    pair = read_pair(chain, key)
    signing_key(pair)
    try:
        is_authority = pair.certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except (x509.ExtensionNotFound, ValueError):
        is_authority = False
    if not is_authority:
        raise ParseError("the certificate is of no authority")
    return pair


def read_chain(pem: bytes) -> list[x509.Certificate]:
    """At least one certificate; ParseError otherwise."""
    try:
        return x509.load_pem_x509_certificates(pem)
    except ValueError:
        raise ParseError("there is no certificate in it") from None


def read_pair(chain: bytes, key: bytes) -> Pair:
    """ParseError where one of them is broken or they do not belong together."""
    certificate = read_chain(chain)[0]
    try:
        loaded = serialization.load_pem_private_key(key, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise ParseError("there is no key without a passphrase in it") from None
    if loaded.public_key().public_bytes(*_PUBLIC) != certificate.public_key().public_bytes(*_PUBLIC):
        raise ParseError("the key does not belong to the certificate")
    return Pair(chain, key)


def signing_key(pair: Pair) -> ec.EllipticCurvePrivateKey:
    """ParseError where it is of another kind than ours."""
    key = serialization.load_pem_private_key(pair.key, password=None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ParseError("the authority's key is none of ours")
    return key
