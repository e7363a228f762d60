"""A replica in a separate process that prints whether it leads, for tests that stop it with a signal.

In: a kubeconfig and an identity. Out: for each look a line: `look`, the machine's monotonic clock, and 0 or 1; its log
between them.
"""

import asyncio
import sys
import time
from pathlib import Path

from deviceplugin.kube.cluster_client import ClusterClient
from deviceplugin.kube.leader_election import LeaderElector, LeaseTiming
from tests.kube.kubeconfigs import open_transport

TIMING = LeaseTiming(lease=2, renew=1.5, retry=0.2)


async def run(kubeconfig: Path, identity: str) -> None:
    async with ClusterClient(await open_transport(kubeconfig)) as client:
        elector = LeaderElector(client, namespace="n", name="l", identity=identity, timing=TIMING)
        election = asyncio.create_task(elector.run())
        while not election.done():
            print(f"look {time.monotonic():.6f} {int(elector.is_leader)}", flush=True)
            await asyncio.sleep(0.01)


if __name__ == "__main__":
    asyncio.run(run(Path(sys.argv[1]), sys.argv[2]))
