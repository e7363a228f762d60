"""The command line of `vcuda bundle`.

In: flags. Out: a file, its name on standard output, and on standard error what could not be read. Status 0 also where
parts are missing: the index says which, and why.
"""

import asyncio
import sys
import time
from pathlib import Path

import click

from deviceplugin import __version__, log
from deviceplugin.cli.bundle.archive import created
from deviceplugin.cli.command import OperatorCommand, node_name
from deviceplugin.cli.connection import Connection, connected
from deviceplugin.cli.listing import say
from deviceplugin.errors import ConfigError

_EXAMPLES = (
    ("Write vcuda-bundle-TIME.tar.gz into this directory.", "bundle"),
    ("With the log of the agent of one node in any case.", "bundle --node node-a --file /tmp/case-17.tar.gz"),
)


@click.command("bundle", cls=OperatorCommand, examples=_EXAMPLES)
@click.option("-f", "--file", "path", type=click.Path(dir_okay=False, path_type=Path), help="Where to write it.")
@click.option("--node", "nodes", multiple=True, metavar="NAME", help="Include the agent of this node; may be repeated.")
@connected
def bundle(path: Path | None, nodes: tuple[str, ...], connection: Connection) -> None:
    """Gather what support needs in one archive, without secrets.

    It has doctor's findings, versions, logs, metrics, events, and what is known of nodes, GPU pods and vcuda's own
    objects. It has names of nodes, namespaces and pods; no Secret or ConfigMap is read, and values of environment
    variables, foreign arguments and annotations are removed. index.json says what could not be read.
    """
    log.open_log(level="error", format_="console")
    if connection.url:
        raise ConfigError("bundle asks the API server; leave out --url and give a kubeconfig")
    file = path or Path(time.strftime("vcuda-bundle-%Y%m%d-%H%M%S.tar.gz"))
    missing = asyncio.run(_gather(file, [node_name(each) for each in nodes], connection))
    if missing:
        click.echo(f"vcuda: {missing} parts could not be read; index.json in the archive says why", err=True)
    say(str(file))


async def _gather(file: Path, nodes: list[str], connection: Connection) -> int:
    from deviceplugin.cli.bundle.collect import Collector
    from deviceplugin.cli.doctor.cluster import ClusterFacts
    from deviceplugin.cli.doctor.objects import Objects
    from deviceplugin.cli.scheduler_client import opened
    from deviceplugin.cli.view_client import ViewClient

    async with opened(connection) as client:
        with created(file) as archive:
            facts = ClusterFacts(Objects(client), ViewClient(client), connection)
            await Collector(archive, facts, nodes).collect(_progress)
            archive.close(made=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), version=__version__)
            return archive.missing


def _progress(part: str) -> None:
    """On a terminal; it may take minutes."""
    if sys.stderr is not None and sys.stderr.isatty():
        click.echo(f"vcuda: reading {part}", err=True)
