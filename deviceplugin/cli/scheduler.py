"""`vcuda scheduler`: reads the settings, opens the log, and serves webhook and extender until it is told to stop.

In: flags, environment, file. Out: the exit status. What it does is `deviceplugin.scheduler.run`, which is imported only
after the settings were found good, so that `--help` and a wrong flag answer at once.
"""

import click

from deviceplugin.cli.service import open_log, serve
from deviceplugin.config.effective import Effective
from deviceplugin.config.options import command_of, with_settings
from deviceplugin.config.scheduler import SCHEDULER, SchedulerSettings


@click.command("scheduler", cls=command_of(SCHEDULER), short_help="Choose node and GPUs for the pods of a cluster.")
@with_settings(SCHEDULER)
def scheduler(effective: Effective[SchedulerSettings], retired: tuple[str, ...]) -> None:
    """Serve the webhook that normalises GPU pods and the extender that chooses node and GPUs for them.

    A setting is taken from its flag, else from its environment variable, else from the file that --config names, else
    it has its default. `vcuda config print-scheduler` shows what would be in force.
    """
    open_log(effective, effective.settings.log, retired)
    from deviceplugin.scheduler.run import run

    serve(run, effective.settings, logger="vcuda.scheduler")
