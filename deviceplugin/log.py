"""Logs: one line of JSON for each event in a cluster, text for people on a terminal, both on standard error.

In: level and format. Out: structlog and the standard logging module, set up once by `cli`. Keys: `ts`, `level`, `msg`,
`logger`, and what the caller bound (`pod`, `namespace`, `uid`, `container`, `gpu`). Modules get their logger with
`structlog.get_logger("vcuda.<folder>")`. A VcudaError is written as its sentence; a traceback appears only for what is
a bug, as the one field `traceback`. `Pace` is for lines that somebody outside can cause at any rate.
"""

import enum
import json
import logging
import sys
import time
import traceback
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Any, TextIO

from deviceplugin.errors import VcudaError

if TYPE_CHECKING:  # its console renderer takes longer to import than a command takes to print a table
    from structlog.typing import EventDict, Processor, WrappedLogger

# At debug these print whole pod lists, or a line for each byte that moved.
_CHATTY = ("aiohttp", "asyncio", "grpc", "kubernetes", "urllib3", "watchdog")


class Pace:
    """Whether to write a line now: once in `period_s` for each key. Beyond `most` keys in a period, none is written."""

    def __init__(
        self, period_s: float = 60.0, *, most: int = 1024, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._period_s = period_s
        self._most = most
        self._clock = clock
        self._written: dict[Hashable, float] = {}  # the oldest first

    def allows(self, *key: Hashable) -> bool:
        now = self._clock()
        while self._written and now - next(iter(self._written.values())) >= self._period_s:
            del self._written[next(iter(self._written))]
        if key in self._written or len(self._written) >= self._most:
            return False
        self._written[key] = now
        return True


class LazyLogger:
    """A logger of structlog for modules that commands import too: structlog is imported when the first line is due."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, level: str) -> Any:  # noqa: ANN401 - a method of structlog's logger
        threshold = logging.getLevelNamesMapping().get(level.upper(), logging.CRITICAL)
        if "structlog" not in sys.modules and not logging.getLogger(self._name).isEnabledFor(threshold):
            return _nothing
        import structlog

        return getattr(structlog.get_logger(self._name), level)


def _nothing(_event: str, **_fields: object) -> None:
    """For lines below the threshold."""


def open_log_for_command() -> None:
    """Errors only, for people. structlog is set up with it once `open_log` is called or something has imported it."""
    if "structlog" in sys.modules:
        open_log(level="error", console=True)
    else:
        root = logging.getLogger()
        root.handlers = [logging.StreamHandler(sys.stderr)]
        root.setLevel(logging.ERROR)


def open_log(*, level: str, console: bool = False, stream: TextIO | None = None) -> None:
    """Sends structlog and standard logging to one place; calling it again replaces what was there.

    With `console` lines are for people also if that place is no terminal.
    """
    out = stream or sys.stderr
    threshold = logging.getLevelNamesMapping()[level.upper()]
    _configure_structlog()
    handler = logging.StreamHandler(out)
    handler.setFormatter(_formatter(console=console or out.isatty(), out=out))
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(threshold)
    for name in _CHATTY:
        logging.getLogger(name).setLevel(max(threshold, logging.WARNING))


def _configure_structlog() -> None:
    import structlog

    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *_shared(),
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
    )


def _formatter(*, console: bool, out: TextIO) -> logging.Formatter:
    import structlog

    return structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=_shared(),
        processors=[
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            _for_console(out) if console else structlog.processors.JSONRenderer(json.dumps, default=_plain),
        ],
    )


def _shared() -> "list[Processor]":
    import structlog

    return [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True, key="ts"),
        _describe_exception,
        _plain_values,
        _order,
    ]


def _for_console(out: TextIO) -> "Processor":
    import structlog

    return structlog.dev.ConsoleRenderer(
        colors=out.isatty(), event_key="msg", timestamp_key="ts", exception_formatter=structlog.dev.plain_traceback
    )


def _describe_exception(logger: "WrappedLogger", name: str, event: "EventDict") -> "EventDict":
    found = event.pop("exc_info", None)
    error = found if isinstance(found, BaseException) else sys.exc_info()[1] if found is True else None
    if isinstance(found, tuple):
        error = found[1]
    if error is None:
        return event
    event["error"] = error
    if not isinstance(error, VcudaError):
        event["traceback"] = "".join(traceback.format_exception(error))
    return event


def _plain_values(logger: "WrappedLogger", name: str, event: "EventDict") -> "EventDict":
    plain = (str, int, float, bool, dict, list, tuple, type(None))
    for key, value in event.items():
        if not key.startswith("_") and type(value) not in plain:
            event[key] = _plain(value)
    return event


def _plain(value: object) -> object:
    if isinstance(value, VcudaError):
        return value.message
    if isinstance(value, BaseException):
        return f"{type(value).__name__}: {value}"
    if isinstance(value, enum.Enum):
        return value.value
    return sorted(map(str, value)) if isinstance(value, set | frozenset) else str(value)


def _order(logger: "WrappedLogger", name: str, event: "EventDict") -> "EventDict":
    """The same four keys first in every line, for people who read JSON."""
    first = {key: event.pop(key) for key in ("ts", "level", "logger") if key in event}
    return {**first, "msg": event.pop("event"), **event}
