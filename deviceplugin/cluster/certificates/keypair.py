"""Certificates with their keys: read, checked, made.

In: PEM, or names and lifetimes. Out: `KeyPair`, PEM inside; ParseError if bytes are something else. Keys: EC P-256.

The TLS side of the listener: serves one certificate, verifies client certificates by one CA, and changes both live.

In: key pairs, and the CA of client certificates. Out: an `ssl.SSLContext` that lives as long as the listener. OpenSSL
cannot remove a CA from a context, so each change makes a new context: a handshake that has begun ends with the old
one, later ones use the new one, connections stay, and no session of the old one is resumed. If OpenSSL refuses a
change, nothing changes. A client certificate is optional, for API server and probes have none; one that is presented
must be valid.
"""

import datetime as dt
import ipaddress
import ssl
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from deviceplugin.errors import ConfigError, ParseError
from deviceplugin.kube.credentials import show_certificate

_SLACK = dt.timedelta(minutes=5)  # clocks of clients may be behind


@dataclass(frozen=True, slots=True)
class KeyPair:
    """`chain` is PEM, the certificate first; `key` is PEM without a passphrase."""

    chain: bytes
    key: bytes = field(repr=False)  # a repr may end in a log

    @property
    def certificate(self) -> x509.Certificate:
        return read_chain(self.chain)[0]


def is_valid(certificate: x509.Certificate, now: dt.datetime) -> bool:
    """Whether a client with the right time accepts it; a certificate of the future was made while a clock was wrong."""
    return certificate.not_valid_before_utc <= now < certificate.not_valid_after_utc


def is_due(certificate: x509.Certificate, now: dt.datetime) -> bool:
    """Whether two thirds of its life are over, or it is not valid at all."""
    begin, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    return now >= end - (end - begin) / 3 or not is_valid(certificate, now)


def read_chain(pem: bytes) -> list[x509.Certificate]:
    """At least one certificate; ParseError otherwise."""
    try:
        return x509.load_pem_x509_certificates(pem)
    except ValueError:
        raise ParseError("it holds no certificate in PEM") from None


def read_pair(chain: bytes, key: bytes) -> KeyPair:
    """ParseError if one of them is malformed or they do not belong together."""
    certificate = read_chain(chain)[0]
    try:
        loaded = serialization.load_pem_private_key(key, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise ParseError("it holds no private key in PEM without a passphrase") from None
    if loaded.public_key() != certificate.public_key():
        raise ParseError("the key does not belong to the certificate")
    return KeyPair(chain, key)


def read_ca(chain: bytes, key: bytes) -> KeyPair:
    """ParseError if it cannot sign, in addition to the errors of `read_pair`."""
    pair = read_pair(chain, key)
    _signing_key(pair)
    try:
        is_ca = pair.certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
        pair.certificate.extensions.get_extension_for_class(x509.SubjectKeyIdentifier)
    except (x509.ExtensionNotFound, ValueError):
        is_ca = False
    if not is_ca:
        raise ParseError("the certificate is not a CA's, or does not identify its key")
    return pair


def make_ca(now: dt.datetime, life: dt.timedelta) -> KeyPair:
    """A new self-signed CA; its name is unique, so that no chain is ambiguous."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = _name(f"vcuda CA of {now:%Y-%m-%d} {x509.random_serial_number() % 16**8:08x}")
    made = _builder(name, key.public_key(), now, now + life, is_ca=True).issuer_name(name)
    made = made.add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key()), critical=False)
    return KeyPair(_pem(made.sign(key, hashes.SHA256())), _key_pem(key))


def make_certificate(names: Iterable[str], ca: KeyPair, now: dt.datetime, life: dt.timedelta) -> KeyPair:
    """A serving certificate for names and addresses; it never outlives its CA."""
    key = ec.generate_private_key(ec.SECP256R1())
    signer = ca.certificate
    known = signer.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    end = min(now + life, signer.not_valid_after_utc)
    made = (
        _builder(_name("vcuda scheduler"), key.public_key(), now, end, is_ca=False)
        .issuer_name(signer.subject)
        .add_extension(x509.SubjectAlternativeName([_alternative(name) for name in names]), critical=False)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(known), critical=False)
    )
    return KeyPair(_pem(made.sign(_signing_key(ca), hashes.SHA256())), _key_pem(key))


def _signing_key(pair: KeyPair) -> ec.EllipticCurvePrivateKey:
    key = serialization.load_pem_private_key(pair.key, password=None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ParseError("the CA's key is not an EC key, so vcuda did not make it")
    return key


def _builder(
    subject: x509.Name, public: ec.EllipticCurvePublicKey, now: dt.datetime, end: dt.datetime, *, is_ca: bool
) -> x509.CertificateBuilder:
    usage = x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=is_ca,
        crl_sign=is_ca,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _SLACK)
        .not_valid_after(end)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
        .add_extension(x509.BasicConstraints(ca=is_ca, path_length=None), critical=True)
        .add_extension(usage, critical=True)
    )


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


class _Listeners(ssl.SSLContext):
    """The context that the listener keeps; asyncio calls `wrap_bio` for every connection, and `current` answers."""

    current: ssl.SSLContext

    def wrap_bio(self, *args: Any, **how: Any) -> ssl.SSLObject:  # noqa: ANN401 - as SSLContext
        return self.current.wrap_bio(*args, **how)


class ServerTls:
    """`shown` is the certificate that clients get now."""

    def __init__(self, first: KeyPair) -> None:
        self._listeners = _Listeners(ssl.PROTOCOL_TLS_SERVER)
        self._clients: bytes | None = None
        self.shown = first
        self.show(first)

    @property
    def context(self) -> ssl.SSLContext:
        return self._listeners

    def show(self, pair: KeyPair) -> None:
        """From the next handshake on; ConfigError if OpenSSL cannot use it."""
        self._listeners.current = _context(pair, self._clients)
        self.shown = pair

    def trust(self, clients: bytes) -> None:
        """The CA of client certificates, from the next handshake on; ConfigError if it holds no certificate."""
        self._listeners.current = _context(self.shown, clients)
        self._clients = clients


def _context(pair: KeyPair, clients: bytes | None) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    try:
        show_certificate(context, pair.chain, pair.key)
    except OSError as error:
        raise ConfigError(f"the certificate cannot be served: {error}") from None
    if clients is not None:
        context.verify_mode = ssl.CERT_OPTIONAL
        try:
            context.load_verify_locations(cadata=clients.decode("ascii", errors="ignore"))
        except (ssl.SSLError, ValueError):
            raise ConfigError("it holds no certificate in PEM") from None
    return context
