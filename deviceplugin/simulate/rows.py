"""A table of comma-separated values, read strictly.

In: the bytes of a file. Out: rows whose fields are asked for by column. Whatever is wrong is one ParseError that names
the file, the line and the column, because such files are written by scripts and are long.
"""

import csv
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from deviceplugin.errors import ParseError

if TYPE_CHECKING:
    from _csv import Reader

LARGEST = 10**9
_OTHER_SEPARATORS = {";": "semicolons", "\t": "tabs"}


@dataclass(frozen=True, slots=True)
class Row:
    """One line below the header."""

    file: str
    line: int
    fields: dict[str, str]

    def text(self, column: str) -> str:
        return self.fields.get(column, "").strip()

    def number(self, column: str, *, most: int = LARGEST) -> int:
        written = self.text(column)
        if not (written.isascii() and written.isdigit() and len(written) <= 12 and int(written) <= most):
            raise self.wrong(column, f"{_shown(written)} is no whole number from 0 to {most}")
        return int(written)

    def wrong(self, column: str, what: str) -> ParseError:
        return ParseError(f"{self.file} line {self.line}, column {column}: {what}")


def read_rows(content: bytes, *, file: str, columns: Sequence[str]) -> Iterator[Row]:
    """`columns` must be there, in any order, others may be. Lines of empty fields, from spreadsheets, do not count."""
    lines = csv.reader(io.StringIO(_text(content, file), newline=""), strict=True)
    header = [name.strip() for name in _next(lines, file) or ()]
    if not any(header):
        raise ParseError(f"{file} is empty; it needs a first line with the columns {', '.join(columns)}")
    if len(header) == 1 and (other := next((each for each in _OTHER_SEPARATORS if each in header[0]), None)):
        raise ParseError(f"{file} line 1 is separated by {_OTHER_SEPARATORS[other]}; write commas between the columns")
    if missing := [name for name in columns if name not in header]:
        raise ParseError(f"{file} line 1 has no column {' and no column '.join(missing)}; it has {', '.join(header)}")
    if twice := [name for name in columns if header.count(name) > 1]:
        raise ParseError(f"{file} line 1 has column {twice[0]} twice")
    count = 0
    while (fields := _next(lines, file)) is not None:
        if not any(fields):
            continue
        if len(fields) != len(header):
            at = f"column {header[len(fields)]} is missing" if len(fields) < len(header) else "the rest has no column"
            raise ParseError(
                f"{file} line {lines.line_num} has {len(fields)} fields and the header {len(header)}: {at}"
            )
        count += 1
        yield Row(file, lines.line_num, dict(zip(header, fields, strict=True)))
    if not count:
        raise ParseError(f"{file} has no line below its header")


def _text(content: bytes, file: str) -> str:
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ParseError(f"{file} line {line} is no UTF-8 text") from None


def _next(lines: "Reader", file: str) -> list[str] | None:
    try:
        return next(lines, None)
    except csv.Error as error:
        raise ParseError(f"{file} line {lines.line_num} is no line of comma-separated values: {error}") from None


def _shown(text: str) -> str:
    return repr(text[:40]) if text else "nothing"
