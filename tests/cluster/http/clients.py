"""Client certificates, like that of kube-scheduler."""

import datetime as dt
import ssl
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from deviceplugin.cluster.certificates.keypair import KeyPair


def client_certificate(
    ca: KeyPair, common_name: str, *, dns: str = "", serves: bool = False, life: dt.timedelta = dt.timedelta(days=1)
) -> KeyPair:
    """`serves`: made for a server, which proves nothing of a client."""
    key, now = ec.generate_private_key(ec.SECP256R1()), dt.datetime.now(dt.UTC)
    usage = ExtendedKeyUsageOID.SERVER_AUTH if serves else ExtendedKeyUsageOID.CLIENT_AUTH
    made = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)]))
        .issuer_name(ca.certificate.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=2))
        .not_valid_after(now + life)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
    )
    if dns:
        made = made.add_extension(x509.SubjectAlternativeName([x509.DNSName(dns)]), critical=False)
    signer = serialization.load_pem_private_key(ca.key, None)
    assert isinstance(signer, ec.EllipticCurvePrivateKey)
    pem = made.sign(signer, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
    form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return KeyPair(pem, key.private_bytes(*form))


def showing(bundle: bytes, shown: KeyPair | None, folder: Path) -> ssl.SSLContext:
    """Trusts the bundle, and shows a certificate."""
    context = ssl.create_default_context(cadata=bundle.decode())
    if shown is not None:
        (folder / "client.crt").write_bytes(shown.chain)
        (folder / "client.key").write_bytes(shown.key)
        context.load_cert_chain(folder / "client.crt", folder / "client.key")
    return context
