"""Publishes a release in a registry: image and chart, both signed, and the list of the image's packages.

In: the directory that scripts/release made; REGISTRY, a host with an optional path; a key of cosign, or the identity of
the CI workflow; skopeo and Helm, logged in. Out: what was published, each with its digest, on stdout, one a line.
Invariant: a version that is published never changes: what has the tag already must be the same, and is not sent again.
Run as scripts/publish.
"""

import argparse
import hashlib
import json
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scripts import manifests
from scripts.oci_archive import ArchiveError, opened
from scripts.release import SUMS
from scripts.signatures import SignatureError, attest_in_registry, sign_in_registry


class PublishError(Exception):
    """Nothing more is published; the message is one sentence."""


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="publish", description="Publishes the files of a release in a registry.")
    parser.add_argument("dist", type=Path, help="the directory that scripts/release made")
    parser.add_argument("registry", help="HOST or HOST/PATH, for REGISTRY/vcuda and REGISTRY/charts/vcuda")
    parser.add_argument("--key", type=Path, help="cosign's key file (default: the identity of the CI workflow)")
    parser.add_argument("--plain-http", action="store_true", help="for a registry without TLS, such as one on loopback")
    given = parser.parse_args(arguments)
    try:
        check_sums(given.dist)
        image, chart = publish(given.dist, Registry(given.registry, given.plain_http))
        packages = _only(given.dist, "vcuda-image-*.cdx.json")
        attest_in_registry(image, packages, given.key, plain_http=given.plain_http)
        for reference in (image, chart):
            sign_in_registry(reference, given.key, plain_http=given.plain_http)
            print(reference)
    except (PublishError, SignatureError, ArchiveError, OSError) as error:
        print(f"publish: {error}", file=sys.stderr)
        return 1
    return 0


@dataclass(frozen=True, slots=True)
class Registry:
    """`place` is HOST or HOST/PATH."""

    place: str
    plain_http: bool = False

    def manifest(self, name: str) -> bytes | None:
        """What the registry has under `name`; none where it has nothing."""
        done = self.skopeo("inspect", "--raw", f"docker://{self.place}/{name}")
        if done.returncode == 0:
            return done.stdout
        said = done.stderr.decode(errors="replace").strip()
        if re.search(r"manifest unknown|name unknown|NAME_UNKNOWN|not found", said):
            return None
        raise PublishError(f"{self.place} does not say what {name} is: {_last(said)}")

    def skopeo(self, verb: str, *words: str) -> subprocess.CompletedProcess[bytes]:
        side = "--dest-tls-verify" if verb == "copy" else "--tls-verify"
        command = ["skopeo", "--insecure-policy", verb, f"{side}={str(not self.plain_http).lower()}", *words]
        return _run(command)


def check_sums(dist: Path) -> None:
    """Files that are not those that the release made are not published."""
    for line in (dist / SUMS).read_text().splitlines():
        digest, name = line.split("  ", 1)
        if hashlib.sha256((dist / name).read_bytes()).hexdigest() != digest:
            raise PublishError(f"{dist / name} is not the file that {SUMS} names; make the release again")


def publish(dist: Path, to: Registry) -> tuple[str, str]:
    """The references of image and chart, with digests; sent only where the registry does not have them."""
    image, chart = _only(dist, "vcuda-image-*.tar"), _only(dist, "vcuda-chart-*.tgz")
    version = chart.stem.removeprefix("vcuda-chart-")
    return _publish_image(image, to, version), _publish_chart(chart, to, version)


def _publish_image(archive: Path, to: Registry, version: str) -> str:
    with opened(archive) as image:
        digest, name = image.digest, f"vcuda:{version}"
    found = to.manifest(name)
    if found is None:
        _check(
            to.skopeo("copy", "--all", "--preserve-digests", f"oci-archive:{archive}", f"docker://{to.place}/{name}")
        )
    elif _digest(found) != digest:
        raise PublishError(f"{to.place}/{name} is already another image, {_digest(found)}; release a new version")
    return f"{to.place}/vcuda@{digest}"


def _publish_chart(chart: Path, to: Registry, version: str) -> str:
    """Helm puts the time into the manifest, so the chart in it is compared."""
    name = f"charts/vcuda:{version}"
    found = to.manifest(name)
    if found is None:
        plain = ("--plain-http",) if to.plain_http else ()
        _check(_run([manifests.helm(), "push", str(chart), f"oci://{to.place}/charts", *plain]))
        found = to.manifest(name)
    if found is None:
        raise PublishError(f"{to.place} took the chart and does not show {name}")
    layers: list[dict[str, Any]] = json.loads(found).get("layers", [])
    if f"sha256:{hashlib.sha256(chart.read_bytes()).hexdigest()}" not in [layer["digest"] for layer in layers]:
        raise PublishError(f"{to.place}/{name} is already another chart; release a new version")
    return f"{to.place}/charts/vcuda@{_digest(found)}"


def _digest(manifest: bytes) -> str:
    return f"sha256:{hashlib.sha256(manifest).hexdigest()}"


def _only(dist: Path, pattern: str) -> Path:
    found = list(dist.glob(pattern))
    if len(found) != 1:
        raise PublishError(f"{dist} has {len(found)} files {pattern}; make the release with scripts/release")
    return found[0]


def _run(command: list[str]) -> subprocess.CompletedProcess[bytes]:
    try:
        return subprocess.run(command, capture_output=True, check=False)
    except FileNotFoundError:
        raise PublishError(f"{command[0]} is missing; on Debian: apt-get install {command[0]}") from None


def _check(done: subprocess.CompletedProcess[bytes]) -> None:
    if done.returncode:
        raise PublishError(f"{Path(done.args[0]).name} failed: {_last(done.stderr.decode(errors='replace'))}")


def _last(text: str) -> str:
    return (text.strip() or "no output").splitlines()[-1]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
