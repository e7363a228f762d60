"""One watch: history after a version, then changes as they come, one JSON line each.

In: the store and the parameters of the request. Out: lines into an open response, with bookmarks and a server-side
time limit. An object that leaves the selector is DELETED for this watcher, in the last state that it was
chosen in; one that enters it is ADDED.
"""

import asyncio
import json
from collections.abc import Iterator
from dataclasses import dataclass

from aiohttp import web

from sandbox.apiserver.faults import Fault, Harm
from sandbox.apiserver.kinds import KINDS
from sandbox.apiserver.listing import Selector
from sandbox.apiserver.status import ApiError, JsonObject, status
from sandbox.apiserver.store import Change, Store
from sandbox.apiserver.verbatim import written


@dataclass(frozen=True, slots=True)
class Watch:
    """The parameters of one watch request; `since` None starts with the present objects as ADDED."""

    resource: str
    namespace: str
    chosen: Selector
    since: int | None
    bookmarks: bool
    bookmark_seconds: float
    timeout_seconds: float

    async def serve(self, store: Store, response: web.StreamResponse, *, fault: Fault | None) -> None:
        """Writes until the time limit, the client's departure (cancellation) or a fault."""
        line = _Lines(response, fault)
        changed = asyncio.Event()
        stop = store.on_change(changed.set)
        try:
            async with asyncio.timeout(self.timeout_seconds):
                await self._run(store, line, changed)
        except TimeoutError:
            if self.bookmarks:
                await line.write("BOOKMARK", self._bookmark(store.version))
        except ApiError as error:
            await line.write("ERROR", error.status)
        except _StreamCutError:
            pass
        finally:
            stop()

    async def _run(self, store: Store, line: "_Lines", changed: asyncio.Event) -> None:
        await line.start()
        at = self.since
        if at is None:
            at = store.version
            for item in store.objects(self.resource, namespace=self.namespace):
                if self.chosen(item):
                    await line.write("ADDED", item)
        while True:
            changed.clear()
            for change in store.changes(self.resource, at):
                for kind, item in self._seen(change):
                    await line.write(kind, item)
                at = change.version
            if not changed.is_set():
                await self._wait(store, line, changed)

    async def _wait(self, store: Store, line: "_Lines", changed: asyncio.Event) -> None:
        try:
            async with asyncio.timeout(self.bookmark_seconds):
                await changed.wait()
        except TimeoutError:
            if self.bookmarks:
                await line.write("BOOKMARK", self._bookmark(store.version))

    def _seen(self, change: Change) -> Iterator[tuple[str, JsonObject]]:
        if self.namespace and change.after["metadata"].get("namespace") != self.namespace:
            return
        was = change.before is not None and self.chosen(change.before)
        now = not change.deleted and self.chosen(change.after)
        if now:
            yield ("MODIFIED" if was else "ADDED"), change.after
        elif was:
            yield "DELETED", change.last_seen

    def _bookmark(self, version: int) -> JsonObject:
        meta = {"resourceVersion": str(version), "creationTimestamp": None}
        kind = KINDS[self.resource]
        return {"kind": kind.word, "apiVersion": kind.api_version, "metadata": meta}


class _StreamCutError(Exception):
    pass


class _Lines:
    """Writes events, and corrupts the one that the fault names."""

    def __init__(self, response: web.StreamResponse, fault: Fault | None) -> None:
        self._response = response
        self._fault = fault
        self._count = 0

    async def start(self) -> None:
        await self._spoil_if_due(b"")

    async def write(self, kind: str, item: JsonObject) -> None:
        line = written({"type": kind, "object": item}).encode() + b"\n"
        await self._spoil_if_due(line)
        self._count += 1
        await self._response.write(line)

    async def _spoil_if_due(self, line: bytes) -> None:
        fault = self._fault
        if fault is None or self._count < fault.after:
            return
        if fault.harm is Harm.SILENT_WATCH:
            await asyncio.Event().wait()
        elif fault.harm is Harm.ERROR_WATCH:
            event = {"type": "ERROR", "object": status(fault.code, "injected fault")}
            await self._response.write(json.dumps(event).encode() + b"\n")
            raise _StreamCutError
        elif fault.harm is Harm.GARBLED_WATCH:
            self._fault = None
            await self._response.write(b'{"type":"ADDED","object":{"metadata":\n')
        elif fault.harm is Harm.CUT_WATCH and line:
            await self._response.write(line[: len(line) // 2])
            raise _StreamCutError
