"""All objects of a collection at one version, asked for in pages.

In: a transport, a collection. Out: the values that are ours, and the version from which a watch goes on. The loop is
given to others within each page: a page of pods takes tens of milliseconds to read. Begins again where the pages were
compacted away meanwhile, and with smaller ones where objects are so large that a page is more than we read; not here:
what else may fail.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic

from deviceplugin.errors import KubeError, KubeGoneError
from deviceplugin.kube.collection import Collection, Key, Value
from deviceplugin.kube.structs import ListMeta, Page, decode
from deviceplugin.kube.transport import TOO_LARGE, Transport

_PAGE = 500
_SMALLER = 20
_ATTEMPTS = 3
_AT_ONCE = 32


@dataclass(frozen=True, slots=True)
class Listing(Generic[Key, Value]):
    """All of them at one version of the cluster, from which a watch goes on."""

    items: Mapping[Key, Value]
    version: str


async def list_all(
    transport: Transport, collection: Collection[Key, Value], kept: Mapping[Key, Value]
) -> Listing[Key, Value]:
    """What equals a kept value is that value, so that a second list of a large cluster takes no second room."""
    size = _PAGE
    for _ in range(_ATTEMPTS - 1):
        try:
            return await _list_once(transport, collection, kept, size)
        except KubeGoneError:
            continue
        except KubeError as error:
            if error.code != TOO_LARGE:
                raise
            size = max(1, size // _SMALLER)
    return await _list_once(transport, collection, kept, size)


async def _list_once(
    transport: Transport, collection: Collection[Key, Value], kept: Mapping[Key, Value], size: int
) -> Listing[Key, Value]:
    found: dict[Key, Value] = {}
    query = {**collection.query, "limit": str(size)}
    while True:
        body = await transport.request("GET", collection.path, what=f"list {collection.what}", query=query)
        page = decode(Page, body, what=f"the API server's list of {collection.what}")
        for number, raw in enumerate(page.items or ()):
            if number % _AT_ONCE == _AT_ONCE - 1:
                await asyncio.sleep(0)
            item = collection.read(bytes(raw), kept).item
            if item is not None:
                key = collection.key(item)
                known = kept.get(key)
                found[key] = known if known is not None and known == item else item
        meta = page.metadata or ListMeta()
        if not meta.continue_:
            return Listing(found, meta.resource_version)
        query["continue"] = meta.continue_
