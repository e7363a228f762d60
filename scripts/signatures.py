"""Signatures by cosign: of a file, and of what a registry has under a digest.

In: a key file of cosign (its password in COSIGN_PASSWORD), or none for the identity of a CI workflow ("keyless"). Out:
a Sigstore bundle beside the file, or in the registry beside the image. Invariant: with a key nothing is sent to anybody
but the registry; without one, Sigstore's public log has the signature.
"""

import subprocess
from pathlib import Path

_BUILD = Path(__file__).resolve().parent / "cosign" / "build"


class SignatureError(Exception):
    """Nothing is signed; the message is one sentence."""


def sign_file(file: Path, key: Path | None) -> Path:
    """The bundle, FILE.sigstore.json."""
    bundle = file.with_name(f"{file.name}.sigstore.json")
    _cosign("sign-blob", *_identity(key), "--bundle", str(bundle), str(file))
    return bundle


def sign_in_registry(reference: str, key: Path | None, *, plain_http: bool) -> None:
    """`reference` has a digest: a tag may name something else in a moment."""
    _cosign("sign", *_identity(key), *_http(plain_http), reference)


def attest_in_registry(reference: str, packages: Path, key: Path | None, *, plain_http: bool) -> None:
    """A signed statement that the image has these packages, a CycloneDX document."""
    predicate = ("--predicate", str(packages), "--type", "cyclonedx")
    _cosign("attest", *_identity(key), *_http(plain_http), *predicate, reference)


def _http(plain: bool) -> tuple[str, ...]:
    return ("--allow-http-registry", "--allow-insecure-registry") if plain else ()


def _identity(key: Path | None) -> tuple[str, ...]:
    if key is None:
        return ("--yes",)
    return ("--yes", "--key", str(key), "--use-signing-config=false", "--tlog-upload=false")


def _cosign(*words: str) -> None:
    try:
        built = subprocess.run([_BUILD], stdout=subprocess.PIPE, text=True, check=True)
    except subprocess.CalledProcessError:
        raise SignatureError("cosign cannot be had; its build's words stand above") from None
    done = subprocess.run([built.stdout.strip(), *words], capture_output=True, text=True, check=False)
    if done.returncode:
        last = (done.stderr.strip() or done.stdout.strip() or "no output").splitlines()[-1]
        raise SignatureError(f"cosign {words[0]} failed: {last}")
