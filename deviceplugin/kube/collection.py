"""Which objects are followed, and how one of them is read.

In: a path and selectors of the API server, a schema, a function from the schema to a value of ours. Out: `Collection`,
which `client` lists and watches and `reflector` keeps. Most pods of a cluster ask for no GPU: bytes that do not hold
the `sieve` are read no further than their UID and version. Invariant: an object that is kept is read whole for as long
as it is there, whatever becomes of it.
"""

from collections.abc import Callable, Container, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from deviceplugin.kube.structs import Head, Object, decode

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")
Schema = TypeVar("Schema", bound=Object)


@dataclass(frozen=True, slots=True)
class Seen(Generic[Value]):
    """One object of a list or watch; `item` is None where it is none of ours."""

    version: str
    item: Value | None


Reader = Callable[[bytes, Container[object]], Seen[Value]]


@dataclass(frozen=True, slots=True)
class Collection(Generic[Key, Value]):
    """`what` completes `list ...`. Of two objects with one key the later counts; `identity` tells them apart."""

    what: str
    path: str
    read: Reader[Value]
    key: Callable[[Value], Key]
    identity: Callable[[Value], str]
    query: Mapping[str, str] = field(default_factory=dict)


def reader(
    schema: type[Schema],
    value: Callable[[Schema], Value],
    *,
    what: str,
    sieve: bytes = b"",
    keeps: Callable[[Value], bool] = lambda _: True,
) -> Reader[Value]:
    """Reads one object. What is kept already (by UID, which must be the key then) is read whatever it holds."""

    def read(raw: bytes, kept: Container[object]) -> Seen[Value]:
        if sieve and sieve not in raw:
            meta = decode(Head, raw, what=what).metadata
            if meta.uid not in kept:
                return Seen(meta.resource_version, None)
        found = decode(schema, raw, what=what)
        item = value(found)
        version = found.metadata.resource_version
        return Seen(version, item if keeps(item) or found.metadata.uid in kept else None)

    return read
