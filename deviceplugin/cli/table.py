"""Tables to kubectl's habits, and lists of rows as a table, JSON, YAML or names: what the commands print.

In: columns and rows of text; or rows of the view, how one kind of row is shown, and the options of every list. Out:
lines on standard output. Headings are in upper case, three spaces are between columns, there are no lines and no
colours. On a terminal that is too narrow, whole columns are left out, those that are needed least first, and then text
is cut, the last column first; numbers, which stand at the right of their column, are cut only if nothing else is left.
Pipes and files get every column. Text from outside cannot move the cursor: control characters become `?`. Ages, amounts
of memory and shares of a whole become short text, a dash if they are not known. The words of `--sort-by` are the keys
of `sorts`. JSON and YAML are the rows themselves under `items`, with the field names of `model.cluster_view`.
"""

import errno
import functools
import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from operator import itemgetter
from pathlib import Path
from typing import Any, Generic, TypeVar

import click
import msgspec
import yaml

from deviceplugin.cli.command import Function, output_option
from deviceplugin.errors import ConfigError
from deviceplugin.model.units import BLOCK_BYTES
from deviceplugin.structs import replace

GAP = "   "
_LEAST_CUT = 12


class Column(msgspec.Struct, frozen=True):
    """`rank` 0 stays always; of the others the highest goes first. `wide`: only with -o wide.

    `if_any`: only if a row has something in it.
    """

    heading: str
    rank: int = 0
    wide: bool = False
    right: bool = False
    if_any: bool = False


def table(
    columns: Sequence[Column],
    rows: Iterable[Sequence[str]],
    *,
    headers: bool = True,
    wide: bool = False,
    width: int | None = None,
) -> list[str]:
    """`width` of a terminal; None for as much as it takes."""
    given = list(rows)
    shown = [
        at
        for at, column in enumerate(columns)
        if (wide or not column.wide) and (not column.if_any or any(row[at] for row in given))
    ]
    cells = [[clean(row[at]) or "-" for at in shown] for row in given]
    kept = [columns[at] for at in shown]
    widths = [
        max([len(column.heading) if headers else 0, *(len(row[at]) for row in cells)]) for at, column in enumerate(kept)
    ]
    order = _fitting(kept, widths, None if wide else width)
    if width is not None and not wide:
        widths = _narrowed(kept, widths, order, width)
    lines = [[kept[at].heading for at in order]] if headers else []
    lines += [[row[at] for at in order] for row in cells]
    drawn = [_line(line, [kept[at] for at in order], [widths[at] for at in order]) for line in lines]
    return drawn if width is None or wide else [cut(line, width) for line in drawn]


def _fitting(columns: Sequence[Column], widths: Sequence[int], width: int | None) -> list[int]:
    """Indices of the columns that stay. The last one may be cut where it is text."""
    order = list(range(len(columns)))
    while width is not None and order:
        last = order[-1]
        least = min(widths[last], _LEAST_CUT) if not columns[last].right else widths[last]
        needed = sum(widths[at] for at in order[:-1]) + least + len(GAP) * (len(order) - 1)
        optional = [at for at in order if columns[at].rank]
        if needed <= width or not optional:
            break
        order.remove(max(optional, key=lambda at: (columns[at].rank, at)))
    return order


def _narrowed(columns: Sequence[Column], widths: Sequence[int], order: Sequence[int], width: int) -> list[int]:
    """Text takes the room that numbers leave: the last column gives first, then the widest."""
    found = list(widths)
    excess = sum(widths[at] for at in order) + len(GAP) * (len(order) - 1) - width
    text = [at for at in order if not columns[at].right]
    for at in sorted(text, key=lambda at: (at == order[-1], widths[at]), reverse=True):
        given = min(max(excess, 0), max(found[at] - _LEAST_CUT, 0))
        found[at] -= given
        excess -= given
    return found


def _line(cells: Sequence[str], columns: Sequence[Column], widths: Sequence[int]) -> str:
    padded = [
        cell.rjust(width) if column.right else cut(cell, width).ljust(width)
        for cell, column, width in zip(cells, columns, widths, strict=True)
    ]
    return GAP.join(padded).rstrip()


def clean(text: str) -> str:
    """In one line, and in characters that standard output can write."""
    if text.isascii() and text.isprintable():  # nearly every cell; a list may have hundreds of thousands
        return text
    printable = "".join(each if each.isprintable() else "?" for each in text)
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    return printable.encode(encoding, errors="replace").decode(encoding)


def cut(line: str, width: int) -> str:
    if len(line) <= width:
        return line
    mark = clean("…") if clean("…") == "…" else "~"
    return line[: max(0, width - 1)].rstrip() + mark


def terminal_width() -> int | None:
    """Of standard output; COLUMNS wins; None for a pipe or a file."""
    given = os.environ.get("COLUMNS", "")
    if given.isascii() and given.isdecimal() and int(given[:5]) > 0:
        return int(given[:5])
    try:
        return os.get_terminal_size(sys.stdout.fileno()).columns or None
    except (OSError, ValueError, AttributeError):
        return None


UNKNOWN = "-"
_MINUTE, _HOUR, _DAY = 60, 3600, 86400
_YEAR = 365 * _DAY


def age(seconds: float) -> str:
    """As kubectl writes it: 119s, 5m30s, 42m, 3h15m, 47h, 5d3h, 89d, 3y200d."""
    whole = int(seconds)
    if whole < 0:
        return "0s"
    if whole < 2 * _MINUTE:
        return f"{whole}s"
    if whole < 10 * _MINUTE:
        return _two(whole, _MINUTE, "m", 1, "s")
    if whole < 3 * _HOUR:
        return f"{whole // _MINUTE}m"
    if whole < 8 * _HOUR:
        return _two(whole, _HOUR, "h", _MINUTE, "m")
    if whole < 2 * _DAY:
        return f"{whole // _HOUR}h"
    if whole < 8 * _DAY:
        return _two(whole, _DAY, "d", _HOUR, "h")
    if whole < 2 * _YEAR:
        return f"{whole // _DAY}d"
    return _two(whole, _YEAR, "y", _DAY, "d") if whole < 8 * _YEAR else f"{whole // _YEAR}y"


def _two(whole: int, large: int, large_sign: str, small: int, small_sign: str) -> str:
    rest = whole % large // small
    return f"{whole // large}{large_sign}" + (f"{rest}{small_sign}" if rest else "")


def memory(size: float | None) -> str:
    """Bytes as 512Mi or 3.5Gi."""
    if size is None:
        return UNKNOWN
    if size < 1 << 30:
        return f"{round(size / (1 << 20))}Mi"
    gib = size / (1 << 30)
    return f"{gib:.0f}Gi" if gib == int(gib) or gib >= 100 else f"{gib:.1f}Gi"


def blocks(count: int) -> str:
    return memory(count * BLOCK_BYTES)


def of(part: str, whole: str) -> str:
    return f"{part}/{whole}"


def percent(part: float | None) -> str:
    return UNKNOWN if part is None else f"{part:.0f}%"


def seconds(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:.1f}s" if value < 100 else f"{value:.0f}s"


def total(values: Iterable[float | None]) -> float | None:
    """The sum of what is known; None if nothing is."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None


Row = TypeVar("Row")
Sortable = tuple[Any, ...]


class Sort(msgspec.Struct, Generic[Row], frozen=True):
    """`key` is None where it is not known. `largest_first` is what is expected of numbers.

    `by`: the part of the view's row that this row is, and is compared. `of_use`: only agents know it.
    """

    key: Callable[[Row], Sortable | None]
    largest_first: bool = True
    by: str = ""
    of_use: bool = False


class Field(Column, Generic[Row], frozen=True, kw_only=True):
    """A column with the text that a row has in it; `text` also gets the time of the answer."""

    text: Callable[[Row, float], str]


class Kind(msgspec.Struct, Generic[Row], frozen=True):
    """How one kind of row is shown; the words of `sorts` are those of the view's queries too."""

    what: str
    columns: tuple[Field[Row], ...]
    sorts: Mapping[str, Sort[Row]]
    name: Callable[[Row], str]

    def ordered(self, rows: Sequence[Row], sort_by: str = "", *, reverse: bool = False) -> list[Row]:
        """By `sort_by`, then by the usual order, the first of `sorts`. What is not known comes last."""
        usual = next(iter(self.sorts.values()))
        chosen = self.sorts[sort_by] if sort_by else usual
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


class Shape(msgspec.Struct, frozen=True):
    """What the options of a list say; `sort_by` is empty for the usual order."""

    output: str
    no_headers: bool
    sort_by: str = ""
    reverse: bool = False


def listed(sorts: Iterable[str] = ()) -> Callable[[Function], Function]:
    """Gives a click command the options of a list, and its function one `shape`."""

    def decorate(command: Function) -> Function:
        @functools.wraps(command)
        def call(*args: Any, **given: Any) -> Any:  # noqa: ANN401 - click's
            shape = {name: given.pop(name) for name in Shape.__struct_fields__ if name in given}
            return command(*args, shape=Shape(**shape), **given)

        decorated: Any = click.option("--no-headers", is_flag=True, help="Print tables without headings.")(call)
        decorated = output_option("table", "wide", "json", "yaml", "name")(decorated)
        if words := list(sorts):
            choice = click.Choice(words)
            decorated = click.option("--reverse", is_flag=True, help="Reverse the order.")(decorated)
            decorated = click.option(
                "--sort-by", type=choice, default="name", show_default=True, help="Order of rows."
            )(decorated)
        found: Function = decorated
        return found

    return decorate


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
