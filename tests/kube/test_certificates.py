"""Certificates in both directions: which server is trusted, and what the client shows."""

import asyncio
import ssl
from pathlib import Path

import pytest

from deviceplugin.errors import KubeError
from deviceplugin.kube.client import KubeClient
from deviceplugin.kube.credentials import client_tls, read, show_certificate, trusted
from deviceplugin.kube.pods import pods_of_node
from deviceplugin.kube.reflector import Reflector, WatchTiming
from sandbox.apiserver import ApiServer, pod
from sandbox.cluster.certificates import ClusterCa
from tests.kube.counting import lists
from tests.kube.kubeconfigs import PODS, TIMEOUTS, ask, config, open_transport, plugin, trusting
from tests.waiting import in_background, until


async def test_an_exec_plugin_gives_a_client_certificate(secure: ApiServer, ca: ClusterCa, tmp_path: Path) -> None:
    require_client_certificates(secure)
    pair = ca.issue("agent", common_name="agent")
    status = {"clientCertificateData": pair.certificate.read_text(), "clientKeyData": pair.key.read_text()}
    await ask(config(secure, tmp_path / "kc", plugin(tmp_path, status), cluster=trusting(ca)))


async def test_a_client_certificate_in_a_file_is_shown(secure: ApiServer, ca: ClusterCa, tmp_path: Path) -> None:
    require_client_certificates(secure)
    pair = ca.issue("agent", common_name="agent")
    user = {"client-certificate": "pki/agent.crt", "client-key": str(pair.key)}
    await ask(config(secure, tmp_path / "kc", user, cluster={"certificate-authority": "pki/ca.crt"}))


async def test_a_server_that_wants_a_certificate_refuses_us_without_one(
    secure: ApiServer, ca: ClusterCa, tmp_path: Path
) -> None:
    require_client_certificates(secure)
    with pytest.raises(KubeError, match="could not be asked"):
        await ask(config(secure, tmp_path / "kc", {}, cluster=trusting(ca)))


async def test_a_certificate_of_an_unknown_ca_is_refused(secure: ApiServer, tmp_path: Path) -> None:
    with pytest.raises(KubeError, match="certificate is not trusted"):
        await ask(config(secure, tmp_path / "kc", {}))


async def test_a_certificate_for_another_name_needs_tls_server_name(
    secure: ApiServer, ca: ClusterCa, tmp_path: Path
) -> None:
    local = f"https://localhost:{secure.port}"
    with pytest.raises(KubeError, match="certificate is not trusted"):
        await ask(config(secure, tmp_path / "kc", {}, cluster=trusting(ca) | {"server": local}))
    named = trusting(ca) | {"server": local, "tls-server-name": "api.example"}
    await ask(config(secure, tmp_path / "kc", {}, cluster=named))


async def test_a_user_may_choose_not_to_verify(secure: ApiServer, tmp_path: Path) -> None:
    await ask(config(secure, tmp_path / "kc", {}, cluster={"insecure-skip-tls-verify": True}))


def test_keys_of_a_kubeconfig_are_in_no_file_afterwards(
    ca: ClusterCa, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = ca.issue("agent", common_name="agent")
    status = {"clientCertificateData": pair.certificate.read_text(), "clientKeyData": pair.key.read_text()}
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    found = read(config(ApiServer(port=1), tmp_path / "kc", plugin(tmp_path, status)))
    assert found.key == pair.key.read_bytes()
    context = ssl.create_default_context()
    show_certificate(context, found.certificate, found.key)
    assert list(temporary.iterdir()) == []


def test_a_bundle_may_have_comments_in_any_letters(ca: ClusterCa) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cadata=trusted("# Größe\n".encode() + ca.certificate.read_bytes()))
    assert len(context.get_ca_certs()) == 1


async def test_a_ca_that_writes_no_key_identifiers_is_trusted(secure: ApiServer, ca: ClusterCa) -> None:
    """As kubectl does; Python 3.13 does not by itself."""
    for context in (client_tls(ca=ca.certificate.read_text()), client_tls(ca_file=str(ca.certificate))):
        _, writer = await asyncio.open_connection("127.0.0.1", secure.port, ssl=context)
        writer.close()


def require_client_certificates(server: ApiServer) -> None:
    assert server.tls is not None
    server.tls.verify_mode = ssl.CERT_REQUIRED


def serving(ca: ClusterCa) -> ssl.SSLContext:
    pair = ca.issue("serving", common_name="api", names=["127.0.0.1"])
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(pair.certificate, pair.key)
    return context


def bundled(server: ApiServer, ca: ClusterCa, folder: Path) -> tuple[Path, Path]:
    """A file with the CA, and a kubeconfig that names it."""
    bundle = folder / "ca.crt"
    bundle.write_bytes(ca.certificate.read_bytes())
    return bundle, config(server, folder / "kc", {}, cluster={"certificate-authority": str(bundle)})


async def test_a_server_that_comes_back_with_another_certificate_is_followed(
    secure: ApiServer, ca: ClusterCa, tmp_path: Path
) -> None:
    """A certificate of the same CA: nothing is read again."""
    kubeconfig = config(secure, tmp_path / "kc", {}, cluster=trusting(ca))
    async with KubeClient(await open_transport(kubeconfig, timeouts=TIMEOUTS)) as client:
        await client.list(PODS)
        async with secure.refuse():
            secure.tls = serving(ca)
        await client.list(PODS)


async def test_a_ca_file_that_was_replaced_is_read_again(secure: ApiServer, ca: ClusterCa, tmp_path: Path) -> None:
    """Kubelet replaces ca.crt of a service account like this when a cluster changes its CA."""
    bundle, kubeconfig = bundled(secure, ca, tmp_path)
    async with KubeClient(await open_transport(kubeconfig, timeouts=TIMEOUTS)) as client:
        await client.list(PODS)
        other = ClusterCa(tmp_path / "other")
        async with secure.refuse():
            secure.tls = serving(other)
        with pytest.raises(KubeError, match="certificate is not trusted"):
            await client.list(PODS)
        bundle.write_bytes(other.certificate.read_bytes())
        await client.list(PODS)


async def test_a_watch_continues_after_the_server_gets_a_new_ca(
    secure: ApiServer, ca: ClusterCa, tmp_path: Path
) -> None:
    bundle, kubeconfig = bundled(secure, ca, tmp_path)
    async with KubeClient(await open_transport(kubeconfig, timeouts=TIMEOUTS)) as client:
        reflector = Reflector(client, pods_of_node("n1"), pace=WatchTiming(first_wait=0.01, most_wait=0.02))
        async with in_background(reflector.run()):
            await until(lambda: reflector.synced.is_set() and secure.open_watches == 1)
            other = ClusterCa(tmp_path / "other")
            async with secure.refuse():
                secure.tls = serving(other)
                bundle.write_bytes(other.certificate.read_bytes())
                secure.store.create("pods", pod("new", node="n1"))
            await until(lambda: len(reflector.items) == 1)
            assert lists(secure) == 1
