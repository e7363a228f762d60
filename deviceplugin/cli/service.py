"""What commands that serve until they are told to stop do alike: open the log, name the settings, end with one line.

In: the settings in force, and what runs them. Out: nothing; a VcudaError goes on to `vcuda`, anything else is a bug,
which ends with status 70 and its traceback in the log.
"""

from collections.abc import Callable
from typing import TypeVar

import structlog

from deviceplugin import __version__, log
from deviceplugin.config.effective import Effective
from deviceplugin.config.logs import LogSettings
from deviceplugin.errors import VcudaError

BUG = 70  # EX_SOFTWARE of sysexits.h: supervisors and people can tell a bug from a refusal
Settings = TypeVar("Settings")


def open_log(effective: Effective[Settings], settings: LogSettings, retired: tuple[str, ...]) -> None:
    log.open_log(level=settings.level.value, format_=settings.format.value)
    logger = structlog.get_logger("vcuda.config")
    for sentence in retired:
        logger.warning(sentence)
    logger.info("settings in force", version=__version__, file=str(effective.file or ""), set=effective.changed())


def serve(run: Callable[[Settings], None], settings: Settings, *, logger: str) -> None:
    try:
        run(settings)
    except VcudaError:
        raise
    except Exception:
        structlog.get_logger(logger).exception("ended by a bug in vcuda; please report this line")
        raise SystemExit(BUG) from None
