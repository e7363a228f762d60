"""What pods that wait and claims cost `vcuda scheduler`: memory, and how long others wait for its loop meanwhile.

In: a folder, how many of each. Out: figures by name. Each pod has 4 KiB of annotations that vcuda reads. While the
scheduler takes them in, a small pod is reviewed again and again, for the webhook answers on the same loop. What its
thread worked during the longest review is about the longest time that somebody had the loop; unlike the time that
passed, it does not count what else the machine did.
"""

import asyncio
import time
import urllib.error
import urllib.request
from collections.abc import Coroutine
from pathlib import Path

from benchmarks.cluster import fleet
from benchmarks.cluster.load import review_of
from benchmarks.cluster.measured import Measured, measured_scheduler
from benchmarks.cluster.stub import stub_server
from benchmarks.command import BenchmarkError
from sandbox.apiserver.kubeconfig import write_kubeconfig
from sandbox.apiserver.reviews import VIEWER, token_of
from sandbox.http_connection import Connection

NODES = 100
UUIDS = 100  # 4 KiB
WARM = 20
PATIENCE_S = 600.0


def measure_waiting(folder: Path, pods: int, claims: int, *, core: int) -> dict[str, float]:
    """The keys are those of the benchmark's output."""
    folder.mkdir(parents=True)
    with stub_server(NODES, 0) as (url, _):
        kubeconfig = write_kubeconfig(folder / "kubeconfig", url)
        with measured_scheduler(folder, kubeconfig, "--dra", core=core) as measured:
            return asyncio.run(_measure(measured, url, pods, claims))


async def _measure(measured: Measured, stub: str, pods: int, claims: int) -> dict[str, float]:
    connection = await Connection.open(measured.port, measured.trust())
    for _ in range(WARM):
        await connection.post("/webhook", review_of(0))
    empty = measured.rss_mib()
    of_pods = _taken_in(measured, f"{stub}/bench/pods?from=0&to={pods}&uuids={UUIDS}", fleet.pending_name(pods - 1))
    pods_ms = await _longest_during(of_pods, connection, measured)
    full = measured.rss_mib()
    of_claims = _taken_in(measured, f"{stub}/bench/claims?from=0&to={claims}", fleet.claiming_name(claims - 1))
    claims_ms = await _longest_during(of_claims, connection, measured)
    await connection.close()
    return {
        "waiting_pods": pods,
        "waiting_rss_mib": full,
        "waiting_kib_a_pod": (full - empty) * 1024 / pods,
        "waiting_longest_ms": pods_ms,
        "claims": claims,
        "claims_rss_mib": measured.rss_mib(),
        "claims_longest_ms": claims_ms,
    }


async def _longest_during(work: Coroutine[None, None, None], connection: Connection, measured: Measured) -> float:
    """The longest review, in ms of the scheduler's processor time."""
    task, longest = asyncio.create_task(work), 0.0
    while not task.done():
        before = measured.thread_ms()
        _, passed = await connection.post("/webhook", review_of(0))
        longest = max(longest, min(measured.thread_ms() - before, passed * 1000))
        await asyncio.sleep(0.001)
    await task
    return longest


async def _taken_in(measured: Measured, url: str, last: str) -> None:
    """Makes them; until the scheduler knows the last one."""
    await asyncio.to_thread(lambda: urllib.request.urlopen(urllib.request.Request(url, method="POST")).read())
    deadline = time.monotonic() + PATIENCE_S
    while not await asyncio.to_thread(_is_known, measured, last):
        if time.monotonic() > deadline:
            raise BenchmarkError(f"vcuda scheduler does not know pod {last} after {PATIENCE_S:.0f} s")
        await asyncio.sleep(0.05)


def _is_known(measured: Measured, pod: str) -> bool:
    url = f"https://127.0.0.1:{measured.port}/explain?pod={fleet.NAMESPACE}/{pod}"
    asked = urllib.request.Request(url, headers={"Authorization": f"Bearer {token_of(VIEWER, 'vcuda')}"})
    try:
        urllib.request.urlopen(asked, context=measured.trust(), timeout=60).read()
    except urllib.error.HTTPError as error:
        if error.code != 404:
            raise
        return False
    return True
