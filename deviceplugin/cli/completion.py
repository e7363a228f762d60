"""`vcuda completion`: the completion script of a shell, and the program that kubectl calls to complete its plugin.

In: the shell's name; or what was typed so far, as the script gives it to `vcuda`. Out: the script on standard output;
or the names of pods and nodes that begin with it, none if the cluster does not answer at once, because a shell that
waits is worse than one that does not complete.
"""

import asyncio
import sys
from collections.abc import Awaitable, Callable, Sequence

import click
from click.shell_completion import BashComplete, CompletionItem, FishComplete, ShellComplete, ZshComplete

from deviceplugin import log
from deviceplugin.cli.command import OperatorCommand
from deviceplugin.cli.connection import Connection
from deviceplugin.cli.scheduler_client import NODE_ROWS, POD_ROWS, SchedulerClient, opened
from deviceplugin.errors import VcudaError

_SHELLS: dict[str, type[ShellComplete]] = {"bash": BashComplete, "fish": FishComplete, "zsh": ZshComplete}
_NO_FILES = ":4"  # what kubectl's completion reads last: complete no names of files
_EXAMPLES = (
    ("For this shell.", "completion bash >/tmp/vcuda-completion && . /tmp/vcuda-completion"),
    ("For every new bash.", "completion bash >~/.local/share/bash-completion/completions/vcuda"),
    ("For every new zsh, in a folder of $fpath.", 'completion zsh >"${fpath[1]}/_vcuda"'),
    ("For every new fish.", "completion fish >~/.config/fish/completions/vcuda.fish"),
)


@click.command("completion", cls=OperatorCommand, examples=_EXAMPLES)
@click.argument("shell", type=click.Choice(sorted(_SHELLS)))
def completion(shell: str) -> None:
    """Print the completion script of a shell. Names of nodes and pods are completed too, when the cluster answers.

    `kubectl vcuda` is completed by kubectl, where kubectl_complete-vcuda, which is installed with it, is on PATH.
    """
    complete = _SHELLS[shell](click.Command("vcuda"), {}, "vcuda", "_VCUDA_COMPLETE")
    click.echo(ShellComplete.source(complete))


def kubectl_complete(arguments: Sequence[str] | None = None) -> None:
    """As kubectl calls it: the words after `kubectl vcuda`, of which the last is not complete."""
    from deviceplugin.cli import main

    words = list(sys.argv[1:] if arguments is None else arguments)
    complete = ShellComplete(main, {}, "vcuda", "_VCUDA_COMPLETE")
    for item in complete.get_completions(words[:-1], words[-1] if words else ""):
        click.echo(f"{item.value}\t{item.help}" if item.help else item.value)
    click.echo(_NO_FILES)


_LONGEST_S = 3.0
_Names = Callable[[SchedulerClient], Awaitable[list[str]]]
_MOST = 500


def complete_node(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    async def names(client: SchedulerClient) -> list[str]:
        return [row.node for row in (await client.rows(NODE_ROWS, {}, most=_MOST)).rows]

    return _complete(context, names, incomplete)


def complete_pod(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    namespace, slash, _ = incomplete.rpartition("/")

    async def names(client: SchedulerClient) -> list[str]:
        query = {"namespace": namespace or client.namespace}
        rows = (await client.rows(POD_ROWS, query, most=_MOST)).rows
        return [f"{namespace}{slash}{row.pod}" for row in rows]

    return _complete(context, names, incomplete)


def _complete(context: click.Context, names: _Names, incomplete: str) -> list[CompletionItem]:
    """The connection is that of the options that stand before."""
    log.open_log_for_command()
    try:
        found = asyncio.run(_asked(Connection.of(dict(context.params)), names))
    except (VcudaError, TimeoutError, OSError):
        return []
    return [CompletionItem(each) for each in sorted(found) if each.startswith(incomplete)]


async def _asked(connection: Connection, names: _Names) -> list[str]:
    async with asyncio.timeout(_LONGEST_S), opened(connection, login_s=_LONGEST_S) as client:
        return await names(client)
