"""Certificates made: authorities of our own, what they sign, and one that vouches for the next.

In: names, lives, the authority that signs. Out: `Pair`s. A certificate begins a little before it is made, for other
machines' clocks may be behind ours.
"""

import datetime as dt
import ipaddress
from collections.abc import Iterable

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.types import CertificatePublicKeyTypes
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from deviceplugin.cluster.certificates.pair import Pair, signing_key

_SLACK = dt.timedelta(minutes=5)


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
    return _pem(made.sign(signing_key(old), hashes.SHA256()))


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
    return Pair(_pem(made.sign(signing_key(signer), hashes.SHA256())) + cross, _key_pem(key))


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
