"""`vcuda ui`: the scheduler's page in this machine's browser, with the caller's own credentials.

In: a kubeconfig, or a scheduler's URL. Out: a server on 127.0.0.1 that has the page, and hands what it asks to the
scheduler. Other users of this machine and other pages in the browser reach the port too, so every question needs a key,
which only the address that is opened has. That address is good once and for a minute, because a browser is started by a
command line that everybody here can read.
"""

import asyncio
import secrets
import signal
import time
import webbrowser

import click
import msgspec

from deviceplugin.cli.command import OperatorCommand
from deviceplugin.cli.connection import Connection, connected
from deviceplugin.cli.scheduler_client import SchedulerClient, asked
from deviceplugin.errors import VcudaError
from deviceplugin.serve.messages import JSON, HttpRequest, HttpResponse, Route
from deviceplugin.serve.server import Server, bind_tcp
from deviceplugin.ui import files

_EXAMPLES = (
    ("Open the page of the current context's cluster.", "ui"),
    ("Only print the address, for a browser that you start yourself.", "ui --no-browser --listen-port 8080"),
)
_HOST = "127.0.0.1"
_KEY = "X-Vcuda-Key"
_OPEN = "/open/"
_OPEN_WITHIN_S = 60.0
_MOST_AT_ONCE = 16
_EVERYTHING = "/"


@click.command("ui", cls=OperatorCommand, examples=_EXAMPLES)
@click.option("--listen-port", type=click.IntRange(0, 65535), default=0, help="Port on 127.0.0.1; 0: any.")
@click.option("--no-browser", is_flag=True, help="Print the address and open no browser.")
@connected
def ui(listen_port: int, no_browser: bool, connection: Connection) -> None:
    """Show the cluster in a browser: nodes, GPUs, pods, and why pods are Pending.

    Serves the scheduler's page on 127.0.0.1 with your rights until you press Ctrl-C. The address that is printed works
    once; where a browser is opened, within a minute.
    """
    asked(connection, lambda client: _serve(client, listen_port, browser=not no_browser))


async def _serve(client: SchedulerClient, port: int, *, browser: bool) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    await client.cluster()  # a caller without the right, or without a scheduler, learns it here and not in the browser
    (listening,) = bind_tcp(_HOST, port, address_flag="--listen-port", port_flag="--listen-port")
    page = PageServer(client, listening.getsockname()[1], open_within_s=_OPEN_WITHIN_S if browser else None)
    server = Server({_EVERYTHING: Route(page.answer)}, find=lambda _: _EVERYTHING)
    server.listen(listening)
    try:
        click.echo(f"{page.address}\nPress Ctrl-C to end.")
        if browser and not await asyncio.to_thread(webbrowser.open, page.address):
            click.echo("vcuda: no browser could be started; open the address above", err=True)
        await stop.wait()
    finally:
        await server.stop(within=0.5)


class PageServer(msgspec.Struct):
    """`open_within_s`: how long the address to open is good; None for no limit of time. It is good once."""

    client: SchedulerClient
    port: int
    open_within_s: float | None = _OPEN_WITHIN_S
    _key: str = msgspec.field(default_factory=lambda: secrets.token_urlsafe(32))
    _once: str = msgspec.field(default_factory=lambda: secrets.token_urlsafe(32))
    _began: float = msgspec.field(default_factory=time.monotonic)
    _turn: asyncio.Semaphore = msgspec.field(default_factory=lambda: asyncio.Semaphore(_MOST_AT_ONCE))

    @property
    def address(self) -> str:
        return f"http://{_HOST}:{self.port}{_OPEN}{self._once}"

    async def answer(self, request: HttpRequest) -> HttpResponse:
        """Host is checked first: a name of a stranger that leads to 127.0.0.1 would be another origin's way in."""
        if request.header("Host") not in (f"{_HOST}:{self.port}", f"localhost:{self.port}"):
            return _refusal(403, "this address is not served under that name")
        if request.path.startswith(_OPEN):
            return self._open(request.path.removeprefix(_OPEN))
        if files.is_page(request.path):
            return files.answer(request.path, request.header("If-None-Match"))
        if request.path != "/explain" and not request.path.startswith("/view/"):
            return _refusal(404, "there is nothing here; the page is at /ui/")
        if not secrets.compare_digest(request.header(_KEY).encode(), self._key.encode()):
            return _refusal(401, "open the page by the address that vcuda ui prints")
        return await self._asked(request)

    def _open(self, given: str) -> HttpResponse:
        is_late = self.open_within_s is not None and time.monotonic() - self._began > self.open_within_s
        if not self._once or is_late or not secrets.compare_digest(given.encode(), self._once.encode()):
            return _refusal(403, "this address was used, or is too old; start vcuda ui again")
        self._once = ""
        headers = {**files.HEADERS, "Location": f"{files.PATH}/#key={self._key}", "Cache-Control": "no-store"}
        return HttpResponse(303, headers=headers)

    async def _asked(self, request: HttpRequest) -> HttpResponse:
        try:
            async with self._turn:
                answer = await self.client.get(request.raw_path, dict(request.query))
        except VcudaError as error:
            return _refusal(502, error.message)
        headers = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
        return HttpResponse(answer.status, answer.body, JSON, headers)


def _refusal(status: int, sentence: str) -> HttpResponse:
    return HttpResponse(status, msgspec.json.encode({"error": sentence}), JSON, files.HEADERS)
