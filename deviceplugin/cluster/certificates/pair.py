"""A certificate and its key: made, read, and asked how long it is good.

In: names, lives, the authority that signs; or PEM. Out: `Pair`, PEM inside; ParseError where bytes are none. A
certificate begins a little before it is made, for other machines' clocks may be behind ours.
"""

import datetime as dt
import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.types import CertificatePublicKeyTypes
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from deviceplugin.errors import ParseError

_SLACK = dt.timedelta(minutes=5)
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


def make_authority(now: dt.datetime, life: dt.timedelta) -> Pair:
    """A new authority that signs itself; its name is its own, so that no chain is ambiguous."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = _name(f"vcuda authority of {now:%Y-%m-%d} {x509.random_serial_number() % 16**8:08x}")
    made = _authority_builder(name, key.public_key(), now, now + life).issuer_name(name)
    made = made.add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key()), critical=False)
    return Pair(_pem(made.sign(key, hashes.SHA256())), _key_pem(key))


def cross_sign(new: Pair, old: Pair, now: dt.datetime) -> bytes:
    """The new authority as the old one vouches for it: who still knows only the old one then trusts the new."""
    theirs, signer = new.certificate, old.certificate
    public = theirs.public_key()
    made = _authority_builder(theirs.subject, public, now, signer.not_valid_after_utc)
    made = made.issuer_name(signer.subject).add_extension(_signed_by(signer), critical=False)
    return _pem(made.sign(_signing_key(old), hashes.SHA256()))


def make_certificate(
    names: Iterable[str], signer: Pair, now: dt.datetime, life: dt.timedelta, *, cross: bytes = b""
) -> Pair:
    """A server's certificate for names and addresses; it never outlives its signer."""
    key = ec.generate_private_key(ec.SECP256R1())
    names = tuple(names)
    authority = signer.certificate
    made = (
        _builder(_name("vcuda scheduler"), key.public_key(), now, min(now + life, authority.not_valid_after_utc))
        .issuer_name(authority.subject)
        .add_extension(x509.SubjectAlternativeName([_alternative(name) for name in names]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(_signed_by(authority), critical=False)
    )
    return Pair(_pem(made.sign(_signing_key(signer), hashes.SHA256())) + cross, _key_pem(key))


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
    _signing_key(pair)
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


def _authority_builder(
    subject: x509.Name, public: CertificatePublicKeyTypes, now: dt.datetime, end: dt.datetime
) -> x509.CertificateBuilder:
    return (
        _builder(subject, public, now, end)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(_usage(signs=True), critical=True)
    )


def _builder(
    subject: x509.Name, public: CertificatePublicKeyTypes, now: dt.datetime, end: dt.datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _SLACK)
        .not_valid_after(end)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
    )


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=signs,
        crl_sign=signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _signed_by(signer: x509.Certificate) -> x509.AuthorityKeyIdentifier:
    known = signer.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    return x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(known)


def _signing_key(pair: Pair) -> ec.EllipticCurvePrivateKey:
    key = serialization.load_pem_private_key(pair.key, password=None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ParseError("the authority's key is none of ours")
    return key


def _alternative(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
