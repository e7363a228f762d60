"""The product's values on a machine that has nothing but Python: Struct made of dataclasses if msgspec is missing.

In: a Python without msgspec. Out: a module of that name with what the modules that the checks import take from it. A
machine with a GPU may be lent without a network, and the checks must run there as they were copied. Slower, and the
same otherwise; the agent never runs on it.
"""

import dataclasses
import sys
from importlib.util import find_spec
from types import ModuleType
from typing import Any


class _Meta(type):
    """Takes the options of a Struct; one that extends a frozen one must say so too."""

    def __new__(
        mcs,
        name: str,
        bases: tuple[type, ...],
        names: dict[str, Any],
        frozen: bool = False,
        order: bool = False,
        kw_only: bool = False,
        eq: bool = True,
        **_: Any,  # noqa: ANN401 - `dict` and `weakref`: these classes have both
    ) -> "_Meta":
        made = super().__new__(mcs, name, bases, names)
        if not bases:
            return made
        complete: Any = dataclasses.dataclass(frozen=frozen, order=order, kw_only=kw_only, eq=eq)
        complete(made)
        return made

    def __init__(cls, name: str, bases: tuple[type, ...], names: dict[str, Any], **_: Any) -> None:  # noqa: ANN401
        super().__init__(name, bases, names)


class Struct(metaclass=_Meta):
    """Base of values, as msgspec's."""


def provide() -> None:
    """Before the first import of a module of the product."""
    if find_spec("msgspec") is not None:
        return
    package, structs = ModuleType("msgspec"), ModuleType("msgspec.structs")
    vars(package).update(Struct=Struct, field=dataclasses.field, structs=structs)
    vars(structs).update(replace=dataclasses.replace, force_setattr=object.__setattr__)
    sys.modules |= {package.__name__: package, structs.__name__: structs}
