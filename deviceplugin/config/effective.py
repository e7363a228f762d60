"""The settings in force, and where each came from: flag over environment over file over default.

In: texts of flags by flag name, the environment, and the file's path. Out: `Effective`: the frozen tree and one entry
for each setting, or a ConfigError that names the flag, the variable or the key. Nothing is started here.
"""

import enum
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deviceplugin.config.agent import AgentSettings
from deviceplugin.config.file import read_file
from deviceplugin.config.kinds import OPTIONAL_PATH
from deviceplugin.config.setting import Setting, sections_of, settings_of
from deviceplugin.errors import ConfigError

FILE_ENV = "VCUDA_AGENT_CONFIG"
_ANSWER_WITHIN = 2.0  # kubelet's sync loop waits for Allocate without a deadline of its own (design 3.2)


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
class Effective:
    """The tree, its entries in the tree's order, and the file that was read."""

    settings: AgentSettings
    entries: tuple[Entry, ...]
    file: Path | None = None

    def changed(self) -> dict[str, str]:
        """What was set by someone, as the agent logs it at start: key to `value (where)`."""
        set_ = (entry for entry in self.entries if entry.layer is not Layer.DEFAULT)
        return {entry.setting.key: f"{entry.text} ({entry.where})" for entry in set_}


def resolve(*, flags: Mapping[str, str], env: Mapping[str, str], file: Path | None = None) -> Effective:
    """Merges the layers. `flags` holds only what the command line gave, by flag name without dashes."""
    path = _file(file, env)
    by_key = {setting.key: setting for setting in settings_of(AgentSettings)}
    written = read_file(path, keys=by_key) if path else {}
    entries = {
        setting.flag: _entry(setting, flags=flags, env=env, written=written, path=path) for setting in by_key.values()
    }
    known = {flag: entry.value for flag, entry in entries.items()}
    for flag, entry in entries.items():
        if entry.setting.derive and entry.layer is Layer.DEFAULT:
            entries[flag] = Entry(entry.setting, entry.setting.derive(known, env), Layer.DEFAULT)
    settings = _tree(entries)
    _check_together(settings)
    return Effective(settings, tuple(entries.values()), path)


def _file(file: Path | None, env: Mapping[str, str]) -> Path | None:
    where, text = ("--config", str(file)) if file else (FILE_ENV, env.get(FILE_ENV, ""))
    try:
        return OPTIONAL_PATH.read(text)
    except ValueError as error:
        raise ConfigError(f"{where}: {error}") from None


def _entry(
    setting: Setting,
    *,
    flags: Mapping[str, str],
    env: Mapping[str, str],
    written: Mapping[str, object],
    path: Path | None,
) -> Entry:
    for layer, where, raw in _found(setting, flags=flags, env=env, written=written, path=path):
        try:
            value = setting.kind.read_yaml(raw) if layer is Layer.FILE else setting.kind.read(str(raw))
        except ValueError as error:
            raise ConfigError(f"{where}: {error}") from None
        return Entry(setting, value, layer, where)
    return Entry(setting, setting.default, Layer.DEFAULT)


def _found(
    setting: Setting,
    *,
    flags: Mapping[str, str],
    env: Mapping[str, str],
    written: Mapping[str, object],
    path: Path | None,
) -> Iterator[tuple[Layer, str, object]]:
    if setting.flag in flags:
        yield Layer.FLAG, setting.option, flags[setting.flag]
    for name in setting.env:
        if env.get(name):  # an empty variable is an unset one: that is what an unset ConfigMap key becomes
            yield Layer.ENV, name, env[name]
    if setting.key in written:
        yield Layer.FILE, f"{path}: $.spec.{setting.key}", written[setting.key]


def _tree(entries: Mapping[str, Entry]) -> AgentSettings:
    branches = {
        branch.field: branch.type(**{name: entries[leaf.flag].value for name, leaf in branch.settings.items()})
        for branch in sections_of(AgentSettings)
    }
    return AgentSettings(**branches)


def _check_together(settings: AgentSettings) -> None:
    allocation = settings.allocation
    together = allocation.identity_budget * len(allocation.identity)
    if together >= _ANSWER_WITHIN:
        raise ConfigError(
            f"--identity-budget: {allocation.identity_budget:g}s for each of {len(allocation.identity)} sources is "
            f"{together:g}s, and Allocate must answer within {_ANSWER_WITHIN:g}s; shorten it or name fewer sources "
            f"in --identity"
        )
