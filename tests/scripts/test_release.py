"""`scripts/release` on a clone: the same bytes twice, files that work on their own, and no release of a wrong tree."""

import hashlib
import json
import os
import re
import sys
import tarfile
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from scripts import manifests
from tests.scripts.released import ROOT, VERSION, WHEEL, WHO, Release, release_files, sh

CHART = f"vcuda-chart-{VERSION}.tgz"
PACKAGES = f"vcuda-{VERSION}.cdx.json"
NEXT = "0.2.0"
FILES = {WHEEL, CHART, PACKAGES, f"vcuda-{VERSION}.tar.gz", "SHA256SUMS"}


pytestmark = pytest.mark.thorough


@pytest.fixture
def files(released: Release) -> Path:
    return released.files


@pytest.fixture
def other(released: Release, tmp_path: Path) -> Path:
    """A clone that may be changed."""
    tree = tmp_path / "other"
    assert sh("git", "clone", "--quiet", "--shared", released.tree, tree, at=released.tree).returncode == 0
    return tree


def test_two_runs_on_one_commit_give_the_same_bytes(released: Release, tmp_path: Path) -> None:
    """The second makes no plugin, which takes longest and is an archive like the others."""
    os.utime(released.tree / "daemonset/chart/values.yaml")
    umask = os.umask(0o077)
    try:
        done = release_files(released.tree, "--no-image", tmp_path / "again", TZ="Asia/Tokyo", LC_ALL="C")
    finally:
        os.umask(umask)
    assert done.returncode == 0, done.stderr
    again = {path.name: path.read_bytes() for path in (tmp_path / "again").iterdir()}
    assert set(again) == FILES
    sums = set(again.pop("SHA256SUMS").splitlines())
    assert again == {name: (released.files / name).read_bytes() for name in again}
    assert sums < set((released.files / "SHA256SUMS").read_bytes().splitlines())


def test_the_checksums_are_those_of_the_files(files: Path) -> None:
    lines = {line[66:]: line[:64] for line in (files / "SHA256SUMS").read_text().splitlines()}
    names = {path.name for path in files.iterdir()}
    assert names > FILES
    assert lines == {name: hashlib.sha256((files / name).read_bytes()).hexdigest() for name in names - {"SHA256SUMS"}}


def test_the_chart_is_the_one_of_the_tree(files: Path, tmp_path: Path) -> None:
    with tarfile.open(files / CHART) as archive:
        archive.extractall(tmp_path, filter="data")
    helm = manifests.helm()
    flag = "--set=webhook.certificates.patch=true,agent.names=all"  # without them each rendering makes a CA and a token
    assert manifests.render(helm, flag, chart=files / CHART) == manifests.render(helm, flag, chart=manifests.CHART)
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
    _commit(tree)
    assert sh("git", "tag", f"v{VERSION}", at=tree).returncode == 0


def _other_version(tree: Path) -> None:
    chart = tree / "daemonset/chart/Chart.yaml"
    chart.write_text(chart.read_text().replace(f"\nversion: {VERSION}", "\nversion: 9.9.9"))
    _commit(tree)


def _in_the_way(tree: Path) -> None:
    (tree.parent / "out").mkdir()


def test_what_is_no_release_is_refused_in_one_sentence(other: Path) -> None:
    sentences: dict[Callable[[Path], None], str] = {
        _change: "M LICENSE is not committed; commit, or give --uncommitted",
        _add: "?? new.txt is not committed; commit, or give --uncommitted",
        _tag: f"the commit has the tag v9.9.9 and the version {VERSION}",
        _tag_without_its_changes: f"is not in CHANGELOG.md; run towncrier build --version {VERSION}",
        _other_version: f"Chart.yaml has version 9.9.9 and pyproject.toml version {VERSION}",
        _in_the_way: "exists; remove it, or name another directory",
    }
    begin = sh("git", "rev-parse", "HEAD", at=other).stdout.strip()
    found = {}
    for harm, sentence in sentences.items():
        harm(other)
        done = release_files(other, "--no-image", other.parent / "out")
        assert (done.returncode, done.stdout) == (1, "")
        assert (done.stderr[:9], done.stderr[-1], done.stderr.count("\n")) == ("release: ", "\n", 1)
        found[harm] = done.stderr.rstrip()[-len(sentence) :]
        undo = f"git reset --quiet --hard {begin} && git clean --quiet --force && git tag | xargs -r git tag --delete"
        assert sh("sh", "-c", undo, at=other).returncode == 0
    assert found == sentences


def test_what_fails_leaves_nothing_in_the_way(other: Path) -> None:
    out = other.parent / "out"
    done = release_files(other, out, BUILDAH="false")
    assert (done.returncode, done.stdout) == (1, "")
    assert "Successfully packaged chart" in done.stderr
    assert [path.name for path in other.parent.iterdir()] == [other.name]


def test_a_tag_of_this_version_is_a_release(other: Path, tmp_path: Path) -> None:
    """CHANGELOG.md has its section."""
    for tag in (f"v{VERSION}", "vcuda-demo", "latest"):
        assert sh("git", "tag", tag, at=other).returncode == 0
    done = release_files(other, "--no-image", tmp_path / "first")
    assert done.returncode == 0, done.stderr
    assert sh("git", "tag", "v9.9.9", at=other).returncode == 0
    done = release_files(other, "--no-image", tmp_path / "second")
    assert done.returncode == 0, done.stderr


def test_the_changelog_of_a_version_is_its_files_of_changes(other: Path) -> None:
    old = (other / "CHANGELOG.md").read_text()
    for path in (other / "changes").glob("*.*.md"):
        path.unlink()
    for name, text in (("gpus.added", "More GPUs,\nof all kinds.\n"), ("a.fixed", "A `crash`."), ("b.added", "Less.")):
        (other / f"changes/{name}.md").write_text(text)
    _run_towncrier(other)
    new = (other / "CHANGELOG.md").read_text()
    before, added, after = re.split(r"^## 0\.2\.0 \([-0-9]{10}\)\n(.*?)(?=^## )", new, flags=re.MULTILINE | re.DOTALL)
    assert added == "\n### Added\n\n- Less.\n- More GPUs,\n  of all kinds.\n\n### Fixed\n\n- A `crash`.\n\n"
    assert before.rstrip() + "\n\n" + after == old
    assert {path.name for path in (other / "changes").iterdir()} == {"README.md", "template.md"}


def _run_towncrier(tree: Path) -> None:
    """As docs/development.md says."""
    towncrier = Path(sys.executable).with_name("towncrier")
    assert sh("git", "add", "--all", at=tree).returncode == 0
    done = sh(towncrier, "build", "--version", NEXT, "--yes", at=tree)
    assert done.returncode == 0, done.stderr
    _commit(tree)


def _commit(tree: Path) -> None:
    assert sh("git", "add", "--all", at=tree).returncode == 0
    assert sh("git", "commit", "--quiet", "-m", "other", at=tree, **WHO).returncode == 0


def test_the_changes_here_have_a_kind() -> None:
    kinds = {
        each["directory"] for each in tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["towncrier"]["type"]
    }
    files = [path.name for path in (ROOT / "changes").iterdir() if path.name not in ("README.md", "template.md")]
    assert [name for name in files if not re.fullmatch(rf"[a-z0-9-]+\.({'|'.join(kinds)})\.md", name)] == []
