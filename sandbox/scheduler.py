"""The real `vcuda scheduler` as a process, called over TLS with a verified certificate.

In: a kubeconfig, a folder, flags. Out: a process over several lives at one address, its figures and its log. It stands
in for nothing. The CA comes from the Secret, where kube-scheduler reads it too.
"""

import asyncio
import contextlib
import json
import re
import ssl
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from sandbox.apiserver.reviews import VIEWER, token_of
from sandbox.emulated_gpus import REPOSITORY
from sandbox.program import Command, Program, ProgramFailureError, clean_environment, free_port

NAMESPACE = "kube-system"
NAME = "vcuda-scheduler"
SECRET = "vcuda-scheduler-tls"
PROGRAM = Path(sys.executable).with_name("vcuda")
_METRIC = re.compile(r"^(\w+) ([0-9.e+]+)$", re.MULTILINE)


class NoAnswerError(Exception):
    """No connection, or it ended without an answer; the message says which."""


@dataclass(frozen=True, slots=True)
class SchedulerCommand(Command):
    """All it serves is on one port."""

    port: int

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.port}"


class SchedulerProcess(Program):
    """`ca` gives the CA of its certificate as PEM; empty as long as there is none."""

    command: SchedulerCommand

    def __init__(self, command: SchedulerCommand, ca: Callable[[], str]) -> None:
        super().__init__(command, who="vcuda scheduler")
        self._ca = ca

    @property
    def url(self) -> str:
        return self.command.url

    async def ask(self, path: str, document: object = None, *, ca: str = "") -> tuple[int, Any]:
        """GET, or POST of a document: status, and JSON or text."""
        trusted = ca or self._ca()
        if not trusted:
            raise NoAnswerError("it has no certificate yet")
        connector = aiohttp.TCPConnector(ssl=ssl.create_default_context(cadata=trusted), force_close=True)
        method = "GET" if document is None else "POST"
        try:
            async with (
                aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=10)) as session,
                session.request(method, self.url + path, json=document) as answer,
            ):
                text = await answer.text()
                return answer.status, json.loads(text) if answer.content_type == "application/json" else text
        except aiohttp.ClientConnectorCertificateError as error:
            raise NoAnswerError(f"its certificate is not trusted: {error.certificate_error}") from error
        except (aiohttp.ClientOSError, ConnectionError) as error:
            raise NoAnswerError("connection refused") from error
        except (aiohttp.ClientError, TimeoutError) as error:
            raise NoAnswerError(str(error) or "no answer within 10 s") from error

    async def wait_ready(self, *, deadline_s: float) -> None:
        async def ready() -> bool:
            try:
                return (await self.ask("/readyz"))[0] == 200
            except NoAnswerError:
                return False

        await self.until(ready, what="vcuda scheduler is ready", deadline_s=deadline_s)

    async def figures(self) -> dict[str, float]:
        """Its gauges without labels, by name after `vcuda_scheduler_`."""
        try:
            _, text = await self.ask("/metrics")
        except NoAnswerError as error:
            raise ProgramFailureError(f"vcuda scheduler shows no metrics: {error}") from error
        return {name.removeprefix("vcuda_scheduler_"): float(value) for name, value in _METRIC.findall(text)}

    async def settled_figure(self, name: str, wanted: int, *, patience_s: float = 5.0) -> int:
        """The figure as soon as it is `wanted`; after `patience_s` whatever it is then."""
        found = -1

        async def is_so() -> bool:
            nonlocal found
            found = round((await self.figures()).get(name, -1))
            return found == wanted

        with contextlib.suppress(ProgramFailureError):
            await self.until(is_so, what=f"{name} is {wanted}", deadline_s=patience_s)
        return found

    async def wait_figure(self, name: str, count: int, *, what: str, deadline_s: float = 60.0) -> None:
        async def is_so() -> bool:
            return (await self.figures()).get(name) == count

        await self.until(is_so, what=what, deadline_s=deadline_s)


def scheduler_command(folder: Path, kubeconfig: Path, *flags: str) -> SchedulerCommand:
    """With a free port, and without the waits that only a cluster needs."""
    port = free_port()
    arguments = (
        *(str(PROGRAM), "scheduler", f"--kubeconfig={kubeconfig}", f"--namespace={NAMESPACE}", "--identity=demo"),
        *("--listen-addr=127.0.0.1", f"--listen-port={port}", "--drain=0s"),
        *flags,
    )
    return SchedulerCommand(arguments, clean_environment({}), folder / "scheduler.log", port)


async def explain(process: SchedulerProcess, pod: str, ca_file: Path) -> str:
    """What `vcuda explain POD` prints, as a person at a terminal gets it who may read about all pods."""
    return (await vcuda("explain", pod, "--url", process.url, "--ca-file", str(ca_file)))[1]


@contextlib.asynccontextmanager
async def page_server(process: SchedulerProcess, ca_file: Path) -> AsyncIterator[str]:
    """`vcuda ui` of a person who may read about all pods: the address that it prints."""
    started = await asyncio.create_subprocess_exec(
        *(str(PROGRAM), "ui", "--no-browser", "--url", process.url, "--ca-file", str(ca_file)),
        cwd=REPOSITORY,
        env=clean_environment({"VCUDA_TOKEN": token_of(VIEWER, "vcuda")}),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        start_new_session=True,  # Ctrl-C is for who started this
    )
    assert started.stdout is not None
    try:
        said = (await started.stdout.readline()).decode(errors="replace").strip()
        if not said.startswith("http://"):
            raise NoAnswerError(f"vcuda ui ended: {said}")
        yield said
    finally:
        if started.returncode is None:
            started.kill()
        await started.wait()


async def vcuda(*arguments: str) -> tuple[int, str]:
    """A command of vcuda that ends by itself, at the top of the repository: its exit status and all its output.

    Its token is good at the stand-in API server.
    """
    started = await asyncio.create_subprocess_exec(
        *(str(PROGRAM), *arguments),
        cwd=REPOSITORY,
        env=clean_environment({"VCUDA_TOKEN": token_of(VIEWER, "vcuda")}),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        out, _ = await started.communicate()
    finally:
        if started.returncode is None:
            started.kill()
            await started.wait()
    return await started.wait(), out.decode(errors="replace").rstrip()
