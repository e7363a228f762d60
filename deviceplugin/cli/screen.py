"""A page that refreshes itself on a terminal, with the keys of top, less and k9s, until q is pressed.

In: a function that makes the page again, and one that hears of keys. Out: the terminal as it was before, whatever ended
the page. The first page may fail as a command does; later failures stand in the last line, and the page stays. Keys are
heard while an answer is awaited.
"""

import asyncio
import os
import signal
import sys
import termios
import tty
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from shutil import get_terminal_size

import msgspec

from deviceplugin.cli.terminal import cut
from deviceplugin.errors import VcudaError

INTERVAL_S = 2.0
_LOST = "lost"
_ENTER, _ERASE = ("\r", "\n"), ("\x7f", "\b")
_KEYS = {"\x1b[A": "k", "\x1b[B": "j", "\x1b[5~": "page-up", "\x1b[6~": "page-down", "\x1b[H": "home", "\x1b[F": "end"}
_KEYS |= {"\x1bOA": "k", "\x1bOB": "j", "\x1b": "escape", " ": "refresh", "r": "refresh", "\x06": "page-down"}
_KEYS |= {"\x02": "page-up", "h": "?", "\x1b[1~": "home", "\x1b[4~": "end", "\t": "tab", "\x03": "q", "\x04": "q"}
SCROLLING = (
    ("q", "quit"),
    ("j, k, PgUp, PgDn, Home, End", "scroll"),
    ("space", "refresh now"),
    ("h or ?", "this help"),
)


class Page(msgspec.Struct, frozen=True):
    """`title` and `heading` stay where they are while the body scrolls."""

    body: Sequence[str]
    title: str = ""
    heading: Sequence[str] = ()


Fetch = Callable[[int], Awaitable[Page]]
"""Makes a page that is so wide."""


class _State(msgspec.Struct):
    """What is on the screen. `typed`: the text after `/`, None if none is being typed."""

    page: Page
    offset: int = 0
    error: str = ""
    helping: bool = False
    typed: str | None = None
    events: asyncio.Queue[str] = msgspec.field(default_factory=asyncio.Queue)


async def watch(
    fetch: Fetch,
    *,
    first: Fetch | None = None,
    handle: Callable[[str], bool] = lambda key: False,
    find: Callable[[str], bool] | None = None,
    keys: Sequence[tuple[str, str]] = (),
    interval_s: float = INTERVAL_S,
) -> None:
    """`first` makes a page that is there sooner; the page follows at once.

    `handle` hears of every key that is not one of `SCROLLING`, `find` of a text that was typed after `/`; each is true
    if the page must be made again.
    """
    state = _State(await (first or fetch)(get_terminal_size().columns))
    with _heard(state.events), _own_screen():
        refreshing = asyncio.create_task(_refresh(state, fetch)) if first is not None else None
        now = asyncio.get_running_loop().time
        due = now() + interval_s
        while True:
            _draw(_shown(state, get_terminal_size(), keys))
            try:
                async with asyncio.timeout_at(due):
                    key = await state.events.get()
            except TimeoutError:
                key = "refresh"
            if find is not None and _is_typing(state, key):
                wanted = key in _ENTER and find(_taken(state))
            else:
                key = _KEYS.get(key, key)
                if key in ("q", _LOST):
                    break
                closes_help = state.helping and key == "escape"
                wanted = key == "refresh" or (not closes_help and handle(key))
                _scroll(state, key, get_terminal_size())
            if key in ("refresh", "drawn"):
                due = now() + interval_s
            if wanted and (refreshing is None or refreshing.done() or key != "refresh"):
                if refreshing is not None:
                    refreshing.cancel()
                refreshing = asyncio.create_task(_refresh(state, fetch))
        if refreshing is not None:
            refreshing.cancel()
            with suppress(asyncio.CancelledError):
                await refreshing


def _is_typing(state: _State, key: str) -> bool:
    """Whether the key belongs to a text after `/`, which gets it."""
    if state.typed is None:
        state.typed = "" if key == "/" and not state.helping else None
        return state.typed is not None
    if key == "\x1b":
        state.typed = None
    elif key in _ERASE:
        state.typed = state.typed[:-1]
    elif len(key) == 1 and key.isprintable():
        state.typed += key
    else:
        return key in _ENTER
    return True


def _taken(state: _State) -> str:
    text, state.typed = state.typed or "", None
    return text


async def _refresh(state: _State, fetch: Fetch) -> None:
    try:
        state.page, state.error = await fetch(get_terminal_size().columns), ""
    except VcudaError as error:
        state.error = error.message
    state.events.put_nowait("drawn")


@contextmanager
def _own_screen() -> Iterator[None]:
    """The terminal's second screen without a cursor, as less and top use it (xterm's control sequences, DECSET)."""
    sys.stdout.write("\x1b[?1049h\x1b[?25l")
    try:
        yield
    finally:
        sys.stdout.write("\x1b[?25h\x1b[?1049l")
        sys.stdout.flush()


def _draw(lines: Sequence[str]) -> None:
    """Each line over the one before, in one piece: a screen that is cleared first flickers."""
    sys.stdout.write("\x1b[H" + "\r\n".join(f"{line}\x1b[K" for line in lines) + "\x1b[J")
    sys.stdout.flush()


def _shown(state: _State, size: os.terminal_size, keys: Sequence[tuple[str, str]]) -> list[str]:
    if state.helping:
        named = [*keys, *SCROLLING]
        width = max(len(name) for name, _ in named)
        lines = ["Keys:", "", *(f"  {name:{width}}   {what}" for name, what in named)]
        return [cut(line, size.columns) for line in lines[: size.lines]]
    page = state.page
    head = [*([page.title] if page.title else []), *page.heading]
    room = max(1, size.lines - len(head) - 1)
    state.offset = max(0, min(state.offset, len(page.body) - room))
    lines = [*head, *page.body[state.offset : state.offset + room]]
    last = f"vcuda: {state.error}" if state.error else "q quit   ? help"
    last = last if state.typed is None else f"/{state.typed}"
    lines += [""] * (size.lines - 1 - len(lines)) + [last]
    return [cut(line, size.columns) for line in lines[-size.lines :]]


def _scroll(state: _State, key: str, size: os.terminal_size) -> None:
    step = max(1, size.lines - len(state.page.heading) - 3)
    if key == "?":
        state.helping = not state.helping
    elif key == "escape":
        state.helping = False
    elif key in ("home", "end"):
        state.offset = 0 if key == "home" else len(state.page.body)
    else:
        state.offset += {"j": 1, "k": -1, "page-down": step, "page-up": -step}.get(key, 0)


@contextmanager
def _heard(events: asyncio.Queue[str]) -> Iterator[None]:
    """Keys one by one without Enter. A signal that ends the process ends the page in order, as does a lost terminal."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        loop.add_signal_handler(number, events.put_nowait, _LOST)
    loop.add_signal_handler(signal.SIGWINCH, events.put_nowait, "resized")
    keyboard = sys.stdin.fileno() if sys.stdin is not None and sys.stdin.isatty() else -1
    before = termios.tcgetattr(keyboard) if keyboard >= 0 else None
    try:
        if before is not None:
            tty.setcbreak(keyboard)
            loop.add_signal_handler(signal.SIGCONT, _resumed, keyboard, events)
            loop.add_reader(keyboard, _read_keys, keyboard, events)
        yield
    finally:
        if before is not None:
            loop.remove_reader(keyboard)
            with suppress(termios.error):
                termios.tcsetattr(keyboard, termios.TCSADRAIN, before)
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGWINCH, signal.SIGCONT):
            loop.remove_signal_handler(number)


def _resumed(keyboard: int, events: asyncio.Queue[str]) -> None:
    with suppress(termios.error):
        tty.setcbreak(keyboard)
    events.put_nowait("resized")


def _read_keys(keyboard: int, events: asyncio.Queue[str]) -> None:
    """One reading is one key, or several where somebody types ahead."""
    try:
        text = os.read(keyboard, 256).decode(errors="replace")
    except OSError:
        text = ""
    if not text:
        events.put_nowait(_LOST)
        asyncio.get_running_loop().remove_reader(keyboard)
    for key in _split(text):
        events.put_nowait(key)


def _split(text: str) -> Iterator[str]:
    while text:
        if text.startswith("\x1b"):
            rest = text[1:]
            length = next((at + 2 for at, sign in enumerate(rest) if (sign.isalpha() and at) or sign == "~"), len(text))
        else:
            length = 1
        yield text[:length]
        text = text[length:]
