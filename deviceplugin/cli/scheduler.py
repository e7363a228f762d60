"""`vcuda scheduler`: reads the settings, opens the log, and serves webhook and extender until a signal.

In: flags, environment, file. Out: the exit status. `deviceplugin.scheduler.run` is imported only after the settings
were found good, so that `--help` and a wrong flag answer at once.
"""

import click

from deviceplugin.cli.service import open_log, serve
from deviceplugin.config.command import Effective, SettingsCommand
from deviceplugin.config.scheduler import SCHEDULER, SchedulerSettings


@click.command("scheduler", cls=SettingsCommand, program=SCHEDULER)
def scheduler(effective: Effective[SchedulerSettings]) -> None:
    """Serve the webhook that completes GPU pods and the scheduler extender that chooses node and GPUs for them.

    The value of a setting is that of its flag; without the flag that of its environment variable; without both that of
    its key in the file of --config; else the default. `vcuda config print-scheduler` shows the effective settings.
    """
    open_log(effective, effective.settings.log)
    from deviceplugin.scheduler.run import run

    serve(run, effective.settings, logger="vcuda.scheduler")
