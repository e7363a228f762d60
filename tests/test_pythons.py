"""Looking for the Pythons of this machine ends no run of the tests, whatever may not be read."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.pythons import pythons

NOBODY = 65534


@contextmanager
def an_ordinary_user() -> Iterator[None]:
    """Root reads everything."""
    if os.geteuid():
        yield
        return
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


def program(path: Path, *, status: int = 0, mode: int = 0o755) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\nexit {status}\n")
    path.chmod(mode)
    return path


def test_a_python_is_found_beside_what_may_not_be_read(short_tmp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    short_tmp.chmod(0o755)
    on_path = program(short_tmp / "bin/python3.12")
    program(short_tmp / "bin/python3.13", status=1)
    pyenv = short_tmp / "pyenv/versions"
    below = program(pyenv / "3.11.7/bin/python3.11")
    program(pyenv / "3.12.1/bin/python3.12", mode=0o644)
    program(pyenv / "3.12.2/bin/python3.12").write_text("#!/no/such/interpreter\n")
    monkeypatch.setenv("PATH", f"{short_tmp}/bin")
    monkeypatch.setenv("PYENV_ROOT", f"{pyenv.parent}")
    series = ["3.11", "3.12", "3.13", "3.14"]
    assert pythons(series) == [below, on_path]
    for hidden in (pyenv, pyenv.parent):
        hidden.chmod(0)
        with an_ordinary_user():
            assert pythons(series) == [on_path]
        hidden.chmod(0o755)
    monkeypatch.setenv("PYENV_ROOT", f"/{'x' * 300}")
    assert pythons(series) == [on_path]
