"""A leader that was stopped for longer than its lease must not act as leader for a moment."""

import asyncio
import signal
import sys
import time
from pathlib import Path

from deviceplugin.kube.cluster_client import ClusterClient
from deviceplugin.kube.leader_election import LeaderElector, awake_and_asleep
from sandbox.apiserver import ApiServer
from tests.kube.elector_process import TIMING
from tests.kube.kubeconfigs import open_transport
from tests.waiting import in_background, until


async def test_a_process_that_was_stopped_past_its_lease_no_longer_leads(server: ApiServer, tmp_path: Path) -> None:
    kubeconfig = server.kubeconfig(tmp_path / "kc")
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.kube.elector_process", str(kubeconfig), "a"), stdout=asyncio.subprocess.PIPE
    )
    said: list[tuple[float, bool]] = []

    async def listen() -> None:
        assert process.stdout is not None
        while line := await process.stdout.readline():
            if line.startswith(b"look "):
                _, at, leads = line.split()
                said.append((float(at), leads == b"1"))
        await asyncio.Event().wait()

    try:
        async with in_background(listen()):
            await until(lambda: bool(said) and said[-1][1], within=30)
            process.send_signal(signal.SIGSTOP)
            stopped = time.monotonic()
            async with ClusterClient(await open_transport(kubeconfig)) as client:
                other = LeaderElector(client, namespace="n", name="l", identity="b", timing=TIMING)
                async with in_background(other.run()):
                    await until(lambda: other.is_leader, within=30)
                    process.send_signal(signal.SIGCONT)
                    resumed = time.monotonic()
                    await until(lambda: sum(at > resumed for at, _ in said) >= 100, within=30)
                    assert other.is_leader
            after = [leads for at, leads in said if at > stopped + TIMING.renew]
            assert len(after) >= 100
            assert not any(after), "from its first look on"
    finally:
        process.kill()
        await process.wait()


def test_time_in_which_the_machine_slept_counts() -> None:
    """CLOCK_MONOTONIC stands still while a machine is suspended; the leases of others do not."""
    asleep = time.clock_gettime(time.CLOCK_BOOTTIME) - time.clock_gettime(time.CLOCK_MONOTONIC)
    assert abs(awake_and_asleep() - time.monotonic() - asleep) < 1.0
