"""`vcuda scheduler`: reads the settings, opens the log, and serves webhook and extender until it is told to stop.

In: flags, environment, file. Out: the exit status. What it does is `deviceplugin.scheduler.run`, which is imported only
after the settings were found good, so that `--help` and a wrong flag answer at once.
"""

import click
import structlog

from deviceplugin import __version__, log
from deviceplugin.config.effective import Effective
from deviceplugin.config.options import command_of, with_settings
from deviceplugin.config.scheduler import SCHEDULER, SchedulerSettings
from deviceplugin.errors import VcudaError

_BUG = 70  # EX_SOFTWARE of sysexits.h: supervisors and people can tell a bug from a refusal


@click.command("scheduler", cls=command_of(SCHEDULER), short_help="Choose node and GPUs for the pods of a cluster.")
@with_settings(SCHEDULER)
def scheduler(effective: Effective[SchedulerSettings], retired: tuple[str, ...]) -> None:
    """Serve the webhook that normalises GPU pods and the extender that chooses node and GPUs for them.

    A setting is taken from its flag, else from its environment variable, else from the file that --config names, else
    it has its default. `vcuda config print-scheduler` shows what would be in force.
    """
    settings = effective.settings
    log.open_log(level=settings.log.level.value, format_=settings.log.format.value)
    logger = structlog.get_logger("vcuda.config")
    for sentence in retired:
        logger.warning(sentence)
    logger.info("settings in force", version=__version__, file=str(effective.file or ""), set=effective.changed())
    _run(settings)


def _run(settings: SchedulerSettings) -> None:
    from deviceplugin.scheduler.run import run

    try:
        run(settings)
    except VcudaError:
        raise
    except Exception:
        structlog.get_logger("vcuda.scheduler").exception("ended by a bug in vcuda; please report this line")
        raise SystemExit(_BUG) from None
