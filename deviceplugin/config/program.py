"""One of our programs as its settings see it: their tree, and the names that environment and file have for them.

In: the tree's class and the names. Out: a value that `effective`, `options`, the file's reader and the reference are
given, so that each of them exists once for all programs.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from deviceplugin.config.setting import Section, Setting, sections_of, settings_of

Tree = TypeVar("Tree")


def _always_fits(tree: Any) -> None:  # noqa: ANN401 - any tree
    """Nothing to say about the values together."""


@dataclass(frozen=True, slots=True)
class Program(Generic[Tree]):
    """`command` as in `vcuda agent`, `kind` as in the file.

    `retired` are flags that are accepted and mean nothing any more, each with the reason; `check` raises ConfigError
    where values do not go together.
    """

    command: str
    kind: str
    tree: type[Tree]
    retired: Mapping[str, str] = field(default_factory=dict)
    check: Callable[[Tree], None] = _always_fits

    @property
    def env_prefix(self) -> str:
        return f"VCUDA_{self.command.upper()}_"

    @property
    def file_env(self) -> str:
        return f"{self.env_prefix}CONFIG"

    @property
    def sections(self) -> tuple[Section, ...]:
        return tuple(sections_of(self.tree))

    @property
    def settings(self) -> tuple[Setting, ...]:
        return tuple(settings_of(self.tree))

    def variables(self, setting: Setting) -> tuple[str, ...]:
        """The environment variables that set it, strongest first."""
        return (self.env_prefix + setting.flag.upper().replace("-", "_"), *setting.more_env)
