"""`vcuda agent` and `vcuda scheduler`: read the settings, open the log, and run until a signal.

In: flags, environment, file. Out: the exit status. What runs is imported only after the settings were found good, so
that `--help` and a wrong flag answer at once. A VcudaError goes on to `vcuda`; anything else is a bug: status 70, and
the traceback in the log.
"""

import os
from collections.abc import Callable
from typing import TypeVar

import click
import structlog

from deviceplugin import __version__, log
from deviceplugin.config.agent import AGENT, AgentSettings
from deviceplugin.config.command import Effective, LogSettings, SettingsCommand
from deviceplugin.config.scheduler import SCHEDULER, SchedulerSettings
from deviceplugin.errors import VcudaError

Settings = TypeVar("Settings")


def _print_version(context: click.Context, _option: click.Parameter, value: str | None) -> None:
    """gpu-manager's flag has a value, or none."""
    if value in ("true", "raw"):
        click.echo(__version__)
        context.exit()


@click.command("agent", cls=SettingsCommand, program=AGENT)
@click.option(
    "--version",
    type=click.Choice(("true", "false", "raw")),
    is_flag=False,
    flag_value="true",
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Show the version and exit.",
)
def agent(effective: Effective[AgentSettings]) -> None:
    """Grant this node's GPUs, and shares of them, to pods through kubelet.

    The value of a setting is that of its flag; without the flag that of its environment variable; without both that of
    its key in the file of --config; else the default. `vcuda config print` shows the effective settings.
    """
    _open_log(effective, effective.settings.log)
    from deviceplugin.agent.run import run

    _serve(run, effective.settings, logger="vcuda.agent")


@click.command("scheduler", cls=SettingsCommand, program=SCHEDULER)
def scheduler(effective: Effective[SchedulerSettings]) -> None:
    """Serve the webhook that completes GPU pods and the scheduler extender that chooses node and GPUs for them.

    The value of a setting is that of its flag; without the flag that of its environment variable; without both that of
    its key in the file of --config; else the default. `vcuda config print-scheduler` shows the effective settings.
    """
    _open_log(effective, effective.settings.log)
    from deviceplugin.scheduler.run import run

    _serve(run, effective.settings, logger="vcuda.scheduler")


def _open_log(effective: Effective[Settings], settings: LogSettings) -> None:
    log.open_log(level=settings.level.value, format_=settings.format.value)
    logger = structlog.get_logger("vcuda.config")
    for sentence in effective.retired:
        logger.warning("flag_retired", error=sentence)
    logger.info("settings_in_force", version=__version__, file=str(effective.file or ""), set=effective.changed())


def _serve(run: Callable[[Settings], None], settings: Settings, *, logger: str) -> None:
    try:
        run(settings)
    except VcudaError:
        raise
    except Exception:
        structlog.get_logger(logger).exception("internal_error")
        raise SystemExit(os.EX_SOFTWARE) from None  # supervisors and people can tell a bug from a refusal
