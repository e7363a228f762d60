"""Loops that end while two sockets are bound again, at random instants: gRPC must not crash in any of them.

In: how many, and a seed, as arguments. Out: exit status 0; the test that runs this module looks at nothing else,
because a crash ends the process.
"""

import asyncio
import random
import sys
import tempfile
from pathlib import Path

from deviceplugin.kubelet.grpc_endpoint import Endpoint, RegistryService

_LONGEST_S = 0.008


async def end_while_binding(folder: Path, *, turns: int, seconds: float) -> None:
    endpoints = [
        Endpoint(folder / f"{name}.sock", registry=RegistryService(f"a/{name}"), spare=folder / f"{name}-2.sock")
        for name in ("core", "memory")
    ]
    for each in endpoints:
        await each.start()

    async def bind_again() -> None:
        try:
            for each in endpoints:
                await each.start()
        finally:
            for each in endpoints:
                await each.stop()

    binding = asyncio.ensure_future(bind_again())
    for _ in range(turns):
        await asyncio.sleep(0)
    await asyncio.sleep(seconds)
    binding.cancel()
    await asyncio.gather(binding, return_exceptions=True)


def main() -> None:
    count, seed = map(int, sys.argv[1:])
    chance = random.Random(seed)
    for _ in range(count):
        with tempfile.TemporaryDirectory(prefix="vc-") as folder:
            seconds = chance.choice((0.0, chance.uniform(0, _LONGEST_S)))
            asyncio.run(end_while_binding(Path(folder), turns=chance.randrange(30), seconds=seconds))


if __name__ == "__main__":
    main()
