"""scripts/image twice, each time from nothing: what one commit gives does not depend on when, where and by whom.

In: two clones, with other names, umasks, time zones and times of their files. Out: the same bytes. The base is the same
one, made of Debian's packages. Thorough: each build takes some minutes.
"""

import hashlib
import os
import subprocess
import time
from pathlib import Path

import pytest

from tests.e2e.installed.images import image_builder
from tests.e2e.installed.unpacked import architectures
from tests.scripts.released import clone

pytestmark = [pytest.mark.thorough, pytest.mark.timeout(3600)]


def built(tree: Path, *, umask: str, environment: dict[str, str]) -> Path:
    """Without layers of another build, and while no other tree builds."""
    out = tree.parent / f"{tree.name}.tar"
    script = f"umask {umask} && git clone --quiet --shared . {tree} && exec {tree}/scripts/image {out}"
    command = ["flock", environment["LOCK"], "sh", "-c", script]
    done = subprocess.run(
        command, cwd=tree.parent / "source", env=os.environ | environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return out


def test_two_builds_of_one_commit_are_the_same_bytes(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    base = image_builder(request)
    clone(tmp_path / "source")
    first = built(tmp_path / "first", umask="022", environment={**base, "TZ": "UTC"})
    time.sleep(1.1)  # another second, in which nothing else differs
    other = {**base, "TZ": "Asia/Tokyo", "LC_ALL": "C", "PYTHONHASHSEED": "7"}
    second = built(tmp_path / "a-folder-of-another-length", umask="077", environment=other)
    assert architectures(first) == ["amd64", "arm64"]
    assert hashlib.sha256(first.read_bytes()).hexdigest() == hashlib.sha256(second.read_bytes()).hexdigest()
