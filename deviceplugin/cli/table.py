"""Tables to kubectl's habits, and lists of rows as a table, JSON, YAML or names: what the commands print.

In: columns and rows of text; or rows of the view, how one kind of row is shown, and the options of every list. Out:
lines on standard output. Headings are in upper case, three spaces are between columns, there are no lines. On a
terminal that is too narrow, a reason goes below its row, whole columns are left out, those that are needed least first
and never the one that the rows are sorted by, and then text is cut, the last column first; names lose their middle
before a number goes, and stay different; numbers, which stand at the right of their column, are cut only if nothing
else is left. A terminal also gets the sum of the rows, and bars and
colours where there is room; pipes and files get every column, and the sum with --sum. Ages, amounts of memory and
shares of a whole become short text, a dash if they are not known. The words of `--sort-by` are the keys of `sorts`.
JSON and YAML are the rows themselves under `items`, with the field names of `model.cluster_view`.
"""

import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import itemgetter
from types import MappingProxyType
from typing import Any, Generic, TypeVar

import click
import msgspec

from deviceplugin.cli.command import Function, output_option
from deviceplugin.cli.terminal import (
    Colour,
    bar,
    clean,
    cut,
    has_colours,
    is_terminal,
    load_colour,
    painted,
    say,
    shortened_apart,
    show_document,
    show_lines,
    terminal_width,
)
from deviceplugin.model.units import bytes_text, memory_of, memory_text
from deviceplugin.structs import replace

GAP = "   "
_LEAST_CUT, _MOST_CUT, _LEAST_NAME = 12, 6, 20


class Column(msgspec.Struct, frozen=True):
    """`rank` 0 stays always; of the others the highest goes first. `wide`: only with -o wide.

    `if_any`: only if a row has something in it. `below`: where the table does not fit, its text stands below the row.
    `is_name`: it may lose its middle before a number goes.
    """

    heading: str
    rank: int = 0
    wide: bool = False
    right: bool = False
    if_any: bool = False
    below: bool = False
    is_name: bool = False


class Look(msgspec.Struct, frozen=True):
    """The part of a cell that has a colour."""

    part: str
    colour: Colour


Looks = Mapping[tuple[int, int], Look]
"""By row and column."""


def table(
    columns: Sequence[Column],
    rows: Iterable[Sequence[str]],
    *,
    headers: bool = True,
    wide: bool = False,
    width: int | None = None,
    looks: Looks = MappingProxyType({}),
) -> list[str]:
    """`width` of a terminal; None for as much as it takes."""
    given = list(rows)
    shown = _shown(columns, given, wide=wide)
    cells = [[clean(row[at]) or "-" for at in shown] for row in given]
    kept = [columns[at] for at in shown]
    room = None if wide else width
    widths = _widths(kept, cells, headers=headers)
    beside = [at for at, column in enumerate(kept) if not column.below]
    is_below = room is not None and len(beside) < len(kept) and _total(widths) > room
    order = _fitting(kept, widths, room, [*beside] if is_below else [*range(len(kept))])
    if room is not None:
        widths = _narrowed(kept, widths, order, room)
        cells = _with_short_names(kept, cells, widths)
    drawn = _Drawn([kept[at] for at in order], [widths[at] for at in order], room)
    lines = [drawn.line([column.heading for column in drawn.columns])] if headers else []
    under = sorted({*range(len(kept))}.difference(beside)) if is_below else []
    for number, row in enumerate(cells):
        colours = [looks.get((number, shown[at])) for at in order] if looks else ()
        lines.append(drawn.line([row[at] for at in order], colours))
        full = [at for at in under if given[number][shown[at]].strip()]
        lines += [drawn.below(row[at], looks.get((number, shown[at]))) for at in full]
    return lines


def _shown(columns: Sequence[Column], rows: Sequence[Sequence[str]], *, wide: bool) -> list[int]:
    return [
        at
        for at, column in enumerate(columns)
        if (wide or not column.wide) and (not column.if_any or any(row[at].strip() for row in rows))
    ]


def _widths(columns: Sequence[Column], cells: Sequence[Sequence[str]], *, headers: bool) -> list[int]:
    return [
        max([len(column.heading) if headers else 0, *(len(row[at]) for row in cells)])
        for at, column in enumerate(columns)
    ]


def fits(columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int, *, rank: int) -> bool:
    """Whether all columns up to this rank have room."""
    kept = [at for at, each in enumerate(columns) if each.rank <= rank and not (each.wide or each.below or each.if_any)]
    return _total([max(len(columns[at].heading), *(len(row[at]) for row in rows)) for at in kept]) <= width


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + len(GAP) * (len(widths) - 1)


def _fitting(columns: Sequence[Column], widths: Sequence[int], width: int | None, order: list[int]) -> list[int]:
    """Indices of the columns that stay. The last one may be cut where it is text, if it is not one of the least.

    Names are shortened after the columns that are needed least are gone.
    """
    needed_by = list(widths)
    while width is not None and order:
        last = order[-1]
        is_whole = columns[last].right or columns[last].rank > _MOST_CUT
        least = needed_by[last] if is_whole else min(needed_by[last], _LEAST_CUT)
        needed = _total([needed_by[at] for at in order]) - needed_by[last] + least
        optional = [at for at in order if columns[at].rank]
        if needed <= width or not optional:
            break
        next_out = max(optional, key=lambda at: (columns[at].rank, at))
        names = [at for at in order if columns[at].is_name and needed_by[at] > _LEAST_NAME]
        if names and columns[next_out].rank <= _MOST_CUT:
            for at in names:
                needed_by[at] = _LEAST_NAME
        else:
            order.remove(next_out)
    return order


def _with_short_names(columns: Sequence[Column], cells: list[list[str]], widths: Sequence[int]) -> list[list[str]]:
    found = [list(row) for row in cells]
    for at, column in enumerate(columns):
        if column.is_name and any(len(row[at]) > widths[at] for row in cells):
            short = shortened_apart({row[at] for row in cells}, widths[at])
            for row in found:
                row[at] = short[row[at]]
    return found


def _narrowed(columns: Sequence[Column], widths: Sequence[int], order: Sequence[int], width: int) -> list[int]:
    """Text takes the room that numbers leave: the last column gives first, then the widest."""
    found = list(widths)
    excess = _total([widths[at] for at in order]) - width
    text = [at for at in order if not columns[at].right]
    for at in sorted(text, key=lambda at: (at == order[-1], widths[at]), reverse=True):
        given = min(max(excess, 0), max(found[at] - _LEAST_CUT, 0))
        found[at] -= given
        excess -= given
    return found


class _Drawn(msgspec.Struct, frozen=True):
    """The columns that stay with their widths; `room`: of a line, None for as much as it takes."""

    columns: Sequence[Column]
    widths: Sequence[int]
    room: int | None

    def line(self, cells: Sequence[str], looks: Sequence[Look | None] = ()) -> str:
        padded = [
            cell.rjust(width) if column.right else cut(cell, width).ljust(width)
            for cell, column, width in zip(cells, self.columns, self.widths, strict=True)
        ]
        line = GAP.join(padded).rstrip()
        plain = self._cut(line)
        if plain != line or not any(looks):
            return plain
        return GAP.join(map(_painted, padded, looks)).rstrip()

    def below(self, text: str, look: Look | None) -> str:
        line = self._cut(f"  {text}")
        return line if look is None else painted(line, look.colour)

    def _cut(self, line: str) -> str:
        return line if self.room is None else cut(line, self.room)


def _painted(cell: str, look: Look | None) -> str:
    """A cell that was cut has no part of it that was looked for, and is painted whole."""
    if look is None:
        return cell
    part = look.part if look.part in cell else cell.strip()
    return cell.replace(part, painted(part, look.colour), 1)


UNKNOWN = "-"
TOTAL = "TOTAL"
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
    """Bytes as one word, such as 512MiB or 3.5GiB: programs divide tables at spaces."""
    return UNKNOWN if size is None else bytes_text(size).replace(" ", "")


def blocks(count: int) -> str:
    return memory_text(count).replace(" ", "")


def blocks_of(part: int, whole: int) -> str:
    return memory_of(part, whole, "/").replace(" ", "")


def cores(count: float | None) -> str:
    """With a decimal below 10, as on the page."""
    if count is None:
        return UNKNOWN
    return f"{_rounded(count, 10):g}" if count < 10 else f"{_rounded(count):.0f}"


def _rounded(number: float, scale: int = 1) -> float:
    """Half goes up, as on the page."""
    return math.floor(number * scale + 0.5) / scale


def of(part: str, whole: str) -> str:
    return f"{part}/{whole}"


def percent(part: float | None) -> str:
    return UNKNOWN if part is None else f"{_rounded(part):.0f}%"


def seconds(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:.1f}s" if value < 100 else f"{value:.0f}s"


def total(values: Iterable[float | None]) -> float | None:
    """The sum of what is known; None if nothing is."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def known(value: float | None) -> tuple[float] | None:
    """The key of a `Sort`."""
    return None if value is None else (value,)


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
    """A column with the text that a row has in it; `text` also gets the time of the answer.

    `bar`: how full a bar before the text is, 0 to 1; None if that is not known. `bar_colour`: of a bar that is so full.
    `colour`: of the text. `summed`: the row of the sum has a text here. `sort`: the order that goes by this column; in
    it the column stays.
    """

    text: Callable[[Row, float], str]
    bar: Callable[[Row], float | None] | None = None
    bar_colour: Callable[[float], Colour] = load_colour
    colour: Callable[[Row], Colour | None] | None = None
    summed: bool = False
    sort: str = ""


_BARS = ((10, 99), (6, 99), (6, 4))
"""Cells of a bar, and up to which rank columns must have room beside such bars; without room there are no bars."""


class Kind(msgspec.Struct, Generic[Row], frozen=True):
    """How one kind of row is shown; the words of `sorts` are those of the view's queries too.

    `total`: a row that is the sum of others, None if they have none. `omitted`: fields that are not in its JSON, as
    nobody asked for them.
    """

    what: str
    columns: tuple[Field[Row], ...]
    sorts: Mapping[str, Sort[Row]]
    name: Callable[[Row], str]
    total: Callable[[Sequence[Row]], Row | None] | None = None
    omitted: tuple[str, ...] = ()

    def ordered(self, rows: Sequence[Row], sort_by: str = "", *, reverse: bool = False) -> list[Row]:
        """By `sort_by`, then by the usual order, the first of `sorts`. What is not known comes last."""
        usual = next(iter(self.sorts.values()))
        chosen = self.sorts[sort_by] if sort_by else usual
        found = _sorted(rows, usual.key, descending=usual.largest_first)
        return _sorted(found, chosen.key, descending=chosen.largest_first != reverse)

    def without(self, heading: str) -> "Kind[Row]":
        """The same without one column."""
        return replace(self, columns=tuple(each for each in self.columns if each.heading != heading))

    def sorted_by(self, word: str) -> "Kind[Row]":
        """The same with the column of that order in every width."""
        chosen = [replace(each, rank=0) if word and each.sort == word else each for each in self.columns]
        return replace(self, columns=tuple(chosen))

    def lines(
        self, rows: Sequence[Row], *, at: float, headers: bool, wide: bool, width: int | None, total: str = ""
    ) -> list[str]:
        """`total`: the name of a last line that is the sum of these rows; empty for none."""
        cells = [[each.text(row, at) for each in self.columns] for row in rows]
        made = [*rows]
        summed = self.total(rows) if total and self.total is not None and len(rows) > 1 else None
        if summed is not None:
            made.append(summed)
            cells.append(self._sum_cells(summed, at, total))
        filled = self._bars(made, cells, width) if is_terminal() and width is not None and not wide else {}
        looks = self._looks(made, cells, filled) if has_colours() else {}
        return table(self.columns, cells, headers=headers, wide=wide, width=width, looks=looks)

    def documents(self, rows: Sequence[Row]) -> list[dict[str, object]]:
        found: list[dict[str, object]] = msgspec.to_builtins(list(rows))
        for document in found if self.omitted else ():
            for field in self.omitted:
                document.pop(field, None)
        return found

    def _sum_cells(self, row: Row, at: float, name: str) -> list[str]:
        return [name, *(each.text(row, at) if each.summed else " " for each in self.columns[1:])]

    def _bars(
        self, rows: Sequence[Row], cells: list[list[str]], width: int
    ) -> dict[tuple[int, int], tuple[str, float]]:
        """Puts bars before the texts, as wide as there is room for; by row and column what was drawn."""
        parts = {
            (number, at): part
            for at, field in enumerate(self.columns)
            if field.bar is not None
            for number, row in enumerate(rows)
            if (part := field.bar(row)) is not None and cells[number][at].strip()
        }
        widest = {at: max(len(line[at]) for line in cells) for _, at in parts}
        for length, rank in _BARS if parts else ():
            drawn = {place: bar(part, length) for place, part in parts.items()}
            trial = [[*line] for line in cells]
            for (number, at), text in drawn.items():
                trial[number][at] = f"{text} {cells[number][at]:>{widest[at]}}"
            if fits(self.columns, trial, width, rank=rank):
                cells[:] = trial
                return {place: (text, parts[place]) for place, text in drawn.items()}
        return {}

    def _looks(
        self, rows: Sequence[Row], cells: Sequence[Sequence[str]], bars: Mapping[tuple[int, int], tuple[str, float]]
    ) -> dict[tuple[int, int], Look]:
        found = {place: Look(text, self.columns[place[1]].bar_colour(part)) for place, (text, part) in bars.items()}
        for at, field in enumerate(self.columns):
            for number, row in enumerate(rows) if field.colour is not None else ():
                colour = field.colour(row) if field.colour is not None else None
                if colour is not None and cells[number][at].strip():
                    found[number, at] = Look(cells[number][at], colour)
        return found


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
    total: bool = False


def listed(sorts: Iterable[str] = ()) -> Callable[[Function], Function]:
    """Gives a click command the options of a list, and its function one `shape`."""

    def decorate(command: Function) -> Function:
        @functools.wraps(command)
        def call(*args: Any, **given: Any) -> Any:  # noqa: ANN401 - click's
            shape = {name: given.pop(name) for name in Shape.__struct_fields__ if name in given}
            return command(*args, shape=Shape(**shape), **given)

        decorated: Any = click.option("--no-headers", is_flag=True, help="Print tables without headings.")(call)
        decorated = click.option(
            "--sum",
            "total",
            is_flag=True,
            help="Print the sum of the rows also where the table goes into a pipe or file.",
        )(decorated)
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


class Nothing(msgspec.Struct, frozen=True):
    """What is said where there are no rows. `filters`: what was asked for, by option; `where`: in which namespaces.

    `instead`: what to do if nothing was filtered away.
    """

    filters: Mapping[str, str | bool] = MappingProxyType({})
    where: str = ""
    instead: str = ""

    def sentence(self, what: str) -> str:
        given = [name if value is True else f"{name} {value}" for name, value in self.filters.items() if value]
        place = f" in {self.where}" * bool(self.where)
        if given:
            return f"No {what}{place} match {' '.join(given)}."
        return f"No {what}{place} found{'; ' if self.instead else ''}{self.instead}."


_NOTHING = Nothing()


def show_rows(kind: Kind[Row], rows: Sequence[Row], *, at: float, shape: Shape, nothing: Nothing = _NOTHING) -> None:
    """Prints the rows; where there are none, a sentence on standard error."""
    if shape.output in ("json", "yaml"):
        show_document({"at": at, "items": kind.documents(rows)}, shape.output)
    elif shape.output == "name":
        names = list(filter(None, map(kind.name, rows)))
        if names:
            say(*names)
    elif not rows:
        click.echo(clean(nothing.sentence(kind.what)), err=True)
    else:
        headers, wide, width = not shape.no_headers, shape.output == "wide", terminal_width()
        total = TOTAL if shape.total or is_terminal() else ""
        shown = kind.sorted_by(shape.sort_by)
        show_lines(*shown.lines(rows, at=at, headers=headers, wide=wide, width=width, total=total))
