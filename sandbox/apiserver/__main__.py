"""The stand-in as a program: serves until SIGTERM or SIGINT; says its URL in one line on stdout."""

import argparse
import asyncio
import signal
from pathlib import Path

from sandbox.apiserver.objects import node
from sandbox.apiserver.server import ApiServer


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m sandbox.apiserver", description=__doc__)
    parser.add_argument("--port", type=int, default=0, help="0 chooses a free one")
    parser.add_argument("--kubeconfig-out", type=Path, metavar="FILE", help="write a kubeconfig here")
    parser.add_argument("--token", default="", help="bearer token that clients must send")
    parser.add_argument("--node", action="append", default=[], metavar="NAME", help="create a node; may be repeated")
    asyncio.run(_serve(parser.parse_args()))


async def _serve(options: argparse.Namespace) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with ApiServer(port=options.port, token=options.token) as server:
        for name in options.node:
            server.store.create("nodes", node(name))
        if options.kubeconfig_out:
            server.kubeconfig(options.kubeconfig_out)
        print(server.url, flush=True)
        await stop.wait()


if __name__ == "__main__":
    main()
