"""One setting as a click option, and a tree of settings as dataclasses.

In: dataclasses whose fields are made by `setting` and `section`. Out: click options, and a tree filled with values.
The flag's name is the only name that is chosen: `--query-port` of `vcuda agent` is `VCUDA_AGENT_QUERY_PORT` in the
environment and `queryPort` under `spec` in the file. A setting is the metadata of a dataclass field, so the tree and
its reference cannot drift apart.
"""

import dataclasses
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from deviceplugin.config import param_types as types
from deviceplugin.config.param_types import SettingType
from deviceplugin.errors import ConfigError

_SETTING, _SECTION, _TITLE = "setting", "section", "title"

T = TypeVar("T")
Derive = Callable[[Mapping[str, Any]], Any]


class Setting(click.Option):
    """One setting.

    `doc` is the sentence of help and reference; without `type_` the default tells the type. `derive` makes the default
    from the settings before it (by name) where it depends on the machine; `derived` says how in words. `more_env` are
    variables that also set it, after its own.
    """

    def __init__(
        self,
        flag: str,
        default: object,
        doc: str,
        type_: SettingType[Any] | None = None,
        *,
        derive: Derive | None = None,
        derived: str = "",
        more_env: tuple[str, ...] = (),
        **attributes: Any,  # noqa: ANN401 - as click.Option
    ) -> None:
        self.flag = flag
        self.value_type = type_ = type_ or types.type_of(default)
        self.doc = doc
        self.derive = derive
        self.derived = derived
        self.more_env = more_env
        if type_ in (types.BOOLEAN, types.ANYTHING):
            attributes |= {"is_flag": False, "flag_value": "true"}  # `--share-mode` alone is true, as with Go's flags
        super().__init__(self._forms(flag), type=type_, metavar=type_.metavar, help=doc, default=default, **attributes)

    @staticmethod
    def _forms(flag: str) -> list[str]:
        return [f"--{flag}", f"-{flag}"] if len(flag) == 1 else [f"--{flag}"]

    @property
    def key(self) -> str:
        """Its name in the file."""
        first, *rest = self.flag.split("-")
        return first + "".join(word.capitalize() for word in rest)

    @property
    def default_text(self) -> str:
        """The default as help and reference show it; empty where there is none."""
        return self.derived or self.value_type.show(self.default)

    def variables(self, prefix: str) -> tuple[str, ...]:
        """The environment variables that set it, strongest first."""
        return (f"{prefix}_{self.name.upper()}", *self.more_env)

    def _variable(self, ctx: click.Context) -> str:
        """The variable that holds its value; an empty variable is an unset one, as an unset ConfigMap key becomes."""
        return next((name for name in self.variables(ctx.auto_envvar_prefix or "") if os.environ.get(name)), "")

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

    def get_default(self, ctx: click.Context, call: bool = True) -> Any:  # noqa: ANN401 - click's signature
        return self.derive(ctx.params) if self.derive else self.default

    def type_cast_value(self, ctx: click.Context, value: Any) -> Any:  # noqa: ANN401 - click's signature
        if ctx.get_parameter_source(self.name) is ParameterSource.DEFAULT:
            return value
        try:
            return super().type_cast_value(ctx, value)
        except click.BadParameter as error:
            raise ConfigError(f"{self.origin(ctx)[1]}: {error.message}") from None

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
