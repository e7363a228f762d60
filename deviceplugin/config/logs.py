"""What a program of ours writes to standard error: the same settings for all of them."""

# ruff: noqa: RUF009 - `setting` is dataclasses.field with a description

import enum
from dataclasses import dataclass

from deviceplugin.config import kinds
from deviceplugin.config.setting import setting


class LogLevel(enum.Enum):
    """The least severe lines that are written."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class LogFormat(enum.Enum):
    """How lines are written; `auto` is `console` on a terminal and `json` elsewhere."""

    AUTO = "auto"
    JSON = "json"
    CONSOLE = "console"


@dataclass(frozen=True, slots=True)
class LogSettings:
    """What is written to standard error."""

    level: LogLevel = setting(
        "log-level", kinds.choice(LogLevel), "Least severe lines to write.", default=LogLevel.INFO
    )
    format: LogFormat = setting(
        "log-format",
        kinds.choice(LogFormat),
        "How to write them; auto: for people on a terminal, JSON elsewhere.",
        default=LogFormat.AUTO,
    )
