"""Puts one check under libFuzzer (atheris): `python -m tests.container.fuzz.cgroup corpus -max_total_time=60`.

In: libFuzzer's own arguments. A check takes the bytes and returns when the parser has kept its word; whatever it raises
is a finding, with the traceback and the input on stderr. Coverage is measured in what is imported under `instrumented`,
so a parser that was imported before is fuzzed blindly.
"""

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager

import atheris


def instrumented(*packages: str) -> AbstractContextManager[None]:
    """For the imports of the parser, and of what it parses with."""
    manager: AbstractContextManager[None] = atheris.instrument_imports(include=["deviceplugin", *packages])
    return manager


def run(check: Callable[[bytes], None]) -> None:
    """Ends the process."""
    atheris.Setup(sys.argv, atheris.instrument_func(check))
    atheris.Fuzz()


def check_sentence(refusal: Exception) -> None:
    """A refusal is user interface: one line."""
    assert str(refusal)
    assert "\n" not in str(refusal)
