"""scripts/publish and the signatures of a release: a registry on loopback, the real skopeo, Helm and cosign."""

import base64
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import urllib3

from sandbox.cluster.images import image_with
from sandbox.emulated_gpus import REPOSITORY
from tests.commands import commands
from tests.e2e.installed.registry import Registry, registry
from tests.programs import cosign_program, installed, need_release_tools
from tests.scripts.released import release_files

pytestmark = [pytest.mark.programs, pytest.mark.root, pytest.mark.timeout(900)]

PASSWORD = {"COSIGN_PASSWORD": "of the tests"}
STATUS = "Package: small\nVersion: 1:2-3\nArchitecture: amd64\n"


@dataclass(frozen=True, slots=True)
class Scene:
    """A registry, a small release, cosign, and the key that signs."""

    registry: Registry
    dist: Path
    cosign: str
    key: Path

    def publish(self) -> subprocess.CompletedProcess[str]:
        return self.registry.publish(self.dist, "--key", str(self.key), **PASSWORD)

    def verified(self, verb: str, *words: str, key: str = "cosign.pub") -> subprocess.CompletedProcess[str]:
        command = [self.cosign, verb, "--key", str(self.key.with_name(key)), "--insecure-ignore-tlog", *words]
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
    """A small image in an archive of the kind that scripts/image writes: with an index, here of one architecture."""
    work = to.with_suffix(".work")
    work.mkdir()
    plain = work / "plain.tar"
    files = {"text": text.encode(), "var/lib/dpkg/status.d/small": STATUS.encode()}
    plain.write_bytes(image_with("docker.io/library/small", (), more=files))
    buildah = ("buildah", f"--root={work / 'root'}", f"--runroot={work / 'run'}", "--storage-driver=vfs", "manifest")
    subprocess.run([*buildah, "create", "small", f"docker-archive:{plain}"], check=True, stdout=subprocess.DEVNULL)
    subprocess.run([*buildah, "push", "--quiet", "--all", "small", f"oci-archive:{work / 'made'}:0"], check=True)
    (work / "made").replace(to)
    shutil.rmtree(work)


@pytest.fixture(scope="module")
def cosign(request: pytest.FixtureRequest) -> str:
    return cosign_program(request)


@pytest.fixture(scope="module")
def image(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    need_release_tools(request)
    installed("buildah=buildah")
    archive = tmp_path_factory.mktemp("image") / "small.tar"
    oci_archive(archive, "first")
    return archive


@pytest.fixture(scope="module")
def files(image: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A release of this tree with a small image."""
    return made(tmp_path_factory.mktemp("files") / "dist", image)


def made(dist: Path, image: Path, **environment: str) -> Path:
    done = release_files(REPOSITORY, dist, "--uncommitted", "--image", image, **environment)
    assert done.returncode == 0, done.stderr
    return dist


@pytest.fixture
def scene(cosign: str, files: Path, tmp_path: Path) -> Iterator[Scene]:
    dist = Path(shutil.copytree(files, tmp_path / "dist"))
    with registry(tmp_path) as served:
        key_pair(cosign, tmp_path, "other")
        yield Scene(served, dist, cosign, key_pair(cosign, tmp_path, "cosign"))


def key_pair(cosign: str, folder: Path, name: str) -> Path:
    """The private key, NAME.key; the public one is NAME.pub."""
    command = [cosign, "generate-key-pair", f"--output-key-prefix={name}"]
    subprocess.run(command, cwd=folder, env=os.environ | PASSWORD, check=True, capture_output=True)
    return folder / f"{name}.key"


def test_the_list_of_the_image_s_packages_is_the_same_in_two_runs(files: Path, image: Path, tmp_path: Path) -> None:
    elsewhere = Path(shutil.copy(image, tmp_path / "of another name"))
    again = made(tmp_path / "again", elsewhere, TZ="Asia/Tokyo", LC_ALL="C.UTF-8")
    (name,) = [path.name for path in files.glob("vcuda-image-*.cdx.json")]
    assert name.endswith("-amd64.cdx.json")
    assert (again / name).read_bytes() == (files / name).read_bytes()
    assert (again / "SHA256SUMS").read_bytes() == (files / "SHA256SUMS").read_bytes()


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
    assert ("small", "1:2-3") in {(each["name"], each.get("version")) for each in statement["predicate"]["components"]}
    digest = scene.tags()[f"{scene.registry.address}/vcuda"]
    assert [each["digest"]["sha256"] for each in statement["subject"]] == [digest.removeprefix("sha256:")]
    assert scene.verified("verify-attestation", *words, key="other.pub").returncode != 0


def test_the_checksums_are_signed(scene: Scene) -> None:
    assert scene.publish().returncode == 0
    sums = scene.dist / "SHA256SUMS"
    words = ("--bundle", f"{sums}.sigstore.json", str(sums))
    verified = scene.verified("verify-blob", *words)
    assert verified.returncode == 0, verified.stderr
    assert scene.verified("verify-blob", *words, key="other.pub").returncode != 0
    sums.write_text(sums.read_text() + "\n")
    assert scene.verified("verify-blob", *words).returncode != 0


def test_without_a_key_cosign_is_asked_to_sign_by_identity(scene: Scene, tmp_path: Path) -> None:
    """As only the CI workflow can; a program that says its arguments stands for cosign."""
    said = tmp_path / "said"
    program = tmp_path / "says-its-arguments"
    program.write_text(f'#!/bin/sh\nprintf "%s\\n" "$*" >>{said}\n')
    program.chmod(0o755)
    command = [str(REPOSITORY / "scripts/publish"), str(scene.dist), scene.registry.address, "--plain-http"]
    workflow = {"VCUDA_COSIGN": str(program), "ACTIONS_ID_TOKEN_REQUEST_URL": "https://actions.example.org"}
    subprocess.run(command, env=os.environ | workflow, check=True)
    lines = said.read_text().splitlines()
    assert [line.split()[0] for line in lines] == ["attest", "sign", "sign-blob"]
    for line in lines:
        assert "--key" not in line
        assert "--tlog-upload=false" not in line
        assert "--yes" in line, "nobody can be asked"
    assert [line.count("@sha256:") for line in lines] == [1, 2, 0], "a tag may name something else in a moment"


def test_unsigned_is_published_without_cosign(scene: Scene) -> None:
    done = scene.registry.publish(scene.dist, "--unsigned", VCUDA_COSIGN="/nowhere")
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [f"{name}@{digest}" for name, digest in scene.tags().items()]
    assert not list(scene.dist.glob("*.sigstore.json"))


def test_a_wrong_password_is_noticed_before_anything_is_sent(scene: Scene) -> None:
    done = scene.registry.publish(scene.dist, "--key", str(scene.key), COSIGN_PASSWORD="another")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"publish: cosign cannot use {scene.key} with the password in COSIGN_PASSWORD: ")
    assert urllib3.request("GET", f"http://{scene.registry.address}/v2/_catalog").json() == {"repositories": []}


def test_the_commands_of_the_guide_verify_what_was_published(scene: Scene) -> None:
    """As they stand there, but for the registry's address, and that it has no TLS."""
    assert scene.publish().returncode == 0
    shutil.copy(scene.key.with_name("cosign.pub"), scene.dist)
    page = REPOSITORY / "docs/install.md"
    lines = [line for each in commands(page) if "Verify" in each.heading for line in each.commands]
    assert {line.split()[0] for line in lines} == {"cosign", "sha256sum"}
    for line in lines:
        there = line.replace("registry.example.org", scene.registry.address)
        plain = there.replace("cosign verify ", "cosign verify --allow-http-registry --allow-insecure-registry ")
        assert _typed(scene, plain) == 0, line
    (scene.dist / "SHA256SUMS").write_text("")
    assert [_typed(scene, line) == 0 for line in lines if "blob" in line] == [False]


def _typed(scene: Scene, line: str) -> int:
    program = scene.key.with_name("bin") / "cosign"
    program.parent.mkdir(exist_ok=True)
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
    image.unlink()
    oci_archive(image, "second")
    refused(scene, "is already another image, sha256:")
    image.write_bytes(kept)
    chart.write_bytes(chart.read_bytes() + b"\0")
    refused(scene, "is already another chart; release a new version")
    assert scene.tags() == before


def test_files_that_are_not_those_of_the_release_are_refused(scene: Scene) -> None:
    (wheel,) = scene.dist.glob("*.whl")
    wheel.write_bytes(b"")
    refused(scene, f"publish: {wheel.name}: FAILED; make the release again", sums=False)
    for name in ("SHA256SUMS", "vcuda-chart-*.tgz", "vcuda-image-*.cdx.json"):
        (path,) = scene.dist.glob(name)
        path.unlink()
        refused(scene, "; make the release ", sums=False)


def test_a_registry_that_is_away_is_one_sentence(scene: Scene) -> None:
    done = replace(scene, registry=replace(scene.registry, address="127.0.0.1:9")).publish()
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("publish: 127.0.0.1:9 does not say what vcuda:")
    assert len(done.stderr.splitlines()) == 1


def refused(scene: Scene, sentence: str, *, sums: bool = True) -> None:
    if sums:
        write_sums(scene.dist)
    done = scene.publish()
    assert (done.returncode, done.stdout) == (1, "")
    assert sentence in done.stderr
    assert len(done.stderr.splitlines()) == 1


def write_sums(dist: Path) -> None:
    """Of the files that were changed, too."""
    names = sorted(path.name for path in dist.iterdir() if not path.name.startswith("SHA256SUMS"))
    done = subprocess.run(["sha256sum", *names], cwd=dist, capture_output=True, check=True)
    (dist / "SHA256SUMS").write_bytes(done.stdout)
