"""Every kind of credential reaches the server, and what expires is read again."""

import asyncio
import base64
import errno
import tempfile
from pathlib import Path
from typing import Any

import pytest
import structlog

from deviceplugin.errors import KubeError
from deviceplugin.kube.client import KubeClient
from deviceplugin.kube.credentials import Credentials
from deviceplugin.kube.transport import Timeouts
from sandbox.apiserver import ApiServer
from sandbox.apiserver.kubeconfig import write_kubeconfig
from sandbox.cluster.certificates import ClusterCa
from tests.kube.kubeconfigs import JWT, PODS, TIMEOUTS, ask, config, load, open_transport, plugin


def test_a_user_of_a_kubeconfig_becomes_a_header(tmp_path: Path, subtests: pytest.Subtests) -> None:
    cases: list[tuple[str, dict[str, Any]]] = [
        ("Bearer plain", {"token": "plain"}),
        (f"Bearer {JWT}", {"auth-provider": {"name": "oidc", "config": {"id-token": JWT}}}),
        ("Basic " + base64.b64encode(b"me:secret").decode(), {"username": "me", "password": "secret"}),
    ]
    for token, user in cases:
        with subtests.test(token=token):
            access = load(config(ApiServer(port=1), tmp_path / "kc", user))
            assert access.facts.authorization == token
            assert access.facts.server == "http://127.0.0.1:1"


async def test_a_token_reaches_the_server(server: ApiServer, tmp_path: Path) -> None:
    server.token = "secret"
    await ask(server.kubeconfig(tmp_path / "kc"))
    server.token = "other"
    with pytest.raises(KubeError, match="credentials are missing, expired or not of this cluster") as refusal:
        await ask(write_kubeconfig(tmp_path / "kc", server.url, token="secret"))
    assert refusal.value.code == 401


async def test_a_rotated_token_file_is_read_again_once(server: ApiServer, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("first")
    server.token = "first"
    kubeconfig = write_kubeconfig(tmp_path / "kc", server.url, token_file=token)
    async with KubeClient(await open_transport(kubeconfig, timeouts=TIMEOUTS)) as client:
        await client.list(PODS)
        token.write_text("second\n")
        server.token = "second"
        await client.list(PODS)
        await client.list(PODS)
        assert len(server.requests) == 4
        server.token = "third"
        with pytest.raises(KubeError, match="401"):
            await client.list(PODS)
        assert len(server.requests) == 6


async def test_a_kubeconfig_that_vanished_is_not_missed_until_the_server_refuses(
    server: ApiServer, tmp_path: Path
) -> None:
    server.token = "first"
    kubeconfig = server.kubeconfig(tmp_path / "kc")
    async with KubeClient(await open_transport(kubeconfig, timeouts=TIMEOUTS)) as client:
        kubeconfig.unlink()
        await client.list(PODS)
        server.token = "second"
        with pytest.raises(KubeError, match="401"):
            await client.list(PODS)
        server.kubeconfig(kubeconfig)
        await client.list(PODS)


async def test_a_plugin_that_hangs_costs_the_time_limit_and_no_more(server: ApiServer, tmp_path: Path) -> None:
    server.token = "first"
    kubeconfig = config(server, tmp_path / "kc", plugin(tmp_path, {"token": "first"}))
    async with KubeClient(await open_transport(kubeconfig, timeouts=Timeouts(request=0.3))) as client:
        (tmp_path / "plugin").write_text("#!/bin/sh\nexec sleep 2\n")
        server.token = "second"
        for _ in range(3):
            with pytest.raises(KubeError, match="no answer in time"):
                await client.list(PODS)
        assert await asyncio.wait_for(asyncio.to_thread(lambda: "others go on"), 1) == "others go on"


async def test_an_exec_plugin_gives_a_token_and_is_asked_again_after_401(server: ApiServer, tmp_path: Path) -> None:
    server.token = "first"
    kubeconfig = config(server, tmp_path / "kc", plugin(tmp_path, {"token": "first"}))
    async with KubeClient(await open_transport(kubeconfig, timeouts=TIMEOUTS)) as client:
        await client.list(PODS)
        await client.list(PODS)
        assert (tmp_path / "runs").read_text().count("run") == 1
        server.token = "second"
        plugin(tmp_path, {"token": "second"})
        await client.list(PODS)
        assert (tmp_path / "runs").read_text().count("run") == 2


async def test_a_login_may_take_longer_than_an_answer(server: ApiServer, tmp_path: Path) -> None:
    """A plugin may wait for the user of a command in a browser."""
    timeouts = Timeouts(request=2.0, login=60.0)
    server.token = "first"
    kubeconfig = config(server, tmp_path / "kc", plugin(tmp_path, {"token": "first"}))
    async with KubeClient(await open_transport(kubeconfig, timeouts=timeouts)) as client:
        await client.list(PODS)
        server.token = "second"
        plugin(tmp_path, {"token": "second"})
        script = tmp_path / "plugin"
        script.write_text(script.read_text().replace("cat ", "sleep 2.5\ncat "))
        await client.list(PODS)


async def test_a_pod_uses_its_service_account_and_reads_a_rotated_token(
    secure: ApiServer, ca: ClusterCa, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = service_account(monkeypatch, tmp_path, port=secure.port, ca=ca.certificate.read_bytes())
    secure.token = "first"
    now = 0.0
    credentials = Credentials(None, clock=lambda: now)
    async with KubeClient(await open_transport(None, timeouts=TIMEOUTS, credentials=credentials)) as client:
        await client.list(PODS)
        token.write_text("second")
        secure.token = "second"
        await client.list(PODS)
        connections = (await credentials.access()).tls
        token.write_text("third")
        now = 300.0
        await until_header(credentials, "Bearer third")
        assert (await credentials.access()).tls is connections


async def test_a_pod_with_a_read_only_file_system_uses_its_service_account_too(
    secure: ApiServer, ca: ClusterCa, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nowhere() -> str:
        raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found")

    service_account(monkeypatch, tmp_path, port=secure.port, ca=ca.certificate.read_bytes())
    monkeypatch.setattr(tempfile, "gettempdir", nowhere)
    secure.token = "first"
    credentials = Credentials(None)
    async with KubeClient(await open_transport(None, timeouts=TIMEOUTS, credentials=credentials)) as client:
        await client.list(PODS)


async def test_a_header_is_refreshed_before_anyone_refuses_it(server: ApiServer, tmp_path: Path) -> None:
    now = 0.0
    expired = {"token": "first", "expirationTimestamp": "2020-01-01T00:00:00Z"}
    credentials = Credentials(config(server, tmp_path / "kc", plugin(tmp_path, expired)), clock=lambda: now)
    assert (await credentials.access()).facts.authorization == "Bearer first"
    plugin(tmp_path, {"token": "second"})
    now = 60.0
    assert (await credentials.access()).facts.authorization == "Bearer first"
    now = 300.0
    assert (await credentials.access()).facts.authorization == "Bearer first", "nobody waits for the new one"
    await until_header(credentials, "Bearer second")


async def test_a_header_that_cannot_be_refreshed_is_kept_and_tried_again_later(
    ca: ClusterCa, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = service_account(monkeypatch, tmp_path, port=1, ca=ca.certificate.read_bytes())
    now = 0.0
    credentials = Credentials(None, clock=lambda: now)
    before = await credentials.access()
    token.write_text("")
    with structlog.testing.capture_logs() as logged:
        async with asyncio.timeout(60):
            while len(logged) < 2:
                now += 300.0
                assert await credentials.access() is before
                await asyncio.sleep(0.001)
    assert {each["event"] for each in logged} == {"credentials_reload_failed"}
    token.write_text("second")
    now += 300.0
    await until_header(credentials, "Bearer second")


async def test_credentials_that_never_expire_are_read_once(tmp_path: Path) -> None:
    path = config(ApiServer(port=1), tmp_path / "kc", {})
    now = 0.0
    credentials = Credentials(path, clock=lambda: now)
    first = await credentials.access()
    path.unlink()
    now = 1e9
    with structlog.testing.capture_logs() as logged:
        for _ in range(3):
            assert await credentials.access() is first
            await asyncio.sleep(0.01)
    assert logged == []


async def test_a_proxy_of_the_kubeconfig_is_used(server: ApiServer, tmp_path: Path) -> None:
    behind = {"server": "http://api.invalid", "proxy-url": server.url}
    await ask(config(server, tmp_path / "kc", {}, cluster=behind))
    assert len(server.requests) == 1


def service_account(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *, port: int, ca: bytes) -> Path:
    """Makes this process one in a pod; its token, which is `first`."""
    folder = tmp_path / "serviceaccount"
    folder.mkdir()
    for name, content in (("token", b"first"), ("ca.crt", ca), ("namespace", b"gpu")):
        (folder / name).write_bytes(content)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(port))
    monkeypatch.setattr("deviceplugin.kube.credentials.SERVICE_ACCOUNT", folder)
    return folder / "token"


async def until_header(credentials: Credentials, header: str) -> None:
    async with asyncio.timeout(60):
        while (await credentials.access()).facts.authorization != header:
            await asyncio.sleep(0.01)
