"""`scripts/release` on a clone: the same bytes twice, files that work on their own, and no release of a wrong tree."""

import hashlib
import json
import os
import re
import subprocess
import sys
import tarfile
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from scripts import manifests
from tests.daemonset.chart import helm_program

ROOT = Path(__file__).resolve().parents[2]
VERSION = "0.1.0"
WHEEL = f"vcuda-{VERSION}-py3-none-any.whl"
CHART = f"vcuda-chart-{VERSION}.tgz"
PACKAGES = f"vcuda-{VERSION}.cdx.json"
FILES = {WHEEL, CHART, PACKAGES, f"vcuda-{VERSION}.tar.gz", "SHA256SUMS"}
_WHO = {f"GIT_{who}_{what}": "release@example.org" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}


def sh(*words: str | Path, at: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    command = list(map(str, words))
    return subprocess.run(
        command, cwd=at, env={**os.environ, **environment}, capture_output=True, text=True, check=False
    )


def clone(to: Path) -> Path:
    """The commit that is checked out, with what is not committed yet as a commit on it."""
    assert sh("git", "clone", "--quiet", "--shared", ROOT, to, at=ROOT).returncode == 0
    difference = subprocess.run(["git", "diff", "--binary", "HEAD"], cwd=ROOT, capture_output=True, check=True).stdout
    if difference:
        subprocess.run(["git", "apply", "--index", "-"], cwd=to, input=difference, check=True)
        assert sh("git", "commit", "--quiet", "-m", "the tree under test", at=to, **_WHO).returncode == 0
    return to


def release(tree: Path, *words: str | Path) -> subprocess.CompletedProcess[str]:
    return sh(sys.executable, "-m", "scripts.release", "--no-image", *words, at=tree, PYTHONPATH="")


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return clone(tmp_path_factory.mktemp("release") / "tree")


@pytest.fixture(scope="module")
def files(tree: Path, request: pytest.FixtureRequest) -> Path:
    helm_program(request)
    out = tree.parent / "first"
    done = release(tree, out)
    assert done.returncode == 0, done.stderr
    return out


def test_two_runs_on_one_commit_give_the_same_bytes(tree: Path, files: Path) -> None:
    os.utime(tree / "daemonset/chart/values.yaml")
    again = tree.parent / "again"
    done = sh(
        "sh",
        "-c",
        f"umask 077; exec {sys.executable} -m scripts.release --no-image {again}",
        at=tree,
        TZ="Asia/Tokyo",
        LC_ALL="C",
    )
    assert done.returncode == 0, done.stderr
    assert {path.name: path.read_bytes() for path in again.iterdir()} == {
        path.name: path.read_bytes() for path in files.iterdir()
    }
    assert {path.name for path in files.iterdir()} == FILES


def test_the_checksums_are_those_of_the_files(files: Path) -> None:
    lines = {line[66:]: line[:64] for line in (files / "SHA256SUMS").read_text().splitlines()}
    assert lines == {name: hashlib.sha256((files / name).read_bytes()).hexdigest() for name in FILES - {"SHA256SUMS"}}


def test_the_chart_is_the_one_of_the_tree(files: Path, tmp_path: Path) -> None:
    with tarfile.open(files / CHART) as archive:
        archive.extractall(tmp_path, filter="data")
    helm = manifests.helm()
    assert manifests.render(helm, chart=files / CHART) == manifests.render(helm, chart=manifests.CHART)
    assert (tmp_path / "vcuda/README.md").read_text() == (manifests.CHART / "README.md").read_text()


def test_the_list_of_packages_is_the_lock_file(files: Path) -> None:
    document = json.loads((files / PACKAGES).read_text())
    assert document["metadata"]["component"]["name"] == "vcuda"
    listed = {(each["name"], each["version"]) for each in document["components"]}
    locked = set(re.findall(r"^([\w.-]+)==([\w.]+)", (ROOT / "requirements.lock").read_text(), re.MULTILINE))
    assert listed == locked
    assert all(reference["hashes"] for each in document["components"] for reference in each["externalReferences"])


def _change(tree: Path) -> None:
    (tree / "LICENSE").write_text("other")


def _add(tree: Path) -> None:
    (tree / "new.txt").write_text("")


def _tag(tree: Path) -> None:
    assert sh("git", "tag", "v9.9.9", at=tree).returncode == 0


def _tag_without_its_changes(tree: Path) -> None:
    (tree / "changes/a-thing.added.md").write_text("A thing.")
    assert sh("git", "add", "--all", at=tree).returncode == 0
    assert sh("git", "commit", "--quiet", "-m", "other", at=tree, **_WHO).returncode == 0
    assert sh("git", "tag", f"v{VERSION}", at=tree).returncode == 0


def _other_version(tree: Path) -> None:
    chart = tree / "daemonset/chart/Chart.yaml"
    chart.write_text(chart.read_text().replace(f"\nversion: {VERSION}", "\nversion: 9.9.9"))
    assert sh("git", "commit", "--quiet", "-am", "other", at=tree, **_WHO).returncode == 0


def _in_the_way(tree: Path) -> None:
    (tree.parent / "out").mkdir()


@pytest.mark.parametrize(
    ("harm", "sentence"),
    [
        (_change, "M LICENSE is not committed; commit, or give --uncommitted"),
        (_add, "?? new.txt is not committed; commit, or give --uncommitted"),
        (_tag, f"the commit has the tag v9.9.9 and the version {VERSION}"),
        (_tag_without_its_changes, "is not in CHANGELOG.md; run towncrier build --version 0.1.0"),
        (_other_version, f"Chart.yaml has version 9.9.9 and pyproject.toml version {VERSION}"),
        (_in_the_way, "exists; remove it, or name another directory"),
    ],
)
def test_what_is_no_release_is_refused_in_one_sentence(
    tree: Path, tmp_path: Path, harm: Callable[[Path], None], sentence: str
) -> None:
    assert sh("git", "clone", "--quiet", "--shared", tree, tmp_path / "other", at=tree).returncode == 0
    harm(tmp_path / "other")
    done = release(tmp_path / "other", tmp_path / "out")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("release: ")
    assert sentence in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_tag_of_this_version_is_a_release(tree: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    assert sh("git", "clone", "--quiet", "--shared", tree, other, at=tree).returncode == 0
    _write_changelog(other)
    for tag in (f"v{VERSION}", "vcuda-demo", "latest"):
        assert sh("git", "tag", tag, at=other).returncode == 0
    done = release(other, tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert WHEEL in done.stdout


def test_the_changelog_of_a_version_is_its_files_of_changes(tree: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    assert sh("git", "clone", "--quiet", "--shared", tree, other, at=tree).returncode == 0
    old = (other / "CHANGELOG.md").read_text()
    for path in (other / "changes").glob("*.*.md"):
        path.unlink()
    for name, text in (("gpus.added", "More GPUs,\nof all kinds.\n"), ("a.fixed", "A `crash`."), ("b.added", "Less.")):
        (other / f"changes/{name}.md").write_text(text)
    _write_changelog(other)
    new = (other / "CHANGELOG.md").read_text()
    before, added, after = re.split(r"^## 0\.1\.0 \([-0-9]{10}\)\n(.*?)(?=^## )", new, flags=re.MULTILINE | re.DOTALL)
    assert added == "\n### Added\n\n- Less.\n- More GPUs,\n  of all kinds.\n\n### Fixed\n\n- A `crash`.\n\n"
    assert before.rstrip() + "\n\n" + after == old
    assert {path.name for path in (other / "changes").iterdir()} == {"README.md", "template.md"}


def _write_changelog(tree: Path) -> None:
    """As docs/development.md says."""
    towncrier = Path(sys.executable).with_name("towncrier")
    assert sh("git", "add", "--all", at=tree).returncode == 0
    done = sh(towncrier, "build", "--version", VERSION, "--yes", at=tree)
    assert done.returncode == 0, done.stderr
    assert sh("git", "commit", "--quiet", "--all", "-m", "Release", at=tree, **_WHO).returncode == 0


def test_the_changes_here_have_a_kind() -> None:
    kinds = {
        each["directory"] for each in tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["towncrier"]["type"]
    }
    files = [path.name for path in (ROOT / "changes").iterdir() if path.name not in ("README.md", "template.md")]
    assert [name for name in files if not re.fullmatch(rf"[a-z0-9-]+\.({'|'.join(kinds)})\.md", name)] == []
