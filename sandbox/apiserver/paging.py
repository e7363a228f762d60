"""Lists in pages: a `continue` token names a snapshot and where its next page starts.

In: the whole list at one version. Out: one page as a List object. Invariant: all pages of one list show the same
version; a token from before a compaction is answered with 410, as etcd would.
"""

import base64
import binascii
import json
from dataclasses import dataclass

from sandbox.apiserver.kinds import Kind
from sandbox.apiserver.status import ApiError, JsonObject


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What one list showed, kept for its later pages."""

    version: int
    items: list[JsonObject]


class Pages:
    """Open snapshots of lists that were asked for in pages."""

    def __init__(self) -> None:
        self._snapshots: dict[int, Snapshot] = {}
        self._count = 0

    def first(self, kind: Kind, snapshot: Snapshot, limit: int) -> JsonObject:
        if not limit or len(snapshot.items) <= limit:
            return _list(kind, snapshot.version, snapshot.items)
        self._count += 1
        self._snapshots[self._count] = snapshot
        return self._page(kind, self._count, 0, limit)

    def following(self, kind: Kind, token: str, limit: int) -> JsonObject:
        try:
            number, start = json.loads(base64.urlsafe_b64decode(token))
        except (binascii.Error, ValueError) as error:
            raise ApiError(400, f"continue key is not valid: {error}") from None
        if number not in self._snapshots:
            raise ApiError(410, "The provided continue parameter is too old to display a consistent list result.")
        return self._page(kind, number, start, limit or len(self._snapshots[number].items))

    def forget(self) -> None:
        """A compaction: every open token is too old now."""
        self._snapshots.clear()

    def _page(self, kind: Kind, number: int, start: int, limit: int) -> JsonObject:
        snapshot = self._snapshots[number]
        end = start + limit
        page = _list(kind, snapshot.version, snapshot.items[start:end])
        if end < len(snapshot.items):
            page["metadata"]["continue"] = base64.urlsafe_b64encode(json.dumps([number, end]).encode()).decode()
            page["metadata"]["remainingItemCount"] = len(snapshot.items) - end
        return page


def _list(kind: Kind, version: int, items: list[JsonObject]) -> JsonObject:
    meta = {"resourceVersion": str(version)}
    return {"kind": f"{kind.word}List", "apiVersion": kind.api_version, "metadata": meta, "items": items}
