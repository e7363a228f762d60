"""What standard output is: how wide, which characters it can write, and whether it shows colours.

In: the environment and the stream. Out: text that fits there. Text from outside cannot move the cursor: control
characters become `?`. Colours are for a terminal alone, and for none if NO_COLOR is set (no-color.org) or TERM is dumb;
they are put around text whose width was counted before. Lines and documents go out here; ConfigError if they cannot.
"""

import enum
import errno
import json
import os
import re
import sys
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

import click
import yaml

from deviceplugin.errors import ConfigError
from deviceplugin.observe.glyphs import ASCII, BOXES, Glyphs


class Colour(enum.Enum):
    """Parameters of the control sequence SGR (ECMA-48)."""

    RED = "31"
    GREEN = "32"
    YELLOW = "33"


_SGR = re.compile(r"\x1b\[[0-9;]*m")


def is_terminal() -> bool:
    """Python has no standard output where the caller closed it."""
    return sys.stdout is not None and sys.stdout.isatty() and os.environ.get("TERM", "") not in ("", "dumb")


def has_colours() -> bool:
    return is_terminal() and not os.environ.get("NO_COLOR")


def painted(text: str, colour: Colour) -> str:
    return f"\x1b[{colour.value}m{text}\x1b[0m"


def load_colour(part: float) -> Colour:
    """Of a bar that is so full, as nvitop and htop have it."""
    return Colour.GREEN if part < 0.75 else Colour.YELLOW if part < 0.9 else Colour.RED


def even_colour(_part: float) -> Colour:
    """Of a bar that may well be full."""
    return Colour.GREEN


def terminal_width() -> int | None:
    """Of standard output; COLUMNS wins; None for a pipe or a file."""
    given = os.environ.get("COLUMNS", "")
    if given.isascii() and given.isdecimal() and int(given[:5]) > 0:
        return int(given[:5])
    try:
        return os.get_terminal_size(sys.stdout.fileno()).columns or None
    except (OSError, ValueError, AttributeError):
        return None


def glyphs() -> Glyphs:
    """What standard output can write."""
    return BOXES if clean(BOXES.full + BOXES.fork) == BOXES.full + BOXES.fork else ASCII


_EIGHTHS = " ▏▎▍▌▋▊▉"


def bar(part: float, cells: int) -> str:
    """In eighths of a cell where standard output can write them. Empty only for nothing, and full only for all."""
    signs = glyphs()
    if clean(_EIGHTHS) != _EIGHTHS:
        return signs.bar(round(part * 1000), 1000, cells)
    most = 8 * cells
    filled = most if part >= 1 else 0 if part <= 0 else min(max(round(part * most), 1), most - 1)
    whole, rest = divmod(filled, 8)
    return (signs.full * whole + _EIGHTHS[rest] * bool(rest)).ljust(cells, signs.empty)


def clean(text: str) -> str:
    """In one line, and in characters that standard output can write."""
    if text.isascii() and text.isprintable():  # nearly every cell; a list may have hundreds of thousands
        return text
    printable = "".join(each if each.isprintable() else "?" for each in text)
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    return printable.encode(encoding, errors="replace").decode(encoding)


def shortened(name: str, width: int, end: int | None = None) -> str:
    """Loses its middle: names of nodes and pods differ at their end, too. `end`: how much of that stays."""
    if len(name) <= width:
        return name
    end = max(0, (width - 1) // 2) if end is None else end
    return f"{name[: max(0, width - 1 - end)]}{_mark()}{name[len(name) - end :]}"


def shortened_apart(names: Collection[str], width: int) -> dict[str, str]:
    """As `shortened`, with as much of the end as keeps most of them different."""
    ends = ((width - 1) // 2, (width - 1) // 4, 0)
    tried = ({name: shortened(name, width, end) for name in names} for end in ends)
    return max(tried, key=lambda found: len({*found.values()}))


def cut(line: str, width: int) -> str:
    """A line that is too long loses its colours too."""
    if len(line) <= width:
        return line
    if "\x1b" in line:
        plain = _SGR.sub("", line)
        return line if len(plain) <= width else cut(plain, width)
    return line[: max(0, width - 1)].rstrip() + _mark()


def _mark() -> str:
    return "…" if clean("…") == "…" else "~"


def say(*lines: str) -> None:
    """On standard output, for people: text of others in a line cannot move the cursor, nor begin another line."""
    show_lines(*map(clean, lines))


def show_lines(*lines: str) -> None:
    """As they are: what others wrote in them is clean already, and colours stay."""
    _write("\n".join(lines))


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
