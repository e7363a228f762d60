"""Two real replicas, a stand-in API server, and a client that trusts the caBundle and nothing else."""

import asyncio
import base64
import copy
import ssl
from collections.abc import Callable
from pathlib import Path

import aiohttp

from sandbox.apiserver import ApiServer
from tests.scheduler.scene import CONFIGURATION, Scene, Scheduler, cluster, webhook_configuration

HOOKS = "mutatingwebhookconfigurations"
SECRET = "vcuda-scheduler-tls"
SECONDS = 120.0
TOGETHER = ("--leader-election", "kube-scheduler")
"""As in the chart: before there is a leader every replica renews the certificates."""


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


def _lose_secret(api: ApiServer) -> None:
    api.store.delete("secrets", SECRET, namespace="gpu")


def _break_secret(api: ApiServer) -> None:
    broken = {**api.store.get("secrets", SECRET, namespace="gpu"), "data": {"tls.crt": "eA=="}}
    api.store.replace("secrets", SECRET, broken, namespace="gpu")


def _bundle(text: str) -> Callable[[ApiServer], None]:
    def write(api: ApiServer) -> None:
        changed = copy.deepcopy(api.store.get(HOOKS, CONFIGURATION))
        changed["webhooks"][0]["clientConfig"]["caBundle"] = text
        api.store.replace(HOOKS, CONFIGURATION, changed)

    return write


def _recreate_configuration(api: ApiServer) -> None:
    api.store.delete(HOOKS, CONFIGURATION)
    api.store.create(HOOKS, webhook_configuration())


async def test_two_replicas_that_start_at_once_serve_certificates_of_one_ca_and_repair_what_others_damage(
    tmp_path: Path,
) -> None:
    async with cluster(tmp_path) as scene:
        one, two = await both(scene)
        await until_trusted(scene, one, two)
        before = secret(scene.api)
        ca = base64.b64decode(before["ca.crt"]).decode()
        async with asyncio.timeout(SECONDS):
            while scene.bundle().strip() != ca.strip():
                await asyncio.sleep(0.05)
        assert await is_trusted(scene, one)
        assert await is_trusted(scene, two)
        no_certificate = base64.b64encode(b"no certificate").decode()
        for harm in (_lose_secret, _break_secret, _bundle(""), _bundle(no_certificate), _recreate_configuration):
            harm(scene.api)
            async with asyncio.timeout(SECONDS):
                while secret(scene.api) != before or "BEGIN CERTIFICATE" not in scene.bundle():
                    await asyncio.sleep(0.05)
            await until_trusted(scene, one, two)
        for replica in (one, two):
            assert "Traceback" not in replica.log.read_text()
