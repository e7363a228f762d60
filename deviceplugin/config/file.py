"""The configuration file: YAML with `apiVersion: vcuda/v1`, the `kind` of a program, and the settings under `spec`.

In: a path, and the settings that `spec` may have. Out: the text of each setting, as a flag would hold it, by its name:
click's `default_map`. An unknown key, a key given twice, a wrong YAML type, another version or kind: one ConfigError
that names the file and the path of the key.
"""

import difflib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import yaml

from deviceplugin.config.param_types import SettingType, read_content
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
