"""The form of the commands that ask a cluster: examples in their help, and `-o` with the same words everywhere.

In: what click parsed. Out: a click command whose help has examples, the options of the output, names of pods as kubectl
takes them; `Refused`, how a command ends that did not do what was asked: one line `vcuda: SENTENCE` on standard error,
and a status; 2 is for a wrong command line.
If the arguments ask for JSON or YAML, standard output has the document `{"error": SENTENCE}` in the place of the
answer, so that a program that reads it finds JSON in every case. `kubectl vcuda` stands in examples if it was typed.
"""

import json
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from difflib import get_close_matches
from typing import IO, Any, TypeVar

import click
import yaml

Function = TypeVar("Function", bound=Callable[..., Any])
_POD_KINDS = ("pod", "pods", "po")
_NODE_KINDS = ("node", "nodes", "no")


class ConnectionOption(click.Option):
    """One that says which cluster is asked and how; the help has these last, under a heading of their own."""


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

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        sections: dict[str, list[tuple[str, str]]] = {"Options": [], "Connection": []}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is not None and not isinstance(param, click.Argument):
                sections["Connection" if isinstance(param, ConnectionOption) else "Options"].append(record)
        for title, records in sections.items():
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)
        if isinstance(self, click.Group):
            self.format_commands(ctx, formatter)


class OutputForm(click.Choice[str]):
    """One of the words; `-o=json` is understood as kubectl does."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:  # noqa: ANN401 - click's
        return super().convert(str(value).removeprefix("="), param, ctx)


def output_option(*words: str, default: str = "table") -> Callable[[Function], Function]:
    return click.option(
        "-o", "--output", type=OutputForm(words), default=default, show_default=True, help="Output format."
    )


def misused(sentence: str) -> click.UsageError:
    """What a command finds wrong with its command line; it names the command whose --help says more."""
    return click.UsageError(sentence, click.get_current_context(silent=True))


class PartOfName(click.ParamType[str]):
    """Of a name or model, as it is: `*` would be looked for."""

    name = "text"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:  # noqa: ANN401 - click's
        text = str(value)
        if "*" in text:
            plain = text.replace("*", "") or "llm"
            self.fail(f"a part of the name needs no *; write {plain[:40]!r}", param, ctx)
        return text


def name_option(text: str) -> Callable[[Function], Function]:
    """`--name`, given to the command as `named`."""
    return click.option("--name", "named", type=PartOfName(), default="", metavar="TEXT", help=text)


class NamespaceName(click.ParamType[str]):
    """A namespace, or `PREFIX*`."""

    name = "text"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:  # noqa: ANN401 - click's
        text = str(value)
        if "*" in text[:-1]:
            self.fail(f"in {text[:40]!r} * must stand at the end, as in 'team-*'", param, ctx)
        return text


def pod_name(text: str, namespace: str, *, given: str = "") -> tuple[str, str]:
    """Namespace and name of `NAME`, `pod/NAME`, `NAMESPACE/NAME` or `NAMESPACE/pod/NAME`.

    `pod/NAME` is what kubectl means by it; a namespace of that name goes with -n, which is `given`.
    """
    parts = text.split("/")
    if len(parts) > 1 and parts[-2] in _POD_KINDS:
        del parts[-2]
    if not all(parts) or len(parts) > 2:
        raise misused(f"{text[:100]!r} is not the name of a pod; write NAME, pod/NAME or NAMESPACE/NAME")
    if len(parts) == 2 and given and given != parts[0]:
        raise misused(f"{text[:100]!r} and -n {given[:100]} name two namespaces; give one of them")
    return (parts[0] if len(parts) == 2 else namespace), parts[-1]


def node_name(text: str) -> str:
    """The name of `NAME` or `node/NAME`."""
    kind, slash, name = text.rpartition("/")
    if not name or (slash and kind not in _NODE_KINDS):
        raise misused(f"{text[:100]!r} is not the name of a node; write NAME or node/NAME")
    return name


_DOCUMENTS = ("json", "yaml")


class Refused(click.ClickException):
    """A VcudaError as the end of the program: one line, status 1."""

    exit_code = 1

    def show(self, file: IO[Any] | None = None) -> None:
        click.echo(f"vcuda: {self.message}", file=file or sys.stderr)


class Bug(Refused):
    """Any other error; its status is not the one of a VcudaError."""

    exit_code = os.EX_SOFTWARE


class Misused(Refused):
    """A wrong command line: one line, status 2."""

    exit_code = 2


def clearer(error: click.ClickException) -> click.ClickException:
    """Click's error as one line: the option, what is wrong with it, and where the options are explained."""
    if not isinstance(error, click.UsageError) or isinstance(error, click.exceptions.NoArgsIsHelpError):
        return error
    sentence = _sentence(error).rstrip(".")
    hint = f"; see {error.ctx.command_path} --help" if error.ctx is not None and not sentence.endswith("?") else ""
    return Misused(f"{sentence[:1].lower()}{sentence[1:]}{hint}")


def _sentence(error: click.UsageError) -> str:
    """With the closest option first, and with all options that are missing instead of the first."""
    if isinstance(error, click.NoSuchOption) and error.possibilities:
        return f"No such option '{error.option_name}'; did you mean {' or '.join(error.possibilities[:2])}?"
    if isinstance(error, click.MissingParameter) and error.ctx is not None:
        missing = [
            each.get_error_hint(error.ctx)
            for each in error.ctx.command.params
            if each.required and each.name not in error.ctx.params
        ]
        return f"Missing {', '.join(missing)}" if len(missing) > 1 else error.format_message()
    if type(error) is click.BadParameter and error.param is not None:
        hint = error.param.get_error_hint(error.ctx).replace("'", "")
        return f"{hint}: {error.message}"
    return error.format_message()


def closest(word: str, known: Sequence[str]) -> str:
    """The known words that are most like it, for the end of a sentence; empty if none is."""
    found = get_close_matches(word, known, n=2)
    return f"; did you mean {' or '.join(found)}?" if found else ""


def report(error: click.ClickException, arguments: Sequence[str]) -> None:
    """The document for programs, where they asked for one."""
    form = _asked_form(arguments)
    if not form:
        return
    document = {"error": error.format_message()}
    text = json.dumps(document) if form == "json" else yaml.safe_dump(document, allow_unicode=True).rstrip()
    with suppress(OSError):  # a full disk or a closed pipe; the sentence still goes to standard error
        click.echo(text)


def _asked_form(arguments: Sequence[str]) -> str:
    """What -o or --output says, as far as it can be told from a command line that may be wrong."""
    given = list(arguments[: arguments.index("--")] if "--" in arguments else arguments)
    found = ""
    for word, following in zip(given, [*given[1:], ""], strict=True):
        if word in ("-o", "--output"):
            found = following
        elif word.startswith("--output="):
            found = word.removeprefix("--output=")
        elif word.startswith("-o"):
            found = word.removeprefix("-o").removeprefix("=")
    return found if found in _DOCUMENTS else ""
