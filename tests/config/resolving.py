"""Settings as a command line gives them, without a process of its own.

In: a program, flags by name, the whole environment, a file. Out: `Effective`, as a command of that program gets it.
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from deviceplugin.config.command import Effective, Program, SettingsCommand

Tree = TypeVar("Tree")


def resolve(
    program: Program[Tree], *, flags: Mapping[str, str], env: Mapping[str, str], file: Path | None = None
) -> Effective[Tree]:
    given = {**flags, **({"config": str(file)} if file else {})}
    command = SettingsCommand(program.command, program=program)
    with _environment(env), command.make_context(program.command, [f"--{each}={given[each]}" for each in given]) as ctx:
        return command.effective(ctx)


@contextmanager
def _environment(env: Mapping[str, str]) -> Iterator[None]:
    before = dict(os.environ)
    os.environ.clear()
    os.environ.update(env)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
