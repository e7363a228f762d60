"""Wakes the registration loop when a socket is created, deleted or replaced.

In: a directory and the socket names in it. Out: `wait`, which returns after an event or a short poll. inotify
(watchdog) makes it immediate. The poll is the fallback, because inotify instances can be exhausted
(fs.inotify.max_user_instances) and because a directory that is created later has no watch yet.
"""

import asyncio
import contextlib
from collections.abc import Collection
from pathlib import Path

import structlog
from watchdog.events import (
    FileCreatedEvent,
    FileDeletedEvent,
    FileMovedEvent,
    FileSystemEvent,
    FileSystemEventHandler,
)
from watchdog.observers import Observer
from watchdog.observers.api import BaseObserver

log = structlog.get_logger("vcuda.kubelet")
POLL_S = 0.1
POLL_BEHIND_INOTIFY_S = 0.5  # inotify can lose events too, but hardly ever
_EVENTS = (FileCreatedEvent, FileDeletedEvent, FileMovedEvent)  # a program that reads the directory must not wake it


class SocketWatch(FileSystemEventHandler):
    """Belongs to the loop that runs `wait`; watchdog's thread only sets an event."""

    def __init__(self, directory: Path, names: Collection[str]) -> None:
        self._directory = directory
        self._names = frozenset(names)
        self._happened = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._observer: BaseObserver | None = None
        self._has_warned = False

    def start(self) -> None:
        """Watches the directory if possible; a failure is logged once, and the poll remains."""
        self._loop = asyncio.get_running_loop()
        if self._observer is not None or not self._directory.is_dir():
            return
        observer = Observer()
        try:
            observer.schedule(self, str(self._directory), event_filter=list(_EVENTS))
            observer.start()
        except OSError as error:
            if not self._has_warned:
                log.warning("inotify_unavailable", path=str(self._directory), error=str(error))
            self._has_warned = True
            return
        self._observer = observer

    def stop(self) -> None:
        if self._observer is not None:
            self._observer.stop()
            self._observer = None

    async def wait(self) -> None:
        """Until an event or the next poll."""
        self.start()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(POLL_S if self._observer is None else POLL_BEHIND_INOTIFY_S):
                await self._happened.wait()
        self._happened.clear()

    def on_any_event(self, event: FileSystemEvent) -> None:
        touched = {Path(str(path)).name for path in (event.src_path, event.dest_path) if path}
        if self._loop is not None and touched & self._names:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(self._happened.set)
