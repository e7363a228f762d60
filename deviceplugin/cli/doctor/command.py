"""The command line of `vcuda doctor`.

In: flags. Out: lines as they become known, or one document; status 1 if a check has failed. A warning or a skipped
check does not fail, as with kubeadm, linkerd check and istioctl analyze; but if nothing was checked, the status is 3.
"""

import asyncio
from collections.abc import Sequence

import click

from deviceplugin import log
from deviceplugin.cli.command import OperatorCommand, output_option
from deviceplugin.cli.connection import Connection, connected
from deviceplugin.cli.doctor.findings import (
    Check,
    CheckOutcome,
    CheckResult,
    Subject,
    document,
    examine,
    lines,
    summary,
    worst,
)
from deviceplugin.cli.scheduler_client import SchedulerClient, asked
from deviceplugin.cli.terminal import say, show_document, terminal_width
from deviceplugin.config.agent import AGENT, AgentSettings
from deviceplugin.config.command import Effective, SettingsCommand

_STATUS_UNCHECKED = 3
_UNCHECKED = (
    "nothing of the installation was checked, because you lack the rights that the skipped lines name; an "
    "administrator gives them with the chart's value operators.subjects"
)
_EXAMPLES = (
    ("Check the cluster of the current context.", "doctor"),
    ("The same for programs; the status is 1 if a check has failed.", "doctor -o json"),
    ("On a node, as root, with the agent's flags: driver, kubelet, runtime, directories.", "doctor node"),
    ("Try the webhook with a pod of another namespace; the pod is not created.", "doctor -n research"),
)


class _Doctor(OperatorCommand, click.Group):
    """A command with examples, and with the node's checks as a command of its own: they take the agent's flags."""


@click.group("doctor", cls=_Doctor, examples=_EXAMPLES, invoke_without_command=True)
@output_option("text", "json", "yaml", default="text")
@connected
@click.pass_context
def doctor(context: click.Context, output: str, connection: Connection) -> None:
    """Check an installation: scheduler, webhook, agents, nodes, versions and your rights.

    Each check prints ok, warning, failed, or skipped if you lack a right, and what to do. Nothing is changed.

    Exit status: 0, also with warnings and some skipped checks; 1 if a check has failed; 3 if you lack the rights to
    check anything of the installation.
    """
    if context.invoked_subcommand is None:
        through = connection.through_api_server("doctor")
        finish(context, asked(through, lambda client: _cluster(client, output)), output)


async def _cluster(client: SchedulerClient, output: str) -> list[CheckResult]:
    from deviceplugin.cli.doctor.cluster import ClusterFacts
    from deviceplugin.cli.doctor.control import CHECKS

    log.open_log(level="error", console=True)  # what was imported now has loggers
    return await shown(CHECKS, ClusterFacts(client), output)


async def shown(checks: Sequence[Check[Subject]], subject: Subject, output: str) -> list[CheckResult]:
    """The findings of all of them; as text each is printed when it is known."""
    found = []
    width = terminal_width()
    async for finding in examine(checks, subject):
        found.append(finding)
        if output == "text":
            say(*lines(finding, width))
    return found


def finish(
    context: click.Context, found: list[CheckResult], output: str, *, only: frozenset[str] = frozenset()
) -> None:
    """`only`: the checks whose failure counts; none for all."""
    if output == "text":
        say(summary(found))
    else:
        show_document(document(found), output)
    outcome = worst([each for each in found if not only or each.check in only])
    if outcome is CheckOutcome.FAILED:
        context.exit(1)
    if outcome is CheckOutcome.SKIPPED and not only:
        click.echo(f"vcuda: {_UNCHECKED}", err=True)
        context.exit(_STATUS_UNCHECKED)


@doctor.command("node", cls=SettingsCommand, program=AGENT)
@click.option("--startup", is_flag=True, help="Fail only for checks without which the agent does not start.")
@output_option("text", "json", "yaml", default="text")
@click.pass_context
def node(context: click.Context, effective: Effective[AgentSettings], startup: bool, output: str) -> None:
    """Check this node as the agent sees it: driver, NVML, libraries, kubelet, runtime, directories, rights.

    Takes the flags, variables and file of `vcuda agent`. Run it as root on the node or in the agent's pod; it may run
    beside an agent.
    """
    from deviceplugin.cli.doctor.node import CHECKS, NodeSubject

    async def check() -> list[CheckResult]:
        subject = NodeSubject(effective.settings)
        try:
            return await shown(CHECKS, subject, output)
        finally:
            await subject.close()

    log.open_log(level="error", console=True)
    needed = frozenset(each.name for each in CHECKS if each.to_start)
    finish(context, asyncio.run(check()), output, only=needed if startup else frozenset())
