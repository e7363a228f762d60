"""The settings in force, and where each came from: flag over environment over file over default.

In: a program, texts of flags by flag name, the environment, and the file's path. Out: `Effective`: the frozen tree and
one entry for each setting, or a ConfigError that names the flag, the variable or the key. Nothing is started here.
"""

import enum
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic

from deviceplugin.config.file import read_file
from deviceplugin.config.kinds import OPTIONAL_PATH
from deviceplugin.config.program import Program, Tree
from deviceplugin.config.setting import Setting, filled
from deviceplugin.errors import ConfigError


class Layer(enum.Enum):
    """Where a value came from, strongest first."""

    FLAG = "flag"
    ENV = "env"
    FILE = "file"
    DEFAULT = "default"


@dataclass(frozen=True, slots=True)
class Entry:
    """One setting in force; `where` names the flag, the variable or file and key, and is empty for a default."""

    setting: Setting
    value: Any
    layer: Layer
    where: str = ""

    @property
    def text(self) -> str:
        return self.setting.kind.show(self.value)

    @property
    def plain(self) -> object:
        """The value as the file would hold it."""
        if isinstance(self.value, Mapping):
            return dict(self.value)
        return self.value if isinstance(self.value, bool | int) else self.text


@dataclass(frozen=True, slots=True)
class Effective(Generic[Tree]):
    """The tree, its entries in the tree's order, and the file that was read."""

    program: Program[Tree]
    settings: Tree
    entries: tuple[Entry, ...]
    file: Path | None = None

    def changed(self) -> dict[str, str]:
        """What was set by someone, as the program logs it at start: key to `value (where)`."""
        set_ = (entry for entry in self.entries if entry.layer is not Layer.DEFAULT)
        return {entry.setting.key: f"{entry.text} ({entry.where})" for entry in set_}


def resolve(
    program: Program[Tree], *, flags: Mapping[str, str], env: Mapping[str, str], file: Path | None = None
) -> Effective[Tree]:
    """Merges the layers. `flags` holds only what the command line gave, by flag name without dashes."""
    path = _file(program, file, env)
    by_key = {setting.key: setting for setting in program.settings}
    given = _Given(program, flags, env, read_file(path, kind=program.kind, keys=by_key) if path else {}, path)
    entries = {setting.flag: given.entry(setting) for setting in by_key.values()}
    known = {flag: entry.value for flag, entry in entries.items()}
    for flag, entry in entries.items():
        if entry.setting.derive and entry.layer is Layer.DEFAULT:
            entries[flag] = Entry(entry.setting, entry.setting.derive(known, env), Layer.DEFAULT)
    settings = filled(program.tree, {flag: entry.value for flag, entry in entries.items()})
    program.check(settings)
    return Effective(program, settings, tuple(entries.values()), path)


def _file(program: Program[Tree], file: Path | None, env: Mapping[str, str]) -> Path | None:
    where, text = ("--config", str(file)) if file else (program.file_env, env.get(program.file_env, ""))
    try:
        return OPTIONAL_PATH.read(text)
    except ValueError as error:
        raise ConfigError(f"{where}: {error}") from None


@dataclass(frozen=True, slots=True)
class _Given:
    """What each layer holds; `written` is the file's `spec`."""

    program: Program[Any]
    flags: Mapping[str, str]
    env: Mapping[str, str]
    written: Mapping[str, object]
    path: Path | None

    def entry(self, setting: Setting) -> Entry:
        for layer, where, raw in self._found(setting):
            try:
                value = setting.kind.read_yaml(raw) if layer is Layer.FILE else setting.kind.read(str(raw))
            except ValueError as error:
                raise ConfigError(f"{where}: {error}") from None
            return Entry(setting, value, layer, where)
        return Entry(setting, setting.default, Layer.DEFAULT)

    def _found(self, setting: Setting) -> Iterator[tuple[Layer, str, object]]:
        if setting.flag in self.flags:
            yield Layer.FLAG, setting.option, self.flags[setting.flag]
        for name in self.program.variables(setting):
            if self.env.get(name):  # an empty variable is an unset one: that is what an unset ConfigMap key becomes
                yield Layer.ENV, name, self.env[name]
        if setting.key in self.written:
            yield Layer.FILE, f"{self.path}: $.spec.{setting.key}", self.written[setting.key]
