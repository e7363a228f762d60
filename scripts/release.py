"""Makes the files of a release: wheel, source archive, chart, image, plugin, lists of packages, checksums, signature.

In: the commit that is checked out, with the version of pyproject.toml; Helm (scripts/helm/build), scripts/image. Out:
the files in one new directory. Invariant: two runs on one commit give the same bytes, but for the signature: times are
those of the commit, members of archives are sorted and belong to nobody. Not here: publishing (scripts/publish).
Run as scripts/release.
"""

import argparse
import hashlib
import io
import os
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from pathlib import Path

import yaml

from scripts import image_packages, manifests, plugin
from scripts.archive import archive
from scripts.oci_archive import ArchiveError
from scripts.signatures import SignatureError, sign_file

ROOT = Path(__file__).resolve().parent.parent
CHART = ROOT / "daemonset" / "chart"
SUMS = "SHA256SUMS"


class ReleaseError(Exception):
    """Nothing can be released; the message is one sentence."""


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="release", description="Makes the files of a release.")
    parser.add_argument("out", type=Path, nargs="?", default=ROOT / "dist", help="a new directory (default: dist)")
    parser.add_argument("--uncommitted", action="store_true", help="also of a tree that differs from its commit")
    parser.add_argument("--no-image", action="store_true", help="without the image, which needs buildah and its base")
    parser.add_argument("--url", help="where the files will be fetched: makes the plugin of kubectl too")
    parser.add_argument("--only-sign", action="store_true", help="sign the checksums in OUT, which another run made")
    sign = parser.add_mutually_exclusive_group()
    sign.add_argument("--key", type=Path, help="sign the checksums with this key file of cosign")
    sign.add_argument("--keyless", action="store_true", help="sign the checksums with the identity of the CI workflow")
    given = parser.parse_args(arguments)
    if given.only_sign and not (given.key or given.keyless):
        parser.error("--only-sign needs --key or --keyless")
    try:
        if not given.only_sign:
            if not given.uncommitted:
                check_tree(version())
            release(given.out, with_image=not given.no_image, url=given.url)
        if given.key or given.keyless:
            sign_file(given.out / SUMS, given.key)
    except (ReleaseError, ArchiveError, SignatureError, OSError, subprocess.CalledProcessError) as error:
        print(f"release: {_sentence(error)}", file=sys.stderr)
        return 1
    print(f"{given.out}:")
    print((given.out / SUMS).read_text(), end="")
    return 0


def version() -> str:
    """Of pyproject.toml; ReleaseError where the chart has another."""
    found = str(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"])
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    for field in ("version", "appVersion"):
        if chart[field] != found:
            raise ReleaseError(f"Chart.yaml has {field} {chart[field]} and pyproject.toml version {found}")
    return found


def check_tree(found: str) -> None:
    """A release is what a commit has; where the commit has a tag `vX`, X is the version."""
    if changed := _git("status", "--porcelain"):
        raise ReleaseError(f"{changed.splitlines()[0].strip()} is not committed; commit, or give --uncommitted")
    tags = [tag for tag in _git("tag", "--points-at", "HEAD").split() if tag[:1] == "v" and tag[1:2].isdecimal()]
    if tags and f"v{found}" not in tags:
        raise ReleaseError(f"the commit has the tag {tags[0]} and the version {found}")
    if tags:
        check_changes(found)


def check_changes(found: str) -> None:
    """CHANGELOG.md says what the version brings, and nothing is left that it does not say."""
    left = sorted(path.name for path in (ROOT / "changes").iterdir() if path.name not in ("README.md", "template.md"))
    if left:
        raise ReleaseError(f"changes/{left[0]} is not in CHANGELOG.md; run towncrier build --version {found}")
    headings = [line.split() for line in (ROOT / "CHANGELOG.md").read_text().splitlines() if line.startswith("## ")]
    if found not in [words[1] for words in headings]:
        raise ReleaseError(f"CHANGELOG.md has no section for version {found}; run towncrier build --version {found}")


def release(out: Path, *, with_image: bool, url: str | None) -> None:
    """All files but the signature, in a directory that must not exist yet."""
    if out.exists():
        raise ReleaseError(f"{out} exists; remove it, or name another directory")
    found, at = version(), int(_git("log", "-1", "--format=%ct"))
    out.mkdir(parents=True)
    environment = {**os.environ, "SOURCE_DATE_EPOCH": str(at)}
    for target in ("wheel", "sdist"):
        command = [sys.executable, "-m", "hatchling", "build", "--target", target, "--directory", str(out.resolve())]
        _run(command, environment)
    (out / f"vcuda-chart-{found}.tgz").write_bytes(_chart(found, at))
    packages = out / f"vcuda-{found}.cdx.json"
    _run([*_CYCLONEDX, "--output-file", str(packages.resolve())], environment)
    if url:
        wheel = out / f"vcuda-{found}-py3-none-any.whl"
        plugin.write_archives(wheel, ROOT / "requirements.lock", out, found, at)
        (out / plugin.MANIFEST).write_text(plugin.manifest(out, found, url.rstrip("/")))
    if with_image:
        archive_ = out / f"vcuda-image-{found}.tar"
        _image(archive_)
        (out / f"vcuda-image-{found}.cdx.json").write_text(image_packages.document(archive_, found))
    write_sums(out)


def write_sums(out: Path) -> None:
    """Of everything that lies there but the checksums and their signature."""
    files = [path for path in sorted(out.iterdir()) if not path.name.startswith(SUMS)]
    sums = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files]
    (out / SUMS).write_text("".join(sums))


_CYCLONEDX = (
    *(sys.executable, "-m", "cyclonedx_py", "requirements", str(ROOT / "requirements.lock")),
    *("--pyproject", str(ROOT / "pyproject.toml"), "--output-reproducible", "--output-format", "JSON"),
)
"""The packages of the lock file, with their hashes: those of the image, and those that the wheel was tested with."""


def _chart(found: str, at: int) -> bytes:
    """What `helm package` makes, which has the time of the call in it."""
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        _run([manifests.helm(), "package", str(CHART), "--destination", str(folder)], dict(os.environ))
        return _repacked((folder / f"vcuda-{found}.tgz").read_bytes(), at)


def _repacked(given: bytes, at: int) -> bytes:
    with tarfile.open(fileobj=io.BytesIO(given), mode="r:gz") as opened:
        files = {each.name: found.read() for each in opened if (found := opened.extractfile(each)) is not None}
    return archive(files, at)


def _image(to: Path) -> None:
    """Its progress, of some minutes, goes to stderr."""
    done = subprocess.run([ROOT / "scripts" / "image", to.resolve()], stdout=sys.stderr, check=False)
    if done.returncode:
        raise ReleaseError("scripts/image could not make the image, see above; --no-image makes the other files")


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()


def _run(command: list[str], environment: dict[str, str]) -> None:
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        last = (done.stderr.strip() or done.stdout.strip() or "no output").splitlines()[-1]
        raise ReleaseError(f"{Path(command[0]).name} {command[1]} failed: {last}")


def _sentence(error: Exception) -> str:
    if isinstance(error, subprocess.CalledProcessError):
        return f"{' '.join(map(str, error.cmd))} failed with status {error.returncode}"
    return str(error)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
