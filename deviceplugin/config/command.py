"""Settings as click options, a tree of them as dataclasses, and a click command that takes such a tree.

In: a `Program` with a tree whose fields are made by `setting` and `section`; the command line, the environment, and a
file: YAML with `apiVersion: vcuda/v1`, the `kind` of the program, and the settings under `spec`. Out: `Effective`: the
frozen tree, and where each value came from. A wrong value, an unknown key, a key given twice, another version or kind:
one ConfigError that names the flag, the variable, or the file and the key.

The flag's name is the only name that is chosen: `--query-port` of `vcuda agent` is `VCUDA_AGENT_QUERY_PORT` in the
environment and `queryPort` in the file. A setting is the metadata of a dataclass field, so the tree and its reference
cannot drift apart. Click does the work: the file is the `default_map`, the origin is the parameter source. So a flag
wins over the variable, the variable over the file, the file over the default.
"""

# ruff: noqa: RUF009 - `setting` is dataclasses.field with a description

import dataclasses
import difflib
import enum
import os
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

import click
import yaml
from click.core import ParameterSource

from deviceplugin.config import param_types as types
from deviceplugin.config.param_types import SettingType, read_content
from deviceplugin.errors import ConfigError

API_VERSION = "vcuda/v1"
_SETTING, _SECTION, _TITLE = "setting", "section", "title"

T = TypeVar("T")
Tree = TypeVar("Tree")


class Setting(click.Option):
    """One setting.

    `doc` is the sentence of help and reference; without `type_` the default tells the type. `derive` makes the default
    if it depends on the machine; `derived` says how in words. `more_env` are variables that also set it, after its own.
    """

    def __init__(
        self,
        flag: str,
        default: object,
        doc: str,
        type_: SettingType[Any] | None = None,
        *,
        derive: Callable[[], object] | None = None,
        derived: str = "",
        more_env: tuple[str, ...] = (),
        **attributes: Any,  # noqa: ANN401 - as click.Option
    ) -> None:
        self.flag = flag
        self.value_type = type_ = type_ or types.type_of(default)
        self.doc = doc
        self.derived = derived
        self.more_env = more_env
        if type_ in (types.BOOLEAN, types.ANYTHING):
            attributes |= {"is_flag": False, "flag_value": "true"}  # `--share-mode` alone is true, as with Go's flags
        forms = [f"--{flag}", f"-{flag}"] if len(flag) == 1 else [f"--{flag}"]
        attributes |= {"type": type_, "metavar": type_.metavar, "help": doc, "default": derive or default}
        super().__init__(forms, **attributes)

    @property
    def key(self) -> str:
        """Its name in the file."""
        first, *rest = self.flag.split("-")
        return first + "".join(word.capitalize() for word in rest)

    @property
    def default_text(self) -> str:
        """The default as help and reference show it; empty if there is none."""
        return self.derived or self.value_type.show(self.default)

    def variables(self, prefix: str) -> tuple[str, ...]:
        """The environment variables that set it, strongest first."""
        return (f"{prefix}_{self.name.upper()}", *self.more_env)

    def _variable(self, ctx: click.Context) -> str:
        """The variable that holds its value; an empty variable is an unset one, as an unset ConfigMap key becomes."""
        return next(filter(os.environ.get, self.variables(ctx.auto_envvar_prefix or "")), "")

    def origin(self, ctx: click.Context) -> tuple[str, str]:
        """`flag`, `env`, `file` or `default`, and the flag, the variable, or file and key that gave its value."""
        source = ctx.get_parameter_source(self.name)
        if source is ParameterSource.COMMANDLINE:
            return "flag", f"--{self.flag}"
        if source is ParameterSource.ENVIRONMENT:
            return "env", self._variable(ctx)
        if source is ParameterSource.DEFAULT_MAP:
            return "file", f"{ctx.params['config']}: $.spec.{self.key}"
        return "default", ""

    def resolve_envvar_value(self, ctx: click.Context) -> str | None:
        return os.environ.get(self._variable(ctx))

    def type_cast_value(self, ctx: click.Context, value: Any) -> Any:  # noqa: ANN401 - click's signature
        origin, where = self.origin(ctx)
        if origin == "default":
            return value  # it is a value already, not its text
        try:
            return super().type_cast_value(ctx, value)
        except click.BadParameter as error:
            raise ConfigError(f"{where}: {error.message}") from None

    def get_help_extra(self, ctx: click.Context) -> Any:  # noqa: ANN401 - a TypedDict that click does not export
        extra: dict[str, object] = {"envvars": self.variables(ctx.auto_envvar_prefix or "")}
        return extra | ({"default": self.default_text} if self.default_text else {})


@dataclass(frozen=True, slots=True)
class Section:
    """A branch of a tree with the settings that it holds itself."""

    title: str
    settings: tuple[Setting, ...]


def setting(
    flag: str,
    default: T,
    doc: str,
    type_: SettingType[T] | None = None,
    **more: Any,  # noqa: ANN401 - as Setting
) -> T:
    """A dataclass field that is a setting; without a type that of its default, and `more` as of `Setting`."""
    found = Setting(flag, default, doc, type_, **more)
    return field(default_factory=lambda: default, metadata={_SETTING: found})


def section(branch: type[T], title: str) -> T:
    """A dataclass field that is a branch of settings."""
    return field(default_factory=branch, metadata={_TITLE: title, _SECTION: branch})


def sections_of(tree: type) -> Iterator[Section]:
    """The branches of a tree in order, each before those within it."""
    for each in dataclasses.fields(tree):
        if branch := each.metadata.get(_SECTION):
            leaves = (leaf.metadata.get(_SETTING) for leaf in dataclasses.fields(branch))
            yield Section(each.metadata[_TITLE], tuple(leaf for leaf in leaves if leaf is not None))
            yield from sections_of(branch)


def filled(tree: type[T], values: Mapping[str, Any]) -> T:
    """A tree with values by name; a field that is neither setting nor branch keeps its default."""
    fields: dict[str, Any] = {}
    for each in dataclasses.fields(tree):  # type: ignore[arg-type]
        if leaf := each.metadata.get(_SETTING):
            fields[each.name] = values[leaf.name]
        elif branch := each.metadata.get(_SECTION):
            fields[each.name] = filled(branch, values)
    return tree(**fields)


class _Loader(yaml.SafeLoader):
    """SafeLoader that refuses a key given twice, if YAML itself would silently take the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value in seen:
                line = key.start_mark.line + 1
                raise yaml.MarkedYAMLError(problem=f"{key.value!r} is given twice, again in line {line}")
            seen.add(str(key.value))
        return super().construct_mapping(node, deep)


def read_file(path: Path, *, kind: str, settings: Mapping[str, Setting]) -> dict[str, str]:
    """The text of each setting of the file, as a flag would hold it, by name; `settings` are those that it may have."""
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
    return {settings[key].name: _text(path, settings[key], value) for key, value in spec.items()}


def _text(path: Path, setting: Setting, value: object) -> str:
    try:
        return setting.value_type.text_of(value)
    except ValueError as error:
        raise ConfigError(f"{path}: $.spec.{setting.key}: {error}") from None


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


class LogLevel(enum.Enum):
    """The least severe lines that are written."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class LogSettings:
    """What every program writes to standard error."""

    level: LogLevel = setting("log-level", LogLevel.INFO, "Least severe log lines to write.")


@dataclass(frozen=True, slots=True)
class Program(Generic[Tree]):
    """A program with settings: `command` as in `vcuda agent`, `kind` as in the file.

    `retired` are flags that are accepted and have no effect, each with the reason; `check` raises ConfigError if
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
            by_key = {each.key: each for each in self._settings}
            ctx.default_map = read_file(path, kind=self.program.kind, settings=by_key)
        return path

    def effective(self, ctx: click.Context) -> Effective[Tree]:
        """What the context of this command holds; ConfigError if values do not go together."""
        settings = filled(self.program.tree, ctx.params)
        self.program.check(settings)
        entries = tuple(
            EffectiveValue(each, ctx.params[each.name], *each.origin(ctx)) for each in self.program.settings
        )
        return Effective(self.program, settings, entries, ctx.params["config"], tuple(self._without_effect(ctx)))

    def _without_effect(self, ctx: click.Context) -> Iterator[str]:
        given: dict[str, list[str]] = {}
        for each in self._retired:
            if where := each.origin(ctx)[1]:
                given.setdefault(each.doc, []).append(where)
        for why, places in given.items():
            yield f"{', '.join(places)} {'has' if len(places) == 1 else 'have'} no effect: {why}"

    def invoke(self, ctx: click.Context) -> Any:  # noqa: ANN401 - click's signature
        own = {"config", *(each.name for each in self._settings)}
        others = {name: value for name, value in ctx.params.items() if name not in own}
        ctx.params = {"effective": self.effective(ctx), **others}
        return super().invoke(ctx)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The settings under the titles of their sections."""
        others = [each for each in self.get_params(ctx) if each not in self._settings]
        for title, parameters in (*((each.title, each.settings) for each in self.program.sections), ("Other", others)):
            with formatter.section(title):
                formatter.write_dl([record for each in parameters if (record := each.get_help_record(ctx))])
