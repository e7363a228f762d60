"""Which objects are followed, and how one of them is read.

In: a path and selectors of the API server, a schema, a function from the schema to a value of ours. Out: `Collection`,
which `client` lists and watches and `reflector` keeps. A reader is told what is kept, for it may depend on that how an
object is read.
"""

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Generic, TypeVar

from deviceplugin.kube.structs import Object, decode

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")
Schema = TypeVar("Schema", bound=Object)


@dataclass(frozen=True, slots=True)
class Seen(Generic[Value]):
    """One object of a list or watch; `item` is None where it is none of ours."""

    version: str
    item: Value | None


Kept = Mapping[Any, object]
"""Values by key."""
NOTHING_KEPT: Kept = MappingProxyType({})
Reader = Callable[[bytes, Kept], Seen[Value]]


@dataclass(frozen=True, slots=True)
class Collection(Generic[Key, Value]):
    """`what` completes `list ...`. Of two objects with one key the later counts; `identity` tells them apart."""

    what: str
    path: str
    read: Reader[Value]
    key: Callable[[Value], Key]
    identity: Callable[[Value], str]
    query: Mapping[str, str] = field(default_factory=dict)


def reader(schema: type[Schema], value: Callable[[Schema], Value], *, what: str) -> Reader[Value]:
    """Reads each object whole and keeps it."""

    def read(raw: bytes, _kept: Kept) -> Seen[Value]:
        found = decode(schema, raw, what=what)
        return Seen(found.metadata.resource_version, value(found))

    return read
