"""The files of one release of the tree under test, with the plugin of kubectl and without the image.

In: the commit that is checked out, and what is not committed yet. Out: a clone, and the files that `scripts/release`
made of it. Made once for each run of pytest, whichever of its workers asks first.
"""

import fcntl
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
VERSION = "0.1.0"
WHEEL = f"vcuda-{VERSION}-py3-none-any.whl"
URL = f"https://example.org/vcuda/releases/download/v{VERSION}"
WHO = {f"GIT_{who}_{what}": "release@example.org" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}


@dataclass(frozen=True)
class Release:
    """`tree` is a clone: change it in a clone of your own."""

    tree: Path
    files: Path


def sh(*words: str | Path, at: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    command = list(map(str, words))
    return subprocess.run(
        command, cwd=at, env={**os.environ, **environment}, capture_output=True, text=True, check=False
    )


def release_files(tree: Path, *words: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """What scripts/release does in `tree`, with the .venv that is there."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return sh(tree / "scripts/release_files", *words, at=tree, PATH=path, **environment)


def clone(to: Path) -> Path:
    """The commit that is checked out, with what is not committed yet as a commit on it."""
    assert sh("git", "clone", "--quiet", "--shared", ROOT, to, at=ROOT).returncode == 0
    difference = subprocess.run(["git", "diff", "--binary", "HEAD"], cwd=ROOT, capture_output=True, check=True).stdout
    if difference:
        subprocess.run(["git", "apply", "--index", "-"], cwd=to, input=difference, check=True)
        assert sh("git", "commit", "--quiet", "-m", "the tree under test", at=to, **WHO).returncode == 0
    return to


def made_once(folder: Path) -> Release:
    """In `folder`, which all workers share."""
    folder.mkdir(exist_ok=True)
    made = Release(folder / "tree", folder / "files")
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (made.files / "SHA256SUMS").exists():
            done = release_files(clone(made.tree), "--no-image", "--url", f"{URL}/", made.files)
            assert done.returncode == 0, done.stderr
    return made
