"""The probes of an agent that waits until its predecessor on the node has ended.

In: whether kubelet knows this agent. Out: an HTTP server on the agent's own address. It is ready as soon as kubelet
gives it calls, because the DaemonSet's controller ends the predecessor only then. It has no view: the predecessor does.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from aiohttp import web

from deviceplugin.listen import bind_tcp

_WAITS = "this agent waits until another agent of this node has ended"


@asynccontextmanager
async def standing_by(address: str, port: int, *, is_ready: Callable[[], bool]) -> AsyncIterator[None]:
    """Raises ConfigError where it cannot listen."""

    async def healthz(_request: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def readyz(_request: web.Request) -> web.Response:
        if is_ready():
            return web.Response(text=f"ok: {_WAITS}\n")
        return web.Response(status=503, text="kubelet has not registered the driver for claims\n")

    async def other(_request: web.Request) -> web.Response:
        return web.Response(status=503, text=f"{_WAITS}\n")

    app = web.Application()
    app.router.add_get("/healthz", healthz)
    app.router.add_get("/readyz", readyz)
    app.router.add_get("/{other:.*}", other)
    runner = web.AppRunner(app, shutdown_timeout=0)
    sockets = bind_tcp(address, port, address_flag="--query-addr", port_flag="--query-port")
    await runner.setup()
    try:
        for each in sockets:
            await web.SockSite(runner, each).start()
        yield
    finally:
        await runner.cleanup()
