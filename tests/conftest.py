"""Fixtures that every test may use."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.examples import register_profiles

register_profiles()


@pytest.fixture
def short_tmp() -> Iterator[Path]:
    """A directory whose path leaves room for unix sockets (107 bytes)."""
    path = Path(tempfile.mkdtemp(prefix="vc-", dir="/tmp"))
    yield path
    shutil.rmtree(path, ignore_errors=True)
