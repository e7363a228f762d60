"""A `vcuda` command as a process: start, kill, stop, and read its log.

In: how to start it. Out: its log as entries, waits that fail at once when it has ended. Not here: requests to it.
Invariant: after `destroy` the process is gone.
"""

import asyncio
import json
import os
import random
import signal
import socket
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

STOP_S = 10.0
_LOOK_S = 0.05
_KEPT = ("PATH", "HOME", "LANG", "TMPDIR")
Json = dict[str, Any]


class ProgramFailureError(Exception):
    """A program did not do what it must; the message is one sentence, with what it said last."""


@dataclass(frozen=True, slots=True)
class Command:
    """How to start it; `log` collects the output of all its lives."""

    arguments: tuple[str, ...]
    environment: dict[str, str]
    log: Path


class Program:
    """One program over several lives; `who` is its name in sentences."""

    def __init__(self, command: Command, *, who: str) -> None:
        self.command = command
        self._who = who
        self._process: asyncio.subprocess.Process | None = None

    @property
    def pid(self) -> int:
        return self._running().pid

    async def start(self, *more: str) -> None:
        """`more` are further flags, for this life only; the last of equal flags wins."""
        with self.command.log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *self.command.arguments, *more, env=self.command.environment, stdout=log, stderr=log
            )

    async def kill(self) -> None:
        """SIGKILL: it can finish nothing."""
        process = self._running()
        process.send_signal(signal.SIGKILL)
        await process.wait()

    async def stop(self) -> None:
        """SIGTERM, and the exit status must be 0 within its promise."""
        process, self._process = self._running(), None
        process.terminate()
        try:
            async with asyncio.timeout(STOP_S):
                status = await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()
            raise ProgramFailureError(f"{self._who} did not stop within {STOP_S:g} s of SIGTERM") from None
        if status:
            raise ProgramFailureError(f"{self._who} stopped with exit status {status}: {self.last_words()}")

    async def destroy(self) -> None:
        """Kills it if it runs."""
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
            await self._process.wait()

    async def until(self, holds: Callable[[], Awaitable[bool]], *, what: str, deadline_s: float) -> None:
        """Asks until it holds; fails at once when the program has ended by itself."""
        end = time.monotonic() + deadline_s
        while not await holds():
            if self._process is not None and self._process.returncode is not None:
                raise ProgramFailureError(f"{self._who} ended while waiting until {what}: {self.last_words()}")
            if time.monotonic() > end:
                raise ProgramFailureError(f"after {deadline_s:g} s still waiting until {what}; {self.last_words()}")
            await asyncio.sleep(_LOOK_S)

    def entries(self, message: str = "") -> list[Json]:
        """Its log over all lives; with a message only the entries that have it."""
        found = []
        for line in self._lines():
            try:
                entry = json.loads(line)
            except ValueError:
                continue  # plain text, or a line that is being written
            if message in ("", entry.get("msg")):
                found.append(entry)
        return found

    def last_words(self) -> str:
        """The last line of its log, as a person would read it."""
        lines = self._lines()
        if not lines:
            return "its log is empty"
        try:
            entry = json.loads(lines[-1])
        except ValueError:
            return f"its log ends with: {lines[-1][:300]}"
        facts = ", ".join(f"{key} {entry[key]}" for key in ("error", "cause", "message") if key in entry)
        return f"its log ends with: {entry.get('msg', '')}{f' ({facts})' if facts else ''}"

    def _lines(self) -> list[str]:
        log = self.command.log
        return log.read_text(errors="replace").strip().splitlines() if log.exists() else []

    def _running(self) -> asyncio.subprocess.Process:
        if self._process is None or self._process.returncode is not None:
            raise ProgramFailureError(f"{self._who} has ended by itself; {self.last_words()}")
        return self._process


def clean_environment(more: Mapping[str, str]) -> dict[str, str]:
    """Without the caller's settings, so that the program behaves the same everywhere."""
    return {name: os.environ[name] for name in _KEPT if name in os.environ} | dict(more)


def free_port() -> int:
    """Outside the ports that Linux gives to clients, so that no connection takes it before the program does.

    Nobody else who asks here gets the same while this process lives: tests that run side by side once did, in the
    second between the choice and the program that listens there.
    """
    choice = random.SystemRandom()  # a seeded one gives the same ports to processes that run side by side
    for _ in range(100):
        port = choice.randrange(20_000, 32_000)
        if _is_unused(port) and _is_reserved(port):
            return port
    raise OSError("no port between 20000 and 32000 is free")


def _is_unused(port: int) -> bool:
    with socket.socket() as probe, suppress(OSError):
        probe.bind(("127.0.0.1", port))
        return True
    return False


def _is_reserved(port: int) -> bool:
    """By an abstract address, which as a port belongs to the network namespace, and goes with the process."""
    mark = socket.socket(socket.AF_UNIX)
    try:
        mark.bind(f"\0vcuda-port-{port}")
    except OSError:
        mark.close()
        return False
    mark.detach()  # open until the process ends
    return True
