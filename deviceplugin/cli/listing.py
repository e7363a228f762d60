"""A list of rows as a table, JSON, YAML or names: what `nodes`, `pods` and `top` print.

In: rows of the view, and how one kind of row is shown. Out: text. The words of `--sort-by` are the keys of `sorts`.
JSON and YAML are the rows themselves under `items`, with the field names of `model.cluster_view`.
"""

import errno
import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from operator import itemgetter
from pathlib import Path
from typing import Any, Generic, TypeVar

import click
import msgspec
import yaml

from deviceplugin.cli.table import Column, clean, table, terminal_width
from deviceplugin.errors import ConfigError

Row = TypeVar("Row")
Sortable = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Sort(Generic[Row]):
    """`key` is None where it is not known. `largest_first` is what is expected of numbers.

    `server`: the word for it in the view's queries; `by`: the part of the view's row that this row is, and is compared.
    `of_use`: only agents know it.
    """

    key: Callable[[Row], Sortable | None]
    largest_first: bool = True
    server: str = ""
    by: str = ""
    of_use: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Field(Column, Generic[Row]):
    """A column with the text that a row has in it; `text` also gets the time of the answer."""

    text: Callable[[Row, float], str]


@dataclass(frozen=True, slots=True)
class Kind(Generic[Row]):
    """How one kind of row is shown."""

    what: str
    columns: tuple[Field[Row], ...]
    sorts: Mapping[str, Sort[Row]]
    name: Callable[[Row], str]

    def ordered(self, rows: Sequence[Row], sort_by: str, *, reverse: bool = False) -> list[Row]:
        """By `sort_by`, then by the usual order. What is not known comes last."""
        usual = next(iter(self.sorts.values()))
        chosen = self.sorts[sort_by]
        found = _sorted(rows, usual.key, descending=usual.largest_first)
        return _sorted(found, chosen.key, descending=chosen.largest_first != reverse)

    def without(self, heading: str) -> "Kind[Row]":
        """The same without one column."""
        return replace(self, columns=tuple(each for each in self.columns if each.heading != heading))

    def lines(self, rows: Sequence[Row], *, at: float, headers: bool, wide: bool, width: int | None) -> list[str]:
        cells = [[each.text(row, at) for each in self.columns] for row in rows]
        return table(self.columns, cells, headers=headers, wide=wide, width=width)


def _sorted(rows: Iterable[Row], key: Callable[[Row], Sortable | None], *, descending: bool) -> list[Row]:
    keyed = [(key(row), row) for row in rows]
    known = [(found, row) for found, row in keyed if found is not None]
    known.sort(key=itemgetter(0), reverse=descending)
    return [row for _, row in known] + [row for found, row in keyed if found is None]


@dataclass(frozen=True, slots=True)
class Shape:
    """What the options of the output say."""

    output: str = "table"
    no_headers: bool = False


def show_rows(kind: Kind[Row], rows: Sequence[Row], *, at: float, shape: Shape) -> None:
    """Prints the rows; where there are none, a sentence on standard error as kubectl has it."""
    if shape.output in ("json", "yaml"):
        show_document({"at": at, "items": msgspec.to_builtins(list(rows))}, shape.output)
    elif shape.output == "name":
        names = list(filter(None, map(kind.name, rows)))
        if names:
            say(*names)
    elif not rows:
        click.echo(f"No {kind.what} found.", err=True)
    else:
        wide = shape.output == "wide"
        lines = kind.lines(rows, at=at, headers=not shape.no_headers, wide=wide, width=terminal_width())
        say(*lines)


def say(*lines: str) -> None:
    """On standard output, for people: text of others in a line cannot move the cursor, nor begin another line."""
    _write("\n".join(map(clean, lines)))


def _write(text: str) -> None:
    """ConfigError if it cannot be written. A closed pipe is for click."""
    try:
        click.echo(text)
    except OSError as error:
        if error.errno == errno.EPIPE:
            raise
        _drop_what_is_buffered()
        raise ConfigError(f"the answer cannot be written to standard output: {error.strerror}") from None


def _drop_what_is_buffered() -> None:
    """Else Python writes it again when it ends, fails again, and makes the status 120 (Py_FinalizeEx)."""
    with suppress(OSError, ValueError), Path(os.devnull).open("wb") as nowhere:
        os.dup2(nowhere.fileno(), sys.stdout.fileno())


def show_document(document: object, output: str) -> None:
    if output == "json":
        _write(json.dumps(document, indent=2))
    else:
        text = yaml.safe_dump(document, allow_unicode=True, sort_keys=False)
        if not all(map(str.isprintable, text.splitlines())):  # such as marks that turn the direction of writing
            text = yaml.safe_dump(document, sort_keys=False)
        _write(text.rstrip())
