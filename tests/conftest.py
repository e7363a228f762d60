"""Fixtures that every test may use."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# On a busy machine every example may be slow, which says nothing of the code. CI tries the same examples each time, so
# that what it finds is of the change; others are found wherever else the tests run.
settings.register_profile("vcuda", settings(), deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("vcuda-ci", settings.get_profile("vcuda"), derandomize=True)
settings.load_profile("vcuda-ci" if os.environ.get("CI") else "vcuda")


@pytest.fixture
def short_tmp() -> Iterator[Path]:
    """A directory whose path leaves room for unix sockets (107 bytes)."""
    path = Path(tempfile.mkdtemp(prefix="vc-", dir="/tmp"))
    yield path
    shutil.rmtree(path, ignore_errors=True)
