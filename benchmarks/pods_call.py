"""The time of one `GET /pods` as identity makes it, in a separate process, because kubelet and agent are separate too.

In: the endpoint, its CA, a kubeconfig, the number of calls. Out: the median in milliseconds, including decoding, over
one connection.
"""

import asyncio
import statistics
import sys
import time
from pathlib import Path

from deviceplugin.kube.credentials import Credentials
from deviceplugin.kubelet.identity_sources import KubeletPods
from deviceplugin.model.units import ResourceNames

WARM_UP = 5


async def median_ms(url: str, ca: Path, kubeconfig: Path, times: int) -> float:
    access = Credentials(kubeconfig).access
    client = KubeletPods(url, access=access, node="node-1", names=ResourceNames(), own_ca_files=(ca,))
    try:
        took = []
        for _ in range(WARM_UP + times):
            began = time.perf_counter()
            await client.fetch()
            took.append(time.perf_counter() - began)
        return statistics.median(took[WARM_UP:]) * 1000
    finally:
        await client.close()


if __name__ == "__main__":
    print(asyncio.run(median_ms(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4]))))
