"""`vcuda agent`: reads the settings, opens the log, and runs the agent until it is told to stop.

In: flags, environment, file. Out: the exit status. What the agent does is `deviceplugin.agent.run`, which is imported
only after the settings were found good, so that `--help` and a wrong flag answer at once.
"""

import click

from deviceplugin.cli.service import open_log, serve
from deviceplugin.config.agent import AGENT, AgentSettings
from deviceplugin.config.effective import Effective
from deviceplugin.config.options import command_of, with_settings


@click.command("agent", cls=command_of(AGENT), short_help="Hand out slices of this node's GPUs through kubelet.")
@with_settings(AGENT)
def agent(effective: Effective[AgentSettings], retired: tuple[str, ...]) -> None:
    """Hand out slices of this node's GPUs through kubelet.

    A setting is taken from its flag, else from its environment variable, else from the file that --config names, else
    it has its default. `vcuda config print` shows what would be in force.
    """
    open_log(effective, effective.settings.log, retired)
    from deviceplugin.agent.run import run

    serve(run, effective.settings, logger="vcuda.agent")
