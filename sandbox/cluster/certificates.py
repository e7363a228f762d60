"""The cluster's certificates, all issued by one CA made for this run.

In: a folder. Out: PEM files, named by their subject. Not here: who uses them.
Invariant: nothing is valid for longer than a day, and private keys are readable by their owner alone.
"""

import datetime as dt
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID


@dataclass(frozen=True, slots=True)
class KeyPair:
    """A certificate (or a public key) and its private key, as files."""

    certificate: Path
    key: Path


class ClusterCa:
    """The CA of one cluster, which lives as long as the cluster."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name("vcuda-e2e-ca", None)
        constraints = x509.BasicConstraints(ca=True, path_length=0)
        signs = x509.KeyUsage(
            False,
            False,
            False,
            False,
            False,
            key_cert_sign=True,
            crl_sign=True,
            encipher_only=False,
            decipher_only=False,
        )
        own = x509.SubjectKeyIdentifier.from_public_key(self._key.public_key())
        builder = _builder(self._name, self._name, self._key).add_extension(constraints, critical=True)
        builder = builder.add_extension(signs, critical=True).add_extension(own, critical=False)
        self.certificate = folder / "ca.crt"
        self.certificate.write_bytes(_pem(builder.sign(self._key, hashes.SHA256())))

    def issue(
        self,
        file: str,
        *,
        common_name: str,
        organization: str | None = None,
        names: Sequence[str] = (),
        names_its_issuer: bool = False,
    ) -> KeyPair:
        """A pair that serves under `names` (DNS names or addresses) and identifies a client.

        Without the Authority Key Identifier Python's ssl refuses it from 3.13 on, unless told otherwise.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        usage = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH])
        builder = _builder(_name(common_name, organization), self._name, key).add_extension(usage, critical=False)
        if names:
            alternatives = x509.SubjectAlternativeName([_general_name(name) for name in names])
            builder = builder.add_extension(alternatives, critical=False)
        if names_its_issuer:
            issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
            builder = builder.add_extension(issuer, critical=False)
        pair = KeyPair(self._folder / f"{file}.crt", self._folder / f"{file}.key")
        pair.certificate.write_bytes(_pem(builder.sign(self._key, hashes.SHA256())))
        _write_private(pair.key, key)
        return pair

    def service_account_keys(self) -> KeyPair:
        key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        pair = KeyPair(self._folder / "service-accounts.pub", self._folder / "service-accounts.key")
        public = key.public_key()
        form = serialization.PublicFormat.SubjectPublicKeyInfo
        pair.certificate.write_bytes(public.public_bytes(serialization.Encoding.PEM, form))
        _write_private(pair.key, key)
        return pair


def _builder(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    now = dt.datetime.now(dt.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(hours=1))  # a container's clock may lag
        .not_valid_after(now + dt.timedelta(days=1))
    )


def _name(common_name: str, organization: str | None) -> x509.Name:
    parts = [x509.NameAttribute(NameOID.COMMON_NAME, common_name)]
    if organization:
        parts.append(x509.NameAttribute(NameOID.ORGANIZATION_NAME, organization))
    return x509.Name(parts)


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _write_private(path: Path, key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey) -> None:
    path.touch(mode=0o600)
    form = serialization.PrivateFormat.PKCS8
    path.write_bytes(key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()))
