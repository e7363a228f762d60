"""One setting: its flag, and what follows from the flag.

The flag's name is the only name that is chosen: `--query-port` of `vcuda agent` is mirrored as `VCUDA_AGENT_QUERY_PORT`
(`program`) and is `queryPort` under `spec` in the file. A setting is the metadata of a dataclass field, so the tree of
values and its reference cannot drift apart.
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from deviceplugin.config.kinds import Kind

_METADATA = "setting"
_BRANCH = "branch"

T = TypeVar("T")

Derive = Callable[[Mapping[str, Any], Mapping[str, str]], Any]


@dataclass(frozen=True, slots=True)
class Setting:
    """What is known of a field besides its type.

    `doc` is the sentence of the reference. `derive` makes the default from the other settings (by flag) and the
    environment; `derived` says how in words. `more_env` are variables that also set it, after the program's own.
    """

    flag: str
    kind: Kind[Any]
    doc: str
    default: Any
    derive: Derive | None = None
    derived: str = ""
    more_env: tuple[str, ...] = ()
    hidden: bool = False

    @property
    def option(self) -> str:
        return f"--{self.flag}"

    @property
    def key(self) -> str:
        first, *rest = self.flag.split("-")
        return first + "".join(word.capitalize() for word in rest)

    @property
    def default_text(self) -> str:
        """The default as the reference shows it; empty where there is none."""
        return self.derived or self.kind.show(self.default)


@dataclass(frozen=True, slots=True)
class Section:
    """A branch of the tree with the settings that it holds itself."""

    title: str
    settings: tuple[Setting, ...]


def setting(
    flag: str,
    kind: Kind[T],
    doc: str,
    *,
    default: T,
    derive: Derive | None = None,
    derived: str = "",
    more_env: tuple[str, ...] = (),
    hidden: bool = False,
) -> T:
    """A dataclass field that is a setting."""
    described = Setting(flag, kind, doc, default, derive, derived, more_env, hidden)
    metadata = {_METADATA: described}
    if isinstance(default, dict):
        return cast("T", dataclasses.field(default_factory=lambda: default, metadata=metadata))
    return dataclasses.field(default=default, metadata=metadata)


def section(branch: type[T], title: str) -> T:
    """A dataclass field that is a branch of settings."""
    return dataclasses.field(default_factory=branch, metadata={"title": title, _BRANCH: branch})


def sections_of(tree: type) -> Iterator[Section]:
    """The branches of a tree in order, each before those within it."""
    for each in dataclasses.fields(tree):
        if branch := each.metadata.get(_BRANCH):
            leaves = (leaf.metadata.get(_METADATA) for leaf in dataclasses.fields(branch))
            yield Section(each.metadata["title"], tuple(leaf for leaf in leaves if leaf is not None))
            yield from sections_of(branch)


def settings_of(tree: type) -> Iterator[Setting]:
    """Every setting of a tree, in order."""
    for branch in sections_of(tree):
        yield from branch.settings


def filled(tree: type[T], values: Mapping[str, Any]) -> T:
    """A tree with values by flag; a field that is neither setting nor branch keeps its default."""
    fields: dict[str, Any] = {}
    for each in dataclasses.fields(tree):  # type: ignore[arg-type]
        if leaf := each.metadata.get(_METADATA):
            fields[each.name] = values[leaf.flag]
        elif branch := each.metadata.get(_BRANCH):
            fields[each.name] = filled(branch, values)
    return tree(**fields)
