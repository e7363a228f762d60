"""The pages of the repository, as git lists them: what lies beside them and is ignored is no page."""

import subprocess
from pathlib import Path

import pytest

from scripts.manifests import ROOT


@pytest.fixture(scope="session")
def git_pages() -> list[Path]:
    listed = subprocess.run(["git", "ls-files", "*.md"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [path for name in listed.split() if (path := ROOT / name).is_file()]
