"""`vcuda` and its commands, each imported only when it is called.

In: the command line. Out: an exit status. A VcudaError becomes the one line `vcuda: MESSAGE` on standard error and
status 1; so does a wrong command line, with status 2. Anything else is a bug: one general sentence and status
70, or the traceback if VCUDA_DEBUG=1. `command` has the details. To add a command: a module beside this one that
defines a click command, and a line in `_COMMANDS`. As `kubectl-vcuda` it is a plugin of kubectl, and its help says so.
"""

import errno
import importlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from deviceplugin import __version__
from deviceplugin.cli.command import Bug, Refused, clearer, closest, report
from deviceplugin.errors import VcudaError

_COMMANDS = {
    "agent": ("deviceplugin.cli.service:agent", "Allocate this node's GPUs, and shares of them, through kubelet."),
    "bundle": ("deviceplugin.cli.bundle.command:bundle", "Gather what support needs in one archive, without secrets."),
    "completion": ("deviceplugin.cli.completion:completion", "Print the completion script of a shell."),
    "config": ("deviceplugin.cli.service:config", "Print the effective settings and the origin of each."),
    "doctor": ("deviceplugin.cli.doctor.command:doctor", "Check the installation: each line says what to do."),
    "events": ("deviceplugin.cli.pods:events", "List what happened lately to pods, nodes and GPUs."),
    "explain": ("deviceplugin.cli.explain:explain", "Explain why a pod is on its node, or why it is Pending."),
    "node": ("deviceplugin.cli.node:node", "Show one node: its GPUs, and which pods they are allocated to."),
    "nodes": ("deviceplugin.cli.nodes:nodes", "List nodes with their GPUs and what is free."),
    "place": ("deviceplugin.cli.place:place", "Show which GPUs a request would get, and why."),
    "pods": ("deviceplugin.cli.pods:pods", "List pods with GPUs: where they are, or why they are Pending."),
    "scheduler": ("deviceplugin.cli.service:scheduler", "Choose node and GPUs for the pods of a cluster."),
    "simulate": ("deviceplugin.cli.simulate:simulate", "Simulate a placement policy on a workload."),
    "top": ("deviceplugin.cli.top:top", "Show what nodes, GPUs, pods and namespaces use of what is allocated."),
    "ui": ("deviceplugin.cli.ui:ui", "Show the cluster in a browser."),
    "version": ("deviceplugin.cli.version:version", "Print the versions of this command and of the scheduler."),
}
"""By name: where the command is defined, and its line in `vcuda --help`, which does not import it."""

_INCOMPLETE = "the Python package {} is not here: krew's plugin has only what operators need; use vcuda's image"
_PLUGIN = "kubectl-vcuda"
_ARGUMENTS = "vcuda.arguments"


class LazyGroup(click.Group):
    """A group whose commands are imported by name."""

    def main(self, args: Sequence[str] | None = None, prog_name: str | None = None, **extra: Any) -> Any:  # type: ignore[override]  # noqa: ANN401 - click's signature
        """As click's; the name in the help is the one that was typed."""
        if prog_name is None and Path(sys.argv[0]).name.startswith(_PLUGIN):
            prog_name = "kubectl vcuda"
        return super().main(args, prog_name, **{"complete_var": "_VCUDA_COMPLETE"} | extra)

    def make_context(self, *args: Any, **extra: Any) -> click.Context:  # noqa: ANN401 - click's
        try:
            return super().make_context(*args, **extra)
        except click.UsageError as error:
            raise clearer(error) from None

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta[_ARGUMENTS] = tuple(args)
        return super().parse_args(ctx, args)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        module, _, attribute = _COMMANDS[cmd_name][0].partition(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if not ctx.resilient_parsing and args and self.get_command(ctx, args[0]) is None:
            ctx.fail(f"No such command '{args[0]}'{closest(args[0], self.list_commands(ctx))}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, _COMMANDS[name][1]) for name in self.list_commands(ctx)])

    def invoke(self, ctx: click.Context) -> Any:  # noqa: ANN401 - click's signature
        ended: click.ClickException
        try:
            return super().invoke(ctx)
        except VcudaError as error:
            ended = Refused(error.message)
        except click.ClickException as error:
            ended = clearer(error)
        except ModuleNotFoundError as error:
            if os.environ.get("VCUDA_DEBUG") == "1" or (error.name or "").startswith(__package__.partition(".")[0]):
                raise
            ended = Refused(_INCOMPLETE.format(error.name))
        except Exception as error:
            if os.environ.get("VCUDA_DEBUG") == "1" or _is_for_click(error):
                raise
            ended = Bug("internal error; rerun with VCUDA_DEBUG=1 and report the traceback")
        report(ended, ctx.meta.get(_ARGUMENTS, ()))
        raise ended from None


def _is_for_click(error: Exception) -> bool:
    """Click's own ways to end a command, and a closed standard output."""
    ends = (click.exceptions.Exit, click.Abort)
    return isinstance(error, ends) or (isinstance(error, OSError) and error.errno == errno.EPIPE)


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, "-V", "--version", prog_name="vcuda", message="%(prog)s %(version)s")
def main() -> None:
    """GPU sharing for Kubernetes: a pod asks for a part of a GPU's time and memory and gets it, with limits."""
