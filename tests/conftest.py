"""Fixtures that every test may use."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# On a busy machine every example may be slow, which says nothing of the code.
settings.register_profile("vcuda", settings(), deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("vcuda")


@pytest.fixture
def short_tmp() -> Iterator[Path]:
    """A directory whose path leaves room for unix sockets (107 bytes)."""
    path = Path(tempfile.mkdtemp(prefix="vc-", dir="/tmp"))
    yield path
    shutil.rmtree(path, ignore_errors=True)
