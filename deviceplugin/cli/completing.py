"""Names of pods and nodes for the shell's completion.

In: what was typed so far. Out: the names that begin with it; none where the cluster does not answer at once, because a
shell that waits is worse than one that does not complete. Nothing is printed.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import fields, replace

import click
from click.shell_completion import CompletionItem

from deviceplugin import log
from deviceplugin.cli.connection import Connection
from deviceplugin.cli.scheduler_client import SchedulerClient, opened
from deviceplugin.cli.view_client import ViewClient
from deviceplugin.errors import VcudaError

_LONGEST_S = 3.0
_Names = Callable[[SchedulerClient], Awaitable[list[str]]]
_MOST = 500


def complete_node(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    async def names(client: SchedulerClient) -> list[str]:
        return [row.node for row in (await ViewClient(client).nodes({}, most=_MOST)).rows]

    return _complete(context, names, incomplete)


def complete_pod(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    namespace, slash, _ = incomplete.rpartition("/")

    async def names(client: SchedulerClient) -> list[str]:
        query = {"namespace": namespace or client.namespace}
        rows = (await ViewClient(client).pods(query, most=_MOST)).rows
        return [f"{namespace}{slash}{row.pod}" for row in rows if row.pod]

    return _complete(context, names, incomplete)


def _complete(context: click.Context, names: _Names, incomplete: str) -> list[CompletionItem]:
    try:
        found = asyncio.run(_asked(_connection(context), names))
    except (VcudaError, TimeoutError, OSError):
        return []
    return [CompletionItem(each) for each in sorted(found) if each.startswith(incomplete)]


async def _asked(connection: Connection, names: _Names) -> list[str]:
    async with asyncio.timeout(_LONGEST_S), opened(connection, login_s=_LONGEST_S) as client:
        return await names(client)


def _connection(context: click.Context) -> Connection:
    """From the options that stand before."""
    log.open_log(level="error", format_="console")
    known = {each.name for each in fields(Connection)}
    given = {name: value for name, value in context.params.items() if name in known and value is not None}
    return replace(Connection(), **given)
