"""How a command ends that did not do what was asked: the sentence on standard error, the status, and JSON for programs.

In: the arguments, and the error. Out: a click exception with its status. Where the arguments ask for JSON or YAML,
standard output has one document `{"error": SENTENCE}` in the place of the answer, so that a program that reads it
finds JSON in every case; the sentence is on standard error as always.
"""

import json
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from difflib import get_close_matches
from typing import IO, Any

import click
import yaml

_DOCUMENTS = ("json", "yaml")


class Refused(click.ClickException):
    """A VcudaError as the end of the program: one line, status 1."""

    exit_code = 1

    def show(self, file: IO[Any] | None = None) -> None:
        click.echo(f"vcuda: {self.message}", file=file or sys.stderr)


class Bug(Refused):
    """Any other error; its status is not the one of a VcudaError."""

    exit_code = os.EX_SOFTWARE


def clearer(error: click.ClickException) -> click.ClickException:
    """Click's error with the closest option first, and with all options that are missing instead of the first."""
    if isinstance(error, click.NoSuchOption) and error.possibilities:
        closest = " or ".join(error.possibilities[:2])
        return click.UsageError(f"No such option '{error.option_name}'; did you mean {closest}?", error.ctx)
    if isinstance(error, click.MissingParameter) and error.ctx is not None:
        missing = [
            each.get_error_hint(error.ctx)
            for each in error.ctx.command.params
            if each.required and each.name not in error.ctx.params
        ]
        if len(missing) > 1:
            return click.UsageError(f"Missing {', '.join(missing)}.", error.ctx)
    return error


def closest(word: str, known: Sequence[str]) -> str:
    """The known words that are most like it, for the end of a sentence; empty where none is."""
    found = get_close_matches(word, known, n=2)
    return f"; did you mean {' or '.join(found)}?" if found else ""


def report(error: click.ClickException, arguments: Sequence[str]) -> None:
    """The document for programs, where they asked for one."""
    form = _asked_form(arguments)
    if not form:
        return
    document = {"error": error.format_message()}
    text = json.dumps(document) if form == "json" else yaml.safe_dump(document, allow_unicode=True).rstrip()
    with suppress(OSError):  # a full disk or a closed pipe; the sentence still goes to standard error
        click.echo(text)


def _asked_form(arguments: Sequence[str]) -> str:
    """What -o or --output says, as far as it can be told from a command line that may be wrong."""
    given = list(arguments[: arguments.index("--")] if "--" in arguments else arguments)
    found = ""
    for word, following in zip(given, [*given[1:], ""], strict=True):
        if word in ("-o", "--output"):
            found = following
        elif word.startswith("--output="):
            found = word.removeprefix("--output=")
        elif word.startswith("-o"):
            found = word.removeprefix("-o").removeprefix("=")
    return found if found in _DOCUMENTS else ""
