"""The least that an extender of Volcano can be: the same door as vcuda's (aiohttp), a whole body read, a fixed answer.

In: a port. Out: a process that says yes to everything, until it is ended. `prioritize` gives no scores, so the caller
takes the first node.

    python -m benchmarks.cluster.empty PORT
"""

import asyncio
import sys

from aiohttp import web

ANSWERS = {
    "predicate": b'{"status":"","code":0}',
    "prioritize": b'{"nodeScore":{},"errorMessage":""}',
    "allocate": b'{"errorMessage":""}',
    "deallocate": b'{"errorMessage":""}',
}
_HEADERS = {"Content-Type": "application/json"}


async def answer(request: web.BaseRequest) -> web.Response:
    await request.content.read()  # `request.read` has a limit
    return web.Response(body=ANSWERS[request.path.rpartition("/")[2]], headers=_HEADERS)


async def serve(port: int) -> None:
    runner = web.ServerRunner(web.Server(answer))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    print("ready", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1])))
