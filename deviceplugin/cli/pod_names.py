"""Names of pods for rows that have only their UIDs, from the pods that the caller may list himself.

In: UIDs, and the API server. Out: namespace and name by UID, and rows with them. Only metadata is asked for, in pages,
and only what is needed is kept. A right that is missing is no error: the UID stays.
"""

from collections.abc import Iterator, Mapping
from typing import TypeVar
from urllib.parse import quote

import msgspec
from msgspec.structs import replace

from deviceplugin.cli.scheduler_client import SchedulerClient
from deviceplugin.errors import ParseError
from deviceplugin.kube.structs import decode
from deviceplugin.model.cluster_view import ClusterEventRow, NodeRow, PodRow

PodNames = Mapping[str, tuple[str, str]]
Row = TypeVar("Row", NodeRow, PodRow, ClusterEventRow)
_METADATA = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
_PAGE = "1000"
_MOST_PAGES = 500


class _Meta(msgspec.Struct):
    name: str = ""
    namespace: str = ""
    uid: str = ""


class _ListMeta(msgspec.Struct, rename="camel"):
    continue_: str = msgspec.field(default="", name="continue")


class _Item(msgspec.Struct):
    metadata: _Meta


class _List(msgspec.Struct):
    items: list[_Item] = []
    metadata: _ListMeta = msgspec.field(default_factory=_ListMeta)


def pods_of(row: NodeRow | PodRow | ClusterEventRow) -> Iterator[tuple[str, str | None]]:
    """UID and name of each pod in a row."""
    if not isinstance(row, NodeRow):
        if row.uid:
            yield row.uid, row.pod
        return
    for gpu in row.gpus:
        for holder in gpu.holders:
            if holder.users == 1:  # else it stands for a claim, which is no pod
                yield holder.uid, holder.pod


def with_names(row: Row, names: PodNames) -> Row:
    if not isinstance(row, NodeRow):
        return _named(row, names)
    gpus = tuple(
        replace(gpu, holders=tuple(_named(each, names) for each in gpu.holders)) if gpu.holders else gpu
        for gpu in row.gpus
    )
    return replace(row, gpus=gpus)


Named = TypeVar("Named", bound=msgspec.Struct)


def _named(row: Named, names: PodNames) -> Named:
    uid: str = row.uid  # type: ignore[attr-defined]
    if uid not in names:
        return row
    namespace, name = names[uid]
    return replace(row, namespace=namespace, pod=name)


async def own_names(client: SchedulerClient, wanted: set[str], namespace: str) -> dict[str, tuple[str, str]]:
    """Of all pods, if the caller may list them; else of those of the namespace, or of the context's."""
    found = await _names(client, "/api/v1/pods", wanted)
    if found is None:
        one = quote(namespace or client.namespace, safe="")
        found = await _names(client, f"/api/v1/namespaces/{one}/pods", wanted)
    return found or {}


async def _names(client: SchedulerClient, path: str, wanted: set[str]) -> dict[str, tuple[str, str]] | None:
    """None without the right to list."""
    found: dict[str, tuple[str, str]] = {}
    token = ""
    for _ in range(_MOST_PAGES):
        query = {"limit": _PAGE} | ({"continue": token} if token else {})
        answer = await client.get_api(path, query, accept=_METADATA)
        if answer is None or answer.status != 200:
            return found or None
        try:
            page = decode(_List, answer.body, what="the list of pods")
        except ParseError:
            return found or None
        found |= {
            each.metadata.uid: (each.metadata.namespace, each.metadata.name)
            for each in page.items
            if each.metadata.uid in wanted
        }
        token = page.metadata.continue_
        if not token or len(found) == len(wanted):
            break
    return found
