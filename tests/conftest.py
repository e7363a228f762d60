"""Fixtures that every test may use."""

import os
import re
import shutil
import signal
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.examples import register_profiles
from tests.lanes import LaneReport, mark

register_profiles()
signal.signal(signal.SIGINT, signal.default_int_handler)  # a background process may have been started without it

_LONGEST_PART = 40


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--lane-report", type=Path, help="write what this lane came to into this file (scripts/lanes.py)")


def pytest_configure(config: pytest.Config) -> None:
    if file := config.getoption("--lane-report"):
        config.pluginmanager.register(LaneReport(file), "lane-report")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    mark(items)


def pytest_make_parametrize_id(val: object) -> str | None:
    """The id of a text or of bytes is its printable beginning. pytest numbers equal ids."""
    if not isinstance(val, str | bytes):
        return None
    text = val if isinstance(val, str) else val[:_LONGEST_PART].decode("latin-1")
    return re.sub(r"[^ -~]+", "?", text[:_LONGEST_PART])


@pytest.fixture(autouse=True)
def undisturbed(request: pytest.FixtureRequest) -> Iterator[None]:
    """On a busy machine, a test that measures real time and its processes run first, where the kernel permits it."""
    if "realtime" not in request.keywords:
        yield
        return
    with suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    yield
    os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


@pytest.fixture
def short_tmp() -> Iterator[Path]:
    """A directory whose path leaves room for unix sockets (107 bytes)."""
    path = Path(tempfile.mkdtemp(prefix="vc-", dir="/tmp"))
    yield path
    shutil.rmtree(path, ignore_errors=True)
