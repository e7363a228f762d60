"""Two real replicas, a stand-in API server, and a client that trusts the caBundle and nothing else."""

import asyncio
import base64
import copy
import signal
import ssl
from pathlib import Path

import aiohttp

from sandbox.apiserver import ApiServer
from tests.scheduler.scene import CONFIGURATION, Scene, Scheduler, cluster

HOOKS = "mutatingwebhookconfigurations"
SECRET = "vcuda-scheduler-tls"
SECONDS = 120.0
TOGETHER = ("--leader-election", "kube-scheduler")
"""As in the chart: there is no leader before kube-scheduler starts."""


async def is_trusted(scene: Scene, replica: Scheduler) -> bool:
    try:
        status, _ = await scene.ask(replica, "/healthz")
    except (aiohttp.ClientConnectorCertificateError, ssl.SSLError):
        return False
    return status == 200


async def until_trusted(scene: Scene, *replicas: Scheduler) -> None:
    async with asyncio.timeout(SECONDS):
        while not all([await is_trusted(scene, each) for each in replicas]):
            await asyncio.sleep(0.05)


async def both(scene: Scene) -> tuple[Scheduler, Scheduler]:
    """Started at the same moment, into a cluster that has no Secret yet."""
    one, two = await asyncio.gather(scene.replica("replica-a", *TOGETHER), scene.replica("replica-b", *TOGETHER))
    await scene.until_ready(one, seconds=SECONDS)
    await scene.until_ready(two, seconds=SECONDS)
    return one, two


def secret(api: ApiServer) -> dict[str, str]:
    """Empty while there is none."""
    found = [each for each in api.store.objects("secrets", namespace="gpu") if each["metadata"]["name"] == SECRET]
    return dict(found[0]["data"]) if found else {}


def _break_secret(api: ApiServer) -> None:
    broken = {**api.store.get("secrets", SECRET, namespace="gpu"), "data": {"ca.crt": "eA=="}}
    api.store.replace("secrets", SECRET, broken, namespace="gpu")


def _empty_bundle(api: ApiServer) -> None:
    changed = copy.deepcopy(api.store.get(HOOKS, CONFIGURATION))
    changed["webhooks"][0]["clientConfig"]["caBundle"] = ""
    api.store.replace(HOOKS, CONFIGURATION, changed)


async def test_two_replicas_that_start_at_once_sign_with_one_ca_and_repair_what_others_damage(tmp_path: Path) -> None:
    async with cluster(tmp_path) as scene:
        one, two = await both(scene)
        await until_trusted(scene, one, two)
        before = secret(scene.api)
        assert set(before) == {"ca.crt", "ca.key"}
        assert scene.bundle() == base64.b64decode(before["ca.crt"]).decode()
        for harm in (_break_secret, _empty_bundle):
            harm(scene.api)
            async with asyncio.timeout(SECONDS):
                while secret(scene.api) != before or not scene.bundle():
                    await asyncio.sleep(0.05)
            await until_trusted(scene, one, two)

        scene.api.store.delete("secrets", SECRET, namespace="gpu")
        assert await one.end(signal.SIGTERM) == 0
        await one.start()
        await scene.until_ready(one, seconds=SECONDS)
        await until_trusted(scene, one, two)
        after = secret(scene.api)
        assert after["ca.crt"] != before["ca.crt"]
        for replica in (one, two):
            text = replica.log.read_text()
            assert "Traceback" not in text
            assert all(base64.b64decode(each["ca.key"]).decode().split()[-4] not in text for each in (before, after))
