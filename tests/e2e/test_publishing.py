"""scripts/publish and the signatures of a release: a registry on loopback, the real skopeo, Helm and cosign."""

import base64
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import urllib3

from sandbox.cluster.images import image_with
from sandbox.emulated_gpus import REPOSITORY
from scripts import image_packages, release
from scripts.signatures import sign_file
from tests.commands import commands
from tests.e2e.installed.registry import Registry, registry
from tests.programs import built, helm_program

pytestmark = [pytest.mark.programs, pytest.mark.root, pytest.mark.timeout(900)]

PASSWORD = {"COSIGN_PASSWORD": "of the tests"}
STATUS = "Package: small\nVersion: 1:2-3\nArchitecture: amd64\n"


@dataclass(frozen=True, slots=True)
class Scene:
    """A registry, a small release, and cosign with a pair of keys."""

    registry: Registry
    dist: Path
    cosign: str
    keys: Path

    def publish(self, *words: str, at: str | None = None) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "scripts.publish", str(self.dist), at or self.registry.address, *words]
        key = ("--plain-http", "--key", str(self.keys / "cosign.key"))
        return subprocess.run(
            [*command, *key], cwd=REPOSITORY, env=os.environ | PASSWORD, capture_output=True, text=True, check=False
        )

    def verified(self, verb: str, *words: str, key: str = "cosign.pub") -> subprocess.CompletedProcess[str]:
        command = [self.cosign, verb, "--key", str(self.keys / key), "--insecure-ignore-tlog", *words]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    def tags(self) -> dict[str, str]:
        """The digests of image and chart, by their names without tag."""
        return {f"{self.registry.address}/{name}": digest_of(self.registry, name) for name in ("vcuda", "charts/vcuda")}


def digest_of(registry: Registry, name: str) -> str:
    """As the registry itself says it."""
    kinds = ", ".join(f"application/vnd.oci.image.{kind}.v1+json" for kind in ("manifest", "index"))
    url = f"http://{registry.address}/v2/{name}/manifests/{registry.version}"
    answer = urllib3.request("HEAD", url, headers={"Accept": kinds}, timeout=60)
    return str(answer.headers["Docker-Content-Digest"])


def oci_archive(to: Path, text: str) -> None:
    """A small image in an archive of the kind that scripts/image writes."""
    plain = to.with_suffix(".docker")
    files = {"text": text.encode(), "var/lib/dpkg/status.d/small": STATUS.encode()}
    plain.write_bytes(image_with("docker.io/library/small", (), more=files))
    command = ["skopeo", "--insecure-policy", "copy", f"docker-archive:{plain}", f"oci-archive:{to}:0"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    plain.unlink()


@pytest.fixture(scope="module")
def cosign(request: pytest.FixtureRequest) -> str:
    return built(request, "cosign", REPOSITORY / "scripts/cosign/build")[-1]


@pytest.fixture
def scene(cosign: str, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Scene]:
    helm_program(request)
    for name in ("cosign", "other"):
        command = [cosign, "generate-key-pair", f"--output-key-prefix={name}"]
        subprocess.run(command, cwd=tmp_path, env=os.environ | PASSWORD, check=True, capture_output=True)
    dist = tmp_path / "dist"
    release.release(dist, with_image=False, url=None)
    archive = dist / f"vcuda-image-{release.version()}.tar"
    oci_archive(archive, "first")
    archive.with_suffix(".cdx.json").write_text(image_packages.document(archive, release.version()))
    release.write_sums(dist)
    with registry(tmp_path) as served:
        yield Scene(served, dist, cosign, tmp_path)


def test_what_is_published_is_signed_and_a_second_run_changes_nothing(scene: Scene) -> None:
    done = scene.publish()
    assert done.returncode == 0, done.stderr
    names = scene.tags()
    assert done.stdout.split() == [f"{name}@{digest}" for name, digest in names.items()]
    http = ("--allow-http-registry", "--allow-insecure-registry")
    for name, digest in names.items():
        tagged = f"{name}:{scene.registry.version}"
        verified = scene.verified("verify", *http, tagged)
        assert verified.returncode == 0, verified.stderr
        assert digest in verified.stdout + verified.stderr
        assert scene.verified("verify", *http, tagged, key="other.pub").returncode != 0

    again = scene.publish()
    assert (again.returncode, again.stdout, scene.tags()) == (0, done.stdout, names), again.stderr


def test_the_packages_of_the_image_are_attested_in_the_registry(scene: Scene) -> None:
    assert scene.publish().returncode == 0
    http = ("--allow-http-registry", "--allow-insecure-registry")
    words = (*http, "--type", "cyclonedx", f"{scene.registry.address}/vcuda:{scene.registry.version}")
    verified = scene.verified("verify-attestation", *words)
    assert verified.returncode == 0, verified.stderr
    statement = json.loads(base64.b64decode(json.loads(verified.stdout.splitlines()[0])["payload"]))
    (packages,) = scene.dist.glob("vcuda-image-*.cdx.json")
    assert statement["predicate"] == json.loads(packages.read_text())
    assert [each["purl"] for each in statement["predicate"]["components"]] == ["pkg:deb/debian/small@1:2-3?arch=amd64"]
    digest = scene.tags()[f"{scene.registry.address}/vcuda"]
    assert [each["digest"]["sha256"] for each in statement["subject"]] == [digest.removeprefix("sha256:")]
    assert scene.verified("verify-attestation", *words, key="other.pub").returncode != 0


def test_the_checksums_are_signed(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    sums = scene.dist / "SHA256SUMS"
    monkeypatch.setenv(*next(iter(PASSWORD.items())))
    bundle = sign_file(sums, scene.keys / "cosign.key")
    words = ("--bundle", str(bundle), str(sums))
    verified = scene.verified("verify-blob", *words)
    assert verified.returncode == 0, verified.stderr
    assert scene.verified("verify-blob", *words, key="other.pub").returncode != 0
    sums.write_text(sums.read_text() + "\n")
    assert scene.verified("verify-blob", *words).returncode != 0


def test_the_commands_of_the_guide_verify_what_was_published(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """As they stand there, but for the registry's address, and that it has no TLS."""
    monkeypatch.setenv(*next(iter(PASSWORD.items())))
    sign_file(scene.dist / "SHA256SUMS", scene.keys / "cosign.key")
    assert scene.publish().returncode == 0
    (scene.dist / "cosign.pub").write_bytes((scene.keys / "cosign.pub").read_bytes())
    page = REPOSITORY / "docs/install.md"
    lines = [line for each in commands(page) if "released?" in each.heading for line in each.commands]
    assert {line.split()[0] for line in lines} == {"cosign", "sha256sum"}
    for line in lines:
        there = line.replace("registry.example.org", scene.registry.address)
        plain = there.replace("cosign verify ", "cosign verify --allow-http-registry --allow-insecure-registry ")
        assert _typed(scene, plain) == 0, line
    (scene.dist / "SHA256SUMS").write_text("")
    assert [_typed(scene, line) == 0 for line in lines if "blob" in line] == [False]


def _typed(scene: Scene, line: str) -> int:
    (scene.keys / "bin").mkdir(exist_ok=True)
    program = scene.keys / "bin/cosign"
    program.unlink(missing_ok=True)
    program.symlink_to(scene.cosign)
    path = f"{program.parent}:{os.environ['PATH']}"
    return subprocess.run(
        ["bash", "-c", line], cwd=scene.dist, env={**os.environ, "PATH": path}, check=False
    ).returncode


def test_another_image_or_chart_under_a_published_version_is_refused(scene: Scene) -> None:
    assert scene.publish().returncode == 0
    before = scene.tags()
    (image,) = scene.dist.glob("vcuda-image-*.tar")
    (chart,) = scene.dist.glob("vcuda-chart-*.tgz")
    kept = image.read_bytes()
    oci_archive(image, "second")
    refused(scene, "is already another image, sha256:")
    image.write_bytes(kept)
    chart.write_bytes(chart.read_bytes() + b"\0")
    refused(scene, "is already another chart; release a new version")
    assert scene.tags() == before


def test_files_that_are_not_those_of_the_release_are_refused(scene: Scene) -> None:
    (wheel,) = scene.dist.glob("*.whl")
    wheel.write_bytes(b"")
    refused(scene, "is not the file that SHA256SUMS names; make the release again", sums=False)


def test_a_registry_that_is_away_is_one_sentence(scene: Scene) -> None:
    done = scene.publish(at="127.0.0.1:9")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("publish: 127.0.0.1:9 does not say what vcuda:")
    assert len(done.stderr.splitlines()) == 1


def refused(scene: Scene, sentence: str, *, sums: bool = True) -> None:
    if sums:
        release.write_sums(scene.dist)
    done = scene.publish()
    assert (done.returncode, done.stdout) == (1, "")
    assert sentence in done.stderr
    assert len(done.stderr.splitlines()) == 1
