"""A click command that takes a tree of settings.

In: a `Program`, the command line, the environment, the file. Out: `Effective`: the frozen tree, and where each value
came from. Click does the work: a variable follows from `auto_envvar_prefix`, the file is the `default_map`, the origin
is the parameter source. So a flag wins over the variable, the variable over the file, the file over the default. A
wrong value is a ConfigError that names the flag, the variable, or the file and the key.

The configuration file: YAML with `apiVersion: vcuda/v1`, the `kind` of a program, and the settings under `spec`.

In: a path, and the settings that `spec` may have. Out: the text of each setting, as a flag would hold it, by its name:
click's `default_map`. An unknown key, a key given twice, a wrong YAML type, another version or kind: one ConfigError
that names the file and the path of the key.
"""

import difflib
import enum
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

import click
import yaml

from deviceplugin.config import param_types as types
from deviceplugin.config.param_types import SettingType, read_content
from deviceplugin.config.setting import Section, Setting, filled, sections_of, setting
from deviceplugin.errors import ConfigError

API_VERSION = "vcuda/v1"


class _Loader(yaml.SafeLoader):
    """SafeLoader that refuses a key given twice, where YAML itself would silently take the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value in seen:
                line = key.start_mark.line + 1
                raise yaml.MarkedYAMLError(problem=f"{key.value!r} is given twice, again in line {line}")
            seen.add(str(key.value))
        return super().construct_mapping(node, deep)


def read_file(path: Path, *, kind: str, settings: Mapping[str, tuple[str, SettingType[Any]]]) -> dict[str, str]:
    """Reads the file; `settings` are name and type by key."""
    document = _load(path)
    if not isinstance(document, dict):
        raise ConfigError(f"{path}: $ is not a mapping; start with apiVersion: {API_VERSION} and kind: {kind}")
    for key, expected in (("apiVersion", API_VERSION), ("kind", kind)):
        if document.get(key) != expected:
            found = f"{document[key]!r}" if key in document else "missing"
            raise ConfigError(f"{path}: $.{key} is {found}; this version of vcuda reads {expected}")
    _refuse_unknown(path, "$", document, ("apiVersion", "kind", "spec"))
    spec = document.get("spec")
    if spec is None:
        return {}
    if not isinstance(spec, dict):
        raise ConfigError(f"{path}: $.spec is not a mapping of settings")
    _refuse_unknown(path, "$.spec", spec, settings)
    return dict(_text(path, key, value, *settings[key]) for key, value in spec.items())


def _text(path: Path, key: str, value: object, name: str, type_: SettingType[Any]) -> tuple[str, str]:
    try:
        return name, type_.text_of(value)
    except ValueError as error:
        raise ConfigError(f"{path}: $.spec.{key}: {error}") from None


def _load(path: Path) -> object:
    try:
        raw = read_content(path)
    except ValueError as error:
        raise ConfigError(f"{path}: the configuration file {error}") from None
    try:
        return yaml.load(raw, Loader=_Loader)  # noqa: S506 - a SafeLoader
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: not YAML: {' '.join(str(error).split())[:300]}") from None


def _refuse_unknown(path: Path, at: str, found: Mapping[object, object], known: Collection[str]) -> None:
    for key in found:
        if key not in known:
            near = difflib.get_close_matches(str(key), known, n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            shown = key if isinstance(key, str) and key.isprintable() else repr(key)
            raise ConfigError(f"{path}: {at}.{shown[:60]} is not a known key{hint}")


# ruff: noqa: RUF009 - `setting` is dataclasses.field with a description


Tree = TypeVar("Tree")


class LogLevel(enum.Enum):
    """The least severe lines that are written."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class LogFormat(enum.Enum):
    """How lines are written; `auto` is `console` on a terminal and `json` elsewhere."""

    AUTO = "auto"
    JSON = "json"
    CONSOLE = "console"


@dataclass(frozen=True, slots=True)
class LogSettings:
    """What every program writes to standard error."""

    level: LogLevel = setting("log-level", LogLevel.INFO, "Least severe log lines to write.")
    format: LogFormat = setting(
        "log-format", LogFormat.AUTO, "Format of log lines; auto: console on a terminal, json elsewhere."
    )


@dataclass(frozen=True, slots=True)
class Program(Generic[Tree]):
    """A program with settings: `command` as in `vcuda agent`, `kind` as in the file.

    `retired` are flags that are accepted and have no effect, each with the reason; `check` raises ConfigError where
    values do not go together.
    """

    command: str
    kind: str
    tree: type[Tree]
    check: Callable[[Tree], None] = lambda _settings: None
    retired: Mapping[str, str] = field(default_factory=dict)

    @property
    def env_prefix(self) -> str:
        return f"VCUDA_{self.command.upper()}"

    @property
    def sections(self) -> tuple[Section, ...]:
        return tuple(sections_of(self.tree))

    @property
    def settings(self) -> tuple[Setting, ...]:
        return tuple(each for branch in self.sections for each in branch.settings)


@dataclass(frozen=True, slots=True)
class EffectiveValue:
    """One setting in force; `origin` is flag, env, file or default, `where` says where exactly."""

    setting: Setting
    value: Any
    origin: str
    where: str

    @property
    def text(self) -> str:
        return self.setting.value_type.show(self.value)

    @property
    def plain(self) -> object:
        """The value as the file would hold it."""
        if isinstance(self.value, Mapping):
            return dict(self.value)
        return self.value if isinstance(self.value, bool | int) else self.text


@dataclass(frozen=True, slots=True)
class Effective(Generic[Tree]):
    """The tree, its entries in the tree's order, the file that was read, and sentences about retired flags."""

    program: Program[Tree]
    settings: Tree
    entries: tuple[EffectiveValue, ...]
    file: Path | None
    retired: tuple[str, ...]

    def changed(self) -> dict[str, str]:
        """What differs from the defaults, as the program logs it at start: key to `value (where)`."""
        return {each.setting.key: f"{each.text} ({each.where})" for each in self.entries if each.where}


class SettingsCommand(click.Command, Generic[Tree]):
    """A command with the settings of a program; its callback gets `effective`, and its other options as always."""

    def __init__(
        self,
        name: str | None,
        *,
        program: Program[Tree],
        params: list[click.Parameter] | None = None,
        **attributes: Any,  # noqa: ANN401 - as click.Command
    ) -> None:
        self.program = program
        self._retired = [Setting(flag, None, why, types.ANYTHING, hidden=True) for flag, why in program.retired.items()]
        self._settings = [*program.settings, *self._retired]
        config = Setting(
            "config", None, "YAML file with settings, apiVersion vcuda/v1.", is_eager=True, callback=self._load
        )
        for each in params or ():
            each.allow_from_autoenv = False  # type: ignore[attr-defined] # only settings have variables
        attributes["context_settings"] = {
            "auto_envvar_prefix": program.env_prefix,
            "token_normalize_func": lambda name: name.replace("_", "-"),  # as pflag does for gpu-manager's flags
        }
        super().__init__(name, params=[*self._settings, config, *(params or ())], **attributes)

    def _load(self, ctx: click.Context, option: click.Parameter, path: Path | None) -> Path | None:
        if path is not None:
            by_key = {each.key: (each.name, each.value_type) for each in self._settings}
            ctx.default_map = read_file(path, kind=self.program.kind, settings=by_key)
        return path

    def effective(self, ctx: click.Context) -> Effective[Tree]:
        """What the context of this command holds; ConfigError where values do not go together."""
        settings = filled(self.program.tree, ctx.params)
        self.program.check(settings)
        retired: dict[str, list[str]] = {}
        for each in self._retired:
            if where := each.origin(ctx)[1]:
                retired.setdefault(each.doc, []).append(where)
        return Effective(
            self.program,
            settings,
            tuple(EffectiveValue(each, ctx.params[each.name], *each.origin(ctx)) for each in self.program.settings),
            ctx.params["config"],
            tuple(
                f"{', '.join(given)} {'has' if len(given) == 1 else 'have'} no effect: {why}"
                for why, given in retired.items()
            ),
        )

    def invoke(self, ctx: click.Context) -> Any:  # noqa: ANN401 - click's signature
        own = {"config", *(each.name for each in self._settings)}
        others = {name: value for name, value in ctx.params.items() if name not in own}
        ctx.params = {"effective": self.effective(ctx), **others}
        return super().invoke(ctx)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The settings under the titles of their sections."""
        shown: list[tuple[str, list[click.Parameter]]] = [
            (branch.title, list(branch.settings)) for branch in self.program.sections
        ]
        listed = [each for _, branch in shown for each in branch]
        shown.append(("Other", [each for each in self.get_params(ctx) if each not in listed]))
        for title, parameters in shown:
            records = (each.get_help_record(ctx) for each in parameters)
            with formatter.section(title):
                formatter.write_dl([record for record in records if record])
