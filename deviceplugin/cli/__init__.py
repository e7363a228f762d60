"""`vcuda` and its commands, each imported only when it is called.

In: the command line. Out: an exit status. A VcudaError becomes the one line `vcuda: MESSAGE` on standard error and
status 1. A wrong command line is click's error, with status 2. Anything else is a bug: one general sentence and status
70, or the traceback if VCUDA_DEBUG=1. To add a command: a module beside this one that defines a click command, and a
line in `_COMMANDS`.
"""

import errno
import importlib
import os
import sys
from typing import IO, Any

import click

from deviceplugin import __version__
from deviceplugin.errors import VcudaError

_COMMANDS = {
    "agent": ("deviceplugin.cli.service:agent", "Grant this node's GPUs, and shares of them, through kubelet."),
    "config": ("deviceplugin.cli.config:config", "Print the effective settings and the origin of each."),
    "explain": ("deviceplugin.cli.explain:explain", "Explain why a pod is on its node, or why it is pending."),
    "place": ("deviceplugin.cli.place:place", "Show which GPUs a request would get, and why."),
    "scheduler": ("deviceplugin.cli.service:scheduler", "Choose node and GPUs for the pods of a cluster."),
    "simulate": ("deviceplugin.cli.simulate:simulate", "Simulate a placement policy on a workload."),
}
"""By name: where the command is defined, and its line in `vcuda --help`, which does not import it."""


class Refused(click.ClickException):
    """A VcudaError as the end of the program: one line, status 1."""

    exit_code = 1

    def show(self, file: IO[Any] | None = None) -> None:
        click.echo(f"vcuda: {self.message}", file=file or sys.stderr)


class Bug(Refused):
    """Any other error; its status is not the one of a VcudaError."""

    exit_code = os.EX_SOFTWARE


class LazyGroup(click.Group):
    """A group whose commands are imported by name."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        module, _, attribute = _COMMANDS[cmd_name][0].partition(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, _COMMANDS[name][1]) for name in self.list_commands(ctx)])

    def invoke(self, ctx: click.Context) -> Any:  # noqa: ANN401 - click's signature
        try:
            return super().invoke(ctx)
        except VcudaError as error:
            raise Refused(error.message) from None
        except Exception as error:
            if os.environ.get("VCUDA_DEBUG") == "1" or _is_for_click(error):
                raise
            raise Bug("internal error; rerun with VCUDA_DEBUG=1 and report the traceback") from None


def _is_for_click(error: Exception) -> bool:
    """Click's own ways to end a command, and a closed standard output."""
    ends = (click.ClickException, click.exceptions.Exit, click.Abort)
    return isinstance(error, ends) or (isinstance(error, OSError) and error.errno == errno.EPIPE)


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="vcuda", message="%(prog)s %(version)s")
def main() -> None:
    """GPU sharing for Kubernetes: a pod gets exactly the share of an NVIDIA GPU that it requests."""
