"""Every way to say who we are reaches the server, and every broken one is one sentence."""

import asyncio
import base64
import errno
import json
import ssl
import tempfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from deviceplugin.errors import ConfigError, KubeError
from deviceplugin.kube.client import KubeClient
from deviceplugin.kube.credentials import Access, Credentials, PrivateFiles, access_of
from deviceplugin.kube.node_pods import pods_of_node
from deviceplugin.kube.reading import Facts, read, read_apart
from deviceplugin.kube.transport import Timeouts
from tests.e2e.cluster.certificates import Authority
from tests.fakes.apiserver import ApiServer
from tests.fakes.apiserver.kubeconfig import write_kubeconfig

PODS = pods_of_node("n1")
TIMEOUTS = Timeouts(connect=2.0, request=5.0, silence=5.0)
JWT = ".".join(base64.urlsafe_b64encode(part).decode().rstrip("=") for part in (b"{}", b'{"sub":"agent"}', b"sig"))


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "pki")


@pytest.fixture
async def secure(authority: Authority) -> AsyncIterator[ApiServer]:
    """Speaks TLS under the names 127.0.0.1 and api.example."""
    pair = authority.issue("serving", common_name="api", names=["127.0.0.1", "api.example"])
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(authority.certificate))
    context.load_cert_chain(pair.certificate, pair.key)
    async with ApiServer(tls=context) as server:
        yield server


def load(kubeconfig: Path | None) -> Access:
    """In this process, for speed."""
    return access_of(read(kubeconfig), PrivateFiles(), where="it")


async def ask(kubeconfig: Path | None) -> None:
    async with await KubeClient.connect(kubeconfig, timeouts=TIMEOUTS) as client:
        await client.list(PODS)


def config(server: ApiServer, path: Path, user: dict[str, Any], *, cluster: dict[str, Any] | None = None) -> Path:
    """A kubeconfig with this user; other forms than `write_kubeconfig` knows."""
    write_kubeconfig(path, server.url)
    document = yaml.safe_load(path.read_text())
    document["users"][0]["user"] = user
    document["clusters"][0]["cluster"] |= cluster or {}
    path.write_text(yaml.safe_dump(document))
    return path


def plugin(tmp_path: Path, status: dict[str, str]) -> dict[str, Any]:
    answer = {"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": status}
    script = tmp_path / "plugin"
    script.write_text(f"#!/bin/sh\necho run >> {tmp_path}/runs\ncat {tmp_path}/answer\n")
    script.chmod(0o755)
    (tmp_path / "answer").write_text(json.dumps(answer))
    return {"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": str(script)}}


@pytest.mark.parametrize(
    ("token", "user"),
    [
        ("Bearer plain", {"token": "plain"}),
        (f"Bearer {JWT}", {"auth-provider": {"name": "oidc", "config": {"id-token": JWT}}}),
        ("Basic " + base64.b64encode(b"me:secret").decode(), {"username": "me", "password": "secret"}),
    ],
)
def test_a_user_of_a_kubeconfig_becomes_a_header(tmp_path: Path, token: str, user: dict[str, Any]) -> None:
    access = load(config(ApiServer(port=1), tmp_path / "kc", user))
    assert access.authorization == token
    assert access.server == "http://127.0.0.1:1"


async def test_a_token_reaches_the_server(server: ApiServer, tmp_path: Path) -> None:
    server.token = "secret"
    await ask(server.kubeconfig(tmp_path / "kc"))
    server.token = "other"
    with pytest.raises(KubeError, match="credentials are missing or have expired") as refusal:
        await ask(write_kubeconfig(tmp_path / "kc", server.url, token="secret"))
    assert refusal.value.code == 401


async def test_a_rotated_token_file_is_read_again_once(server: ApiServer, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("first")
    server.token = "first"
    kubeconfig = write_kubeconfig(tmp_path / "kc", server.url, token_file=token)
    async with await KubeClient.connect(kubeconfig, timeouts=TIMEOUTS) as client:
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
    async with await KubeClient.connect(kubeconfig, timeouts=TIMEOUTS) as client:
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
    async with await KubeClient.connect(kubeconfig, timeouts=Timeouts(request=0.3)) as client:
        (tmp_path / "plugin").write_text("#!/bin/sh\nexec sleep 2\n")
        server.token = "second"
        for _ in range(3):
            with pytest.raises(KubeError, match="no answer in time"):
                await client.list(PODS)
        assert await asyncio.wait_for(asyncio.to_thread(lambda: "others go on"), 1) == "others go on"


async def test_an_exec_plugin_gives_a_token_and_is_asked_again_after_401(server: ApiServer, tmp_path: Path) -> None:
    server.token = "first"
    kubeconfig = config(server, tmp_path / "kc", plugin(tmp_path, {"token": "first"}))
    async with await KubeClient.connect(kubeconfig, timeouts=TIMEOUTS) as client:
        await client.list(PODS)
        await client.list(PODS)
        assert (tmp_path / "runs").read_text().count("run") == 1
        server.token = "second"
        plugin(tmp_path, {"token": "second"})
        await client.list(PODS)
        assert (tmp_path / "runs").read_text().count("run") == 2


async def test_an_exec_plugin_gives_a_client_certificate(
    secure: ApiServer, authority: Authority, tmp_path: Path
) -> None:
    require_client_certificates(secure)
    pair = authority.issue("agent", common_name="agent")
    status = {"clientCertificateData": pair.certificate.read_text(), "clientKeyData": pair.key.read_text()}
    await ask(config(secure, tmp_path / "kc", plugin(tmp_path, status), cluster=trusting(authority)))


async def test_a_client_certificate_in_a_file_is_shown(secure: ApiServer, authority: Authority, tmp_path: Path) -> None:
    require_client_certificates(secure)
    pair = authority.issue("agent", common_name="agent")
    user = {"client-certificate": "pki/agent.crt", "client-key": str(pair.key)}
    await ask(config(secure, tmp_path / "kc", user, cluster={"certificate-authority": "pki/ca.crt"}))


async def test_a_server_that_wants_a_certificate_refuses_us_without_one(
    secure: ApiServer, authority: Authority, tmp_path: Path
) -> None:
    require_client_certificates(secure)
    with pytest.raises(KubeError, match="could not be asked"):
        await ask(config(secure, tmp_path / "kc", {}, cluster=trusting(authority)))


async def test_a_certificate_of_an_unknown_authority_is_refused(secure: ApiServer, tmp_path: Path) -> None:
    with pytest.raises(KubeError, match="certificate is not trusted"):
        await ask(config(secure, tmp_path / "kc", {}))


async def test_a_certificate_for_another_name_needs_tls_server_name(
    secure: ApiServer, authority: Authority, tmp_path: Path
) -> None:
    local = f"https://localhost:{secure.port}"
    with pytest.raises(KubeError, match="certificate is not trusted"):
        await ask(config(secure, tmp_path / "kc", {}, cluster=trusting(authority) | {"server": local}))
    named = trusting(authority) | {"server": local, "tls-server-name": "api.example"}
    await ask(config(secure, tmp_path / "kc", {}, cluster=named))


async def test_a_user_may_choose_not_to_verify(secure: ApiServer, tmp_path: Path) -> None:
    await ask(config(secure, tmp_path / "kc", {}, cluster={"insecure-skip-tls-verify": True}))


async def test_a_pod_uses_its_service_account_and_reads_a_rotated_token(
    secure: ApiServer, authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = tmp_path / "token"
    token.write_text("first")
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(secure.port))
    monkeypatch.setattr("kubernetes.config.incluster_config.SERVICE_TOKEN_FILENAME", str(token))
    monkeypatch.setattr("kubernetes.config.incluster_config.SERVICE_CERT_FILENAME", str(authority.certificate))
    secure.token = "first"
    now = 0.0
    credentials = Credentials(None, clock=lambda: now, read=read)
    async with await KubeClient.connect(None, timeouts=TIMEOUTS, credentials=credentials) as client:
        await client.list(PODS)
        token.write_text("second")
        secure.token = "second"
        await client.list(PODS)
        connections = (await credentials.access()).tls
        token.write_text("third")
        now = 300.0
        await until_header(credentials, "bearer third")
        assert (await credentials.access()).tls is connections


async def test_a_pod_with_a_read_only_file_system_uses_its_service_account_too(
    secure: ApiServer, authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nowhere() -> str:
        raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found")

    token = tmp_path / "token"
    token.write_text("first")
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(secure.port))
    monkeypatch.setattr("kubernetes.config.incluster_config.SERVICE_TOKEN_FILENAME", str(token))
    monkeypatch.setattr("kubernetes.config.incluster_config.SERVICE_CERT_FILENAME", str(authority.certificate))
    monkeypatch.setattr(tempfile, "gettempdir", nowhere)
    secure.token = "first"
    credentials = Credentials(None, read=read)
    async with await KubeClient.connect(None, timeouts=TIMEOUTS, credentials=credentials) as client:
        await client.list(PODS)


async def test_a_header_is_refreshed_before_anyone_refuses_it(server: ApiServer, tmp_path: Path) -> None:
    now = 0.0
    expired = {"token": "first", "expirationTimestamp": "2020-01-01T00:00:00Z"}
    credentials = Credentials(config(server, tmp_path / "kc", plugin(tmp_path, expired)), clock=lambda: now)
    assert (await credentials.access()).authorization == "Bearer first"
    plugin(tmp_path, {"token": "second"})
    now = 60.0
    assert (await credentials.access()).authorization == "Bearer first"
    now = 300.0
    assert (await credentials.access()).authorization == "Bearer first", "nobody waits for the new one"
    await until_header(credentials, "Bearer second")


async def test_a_header_that_cannot_be_refreshed_is_kept_and_tried_again_later() -> None:
    now, readings = 0.0, ["first", "", "", "second"]

    def reading(_: Path | None) -> Facts:
        token = readings.pop(0)
        if not token:
            raise ConfigError("the token cannot be read")
        return Facts("http://127.0.0.1:1", f"Bearer {token}", expires=True)

    credentials = Credentials(None, clock=lambda: now, read=reading)
    before = await credentials.access()
    async with asyncio.timeout(20):
        while len(readings) > 1:
            now += 300.0
            assert await credentials.access() is before
            await asyncio.sleep(0.001)
        while readings:
            now += 300.0
            await credentials.access()
            await asyncio.sleep(0.001)
    await until_header(credentials, "Bearer second")


async def test_credentials_that_never_expire_are_read_once() -> None:
    readings = []

    def reading(kubeconfig: Path | None) -> Facts:
        readings.append(kubeconfig)
        return Facts("http://127.0.0.1:1", "Bearer first")

    now = 0.0
    credentials = Credentials(None, clock=lambda: now, read=reading)
    await credentials.access()
    now = 1e9
    for _ in range(3):
        await credentials.access()
        await asyncio.sleep(0.01)
    assert readings == [None]


def test_the_process_that_reads_says_what_reading_in_place_says(authority: Authority, tmp_path: Path) -> None:
    pair = authority.issue("agent", common_name="agent")
    status = {"clientCertificateData": pair.certificate.read_text(), "clientKeyData": pair.key.read_text()}
    for user in (plugin(tmp_path, status), {"token": "first"}, {"client-certificate": "pki/agent.crt"}, {}):
        path = config(ApiServer(port=1), tmp_path / "kc", user, cluster=trusting(authority))
        assert read_apart(path) == read(path)
    path.write_text("nonsense")
    with pytest.raises(ConfigError) as apart:
        read_apart(path)
    with pytest.raises(ConfigError) as in_place:
        read(path)
    assert apart.value.message == in_place.value.message


def test_what_an_exec_plugin_prints_on_the_way_does_no_harm(tmp_path: Path) -> None:
    path = config(ApiServer(port=1), tmp_path / "kc", plugin(tmp_path, {"token": "first"}))
    script = tmp_path / "plugin"
    script.write_text(script.read_text() + "echo noise >&2\n")
    assert read_apart(path).authorization == "Bearer first"


def test_a_process_that_dies_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho 'no such\nmodule' >&2\nkill -9 $$\n")
    python.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(python))
    with pytest.raises(ConfigError, match=r"kubeconfig kc could not be read: .* said: no such module"):
        read_apart(Path("kc"))
    python.unlink()
    with pytest.raises(ConfigError, match=r"kubeconfig kc cannot be read: No such file or directory"):
        read_apart(Path("kc"))


def test_keys_of_a_kubeconfig_are_private_files_that_go_with_the_credentials(
    authority: Authority, tmp_path: Path
) -> None:
    pair = authority.issue("agent", common_name="agent")
    status = {"clientCertificateData": pair.certificate.read_text(), "clientKeyData": pair.key.read_text()}
    keep = PrivateFiles()
    access = access_of(read(config(ApiServer(port=1), tmp_path / "kc", plugin(tmp_path, status))), keep, where="it")
    assert access.client_certificate is not None
    certificate, key = access.client_certificate
    assert key is not None
    assert key.read_bytes() == pair.key.read_bytes()
    assert (key.stat().st_mode & 0o777, key.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    del keep
    assert not certificate.parent.exists()


async def test_a_proxy_of_the_kubeconfig_is_used(server: ApiServer, tmp_path: Path) -> None:
    behind = {"server": "http://api.invalid", "proxy-url": server.url}
    await ask(config(server, tmp_path / "kc", {}, cluster=behind))
    assert len(server.requests) == 1


def test_without_kubeconfig_and_cluster_the_sentence_names_the_flag(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(ConfigError, match="pass --kubeconfig FILE"):
        load(None)


def test_a_pod_without_a_token_is_told_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    monkeypatch.setattr("kubernetes.config.incluster_config.SERVICE_TOKEN_FILENAME", str(tmp_path / "absent"))
    with pytest.raises(ConfigError, match="service account cannot be used"):
        load(None)


def spoil(change: Callable[[dict[str, Any]], object]) -> str:
    document: dict[str, Any] = {
        "apiVersion": "v1",
        "current-context": "c",
        "clusters": [{"name": "k", "cluster": {"server": "https://127.0.0.1:1"}}],
        "users": [{"name": "u", "user": {}}],
        "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
    }
    change(document)
    return yaml.safe_dump(document)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "nonsense",
        "- a\n- b\n",
        "{",
        "\x00",
        "current-context: 5",
        spoil(lambda d: d.pop("current-context")),
        spoil(lambda d: d.update({"current-context": "other"})),
        spoil(lambda d: d.pop("clusters")),
        spoil(lambda d: d.update(clusters=None)),
        spoil(lambda d: d.update(contexts="c")),
        spoil(lambda d: d["clusters"][0].update(cluster={})),
        spoil(lambda d: d["clusters"][0].update(cluster={"server": "ftp://x"})),
        spoil(lambda d: d["clusters"][0]["cluster"].update({"certificate-authority": "/no/such/file"})),
        spoil(lambda d: d["clusters"][0]["cluster"].update({"certificate-authority-data": "bm8gY2VydA=="})),
        spoil(lambda d: d["clusters"][0]["cluster"].update({"proxy-url": "socks5://127.0.0.1:1"})),
        spoil(lambda d: d["users"][0]["user"].update({"client-certificate-data": "!!!", "client-key-data": "!!!"})),
        spoil(lambda d: d["users"][0]["user"].update({"tokenFile": "/no/such/file"})),
        spoil(lambda d: d["users"][0]["user"].update({"token": "two\nlines"})),
    ],
)
def test_a_kubeconfig_that_cannot_be_used_is_one_sentence(tmp_path: Path, text: str) -> None:
    path = tmp_path / "kc"
    path.write_text(text)
    with pytest.raises(ConfigError) as refusal:
        load(path)
    assert "\n" not in refusal.value.message
    assert len(refusal.value.message) < 600


@pytest.mark.parametrize("name", ["absent", "folder", "absent/below"])
def test_a_kubeconfig_that_cannot_be_read_is_one_sentence(tmp_path: Path, name: str) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(ConfigError, match=r"cannot be read: .*; check --kubeconfig"):
        load(tmp_path / name)


@given(st.binary(max_size=200))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50, deadline=None)
def test_any_bytes_are_a_config_error(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "kc"
    path.write_bytes(content)
    with pytest.raises(ConfigError):
        load(path)


async def until_header(credentials: Credentials, header: str) -> None:
    async with asyncio.timeout(20):
        while (await credentials.access()).authorization != header:
            await asyncio.sleep(0.01)


def trusting(authority: Authority) -> dict[str, str]:
    return {"certificate-authority-data": base64.b64encode(authority.certificate.read_bytes()).decode()}


def require_client_certificates(server: ApiServer) -> None:
    assert server.tls is not None
    server.tls.verify_mode = ssl.CERT_REQUIRED
