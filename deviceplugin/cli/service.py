"""What commands that serve until a signal have in common: open the log, name the settings, end with one line.

In: the settings in force, and what runs them. Out: nothing; a VcudaError goes on to `vcuda`, anything else is a bug:
status 70, and the traceback in the log.
"""

from collections.abc import Callable
from typing import TypeVar

import structlog

from deviceplugin import __version__, log
from deviceplugin.config.command import Effective, LogSettings
from deviceplugin.errors import VcudaError

BUG = 70  # EX_SOFTWARE of sysexits.h: supervisors and people can tell a bug from a refusal
Settings = TypeVar("Settings")


def open_log(effective: Effective[Settings], settings: LogSettings) -> None:
    log.open_log(level=settings.level.value, format_=settings.format.value)
    logger = structlog.get_logger("vcuda.config")
    for sentence in effective.retired:
        logger.warning("flag_retired", error=sentence)
    logger.info("settings_in_force", version=__version__, file=str(effective.file or ""), set=effective.changed())


def serve(run: Callable[[Settings], None], settings: Settings, *, logger: str) -> None:
    try:
        run(settings)
    except VcudaError:
        raise
    except Exception:
        structlog.get_logger(logger).exception("internal_error")
        raise SystemExit(BUG) from None
