"""`vcuda agent`: reads the settings, opens the log, and runs the agent until a signal.

In: flags, environment, file. Out: the exit status. `deviceplugin.agent.run` is imported only after the settings were
found good, so that `--help` and a wrong flag answer at once.
"""

import click

from deviceplugin.cli.service import open_log, serve
from deviceplugin.config.agent import AGENT, AgentSettings
from deviceplugin.config.command import Effective, SettingsCommand


@click.command("agent", cls=SettingsCommand, program=AGENT)
def agent(effective: Effective[AgentSettings]) -> None:
    """Grant this node's GPUs, and shares of them, to pods through kubelet.

    The value of a setting is that of its flag; without the flag that of its environment variable; without both that of
    its key in the file of --config; else the default. `vcuda config print` shows the effective settings.
    """
    open_log(effective, effective.settings.log)
    from deviceplugin.agent.run import run

    serve(run, effective.settings, logger="vcuda.agent")
