"""`vcuda completion`: the completion script of a shell, and the program that kubectl calls to complete its plugin.

In: the shell's name. Out: the script on standard output. The shell then calls `vcuda` itself for each completion.
"""

import sys
from collections.abc import Sequence

import click
from click.shell_completion import BashComplete, FishComplete, ShellComplete, ZshComplete

from deviceplugin.cli.command import OperatorCommand

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
