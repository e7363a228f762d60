"""The form of the commands that ask a cluster: examples in their help, and `-o` with the same words everywhere.

In: what click parsed. Out: a click command whose help has examples, the options of the output, names of pods as kubectl
takes them. `kubectl vcuda` stands in examples where it was typed.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click

from deviceplugin.errors import ConfigError

Function = TypeVar("Function", bound=Callable[..., Any])
_POD_KINDS = ("pod", "pods", "po")
_NODE_KINDS = ("node", "nodes", "no")


class OperatorCommand(click.Command):
    """A command with examples; each is a comment and a command line after the program's name."""

    def __init__(self, *args: Any, examples: Sequence[tuple[str, str]] = (), **kwargs: Any) -> None:  # noqa: ANN401 - click's
        super().__init__(*args, **kwargs)
        self.examples = tuple(examples)

    def format_help_text(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        super().format_help_text(ctx, formatter)
        program = ctx.command_path.removesuffix(f" {ctx.info_name}")
        if self.examples:
            with formatter.section("Examples"):
                for at, (meaning, arguments) in enumerate(self.examples):
                    indent = " " * formatter.current_indent
                    formatter.write("\n" * bool(at) + f"{indent}# {meaning}\n{indent}{program} {arguments}\n")


class OutputForm(click.Choice[str]):
    """One of the words; `-o=json` is understood as kubectl does, and `older` are words of earlier versions."""

    def __init__(self, words: Sequence[str], older: Sequence[tuple[str, str]] = ()) -> None:
        super().__init__(words)
        self._older = dict(older)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:  # noqa: ANN401 - click's
        word = str(value).removeprefix("=")
        return super().convert(self._older.get(word, word), param, ctx)


def output_option(
    *words: str, default: str = "table", older: Sequence[tuple[str, str]] = ()
) -> Callable[[Function], Function]:
    return click.option(
        "-o", "--output", type=OutputForm(words, older), default=default, show_default=True, help="Output format."
    )


def headers_option(command: Function) -> Function:
    return click.option("--no-headers", is_flag=True, help="Print tables without headings.")(command)


def pod_name(text: str, namespace: str) -> tuple[str, str]:
    """Namespace and name of `NAME`, `pod/NAME`, `NAMESPACE/NAME` or `NAMESPACE/pod/NAME`.

    `pod/NAME` is what kubectl means by it; a namespace of that name goes with -n.
    """
    parts = text.split("/")
    if len(parts) > 1 and parts[-2] in _POD_KINDS:
        del parts[-2]
    if not all(parts) or len(parts) > 2:
        raise ConfigError(f"{text[:100]!r} is not the name of a pod; write NAME, pod/NAME or NAMESPACE/NAME")
    return (parts[0] if len(parts) == 2 else namespace), parts[-1]


def node_name(text: str) -> str:
    """The name of `NAME` or `node/NAME`."""
    kind, slash, name = text.rpartition("/")
    if not name or (slash and kind not in _NODE_KINDS):
        raise ConfigError(f"{text[:100]!r} is not the name of a node; write NAME or node/NAME")
    return name
