"""What a kubeconfig or a service account says, and one sentence where it says nothing that can be used."""

import base64
import json
import sys
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self

import pytest
import yaml
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from deviceplugin.errors import ConfigError
from deviceplugin.kube.credentials import read
from sandbox.apiserver import ApiServer
from sandbox.cluster.certificates import ClusterCa
from tests.examples import examples
from tests.kube.kubeconfigs import config, load, plugin

LATE = 1 << 40


def token(expires: int) -> str:
    parts = (b"{}", json.dumps({"exp": expires}).encode(), b"sig")
    return ".".join(base64.urlsafe_b64encode(part).decode().rstrip("=") for part in parts)


class Issuer(ThreadingHTTPServer):
    """Of OIDC tokens: it renews every one."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), IssuerAnswers)
        self.url = f"http://127.0.0.1:{self.server_port}"

    def __enter__(self) -> Self:
        threading.Thread(target=self.serve_forever, args=(0.01,)).start()
        return self

    def __exit__(self, *failure: object) -> None:
        self.shutdown()
        self.server_close()


class IssuerAnswers(BaseHTTPRequestHandler):
    server: Issuer

    def do_GET(self) -> None:
        self.say({"token_endpoint": f"{self.server.url}/token"})

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.say({"id_token": token(LATE), "refresh_token": "r", "access_token": "a", "token_type": "Bearer"})

    def say(self, answer: dict[str, str]) -> None:
        body = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_request(self, code: object = 0, size: object = 0) -> None:
        """Nothing on standard error."""


def test_what_an_exec_plugin_prints_on_the_way_does_no_harm(tmp_path: Path) -> None:
    path = config(ApiServer(port=1), tmp_path / "kc", plugin(tmp_path, {"token": "first"}))
    script = tmp_path / "plugin"
    script.write_text(script.read_text() + "echo noise >&2\n")
    assert read(path).authorization == "Bearer first"


def test_a_process_that_dies_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = config(ApiServer(port=1), tmp_path / "kc", plugin(tmp_path, {"token": "first"}))
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho 'no such\nmodule' >&2\nkill -9 $$\n")
    python.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(python))
    with pytest.raises(ConfigError, match=r"kubeconfig .*/kc could not be read: .* printed: no such module"):
        read(path)
    python.unlink()
    with pytest.raises(ConfigError, match=r"kubeconfig .*/kc cannot be read: No such file or directory"):
        read(path)


def test_the_process_does_not_import_what_it_does_not_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    imported, python = tmp_path / "imported", tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -X importtime "$@" 2>{imported}\n')
    python.chmod(0o755)
    path = config(ApiServer(port=1), tmp_path / "kc", plugin(tmp_path, {"token": "first"}))
    monkeypatch.setattr("sys.executable", str(python))
    assert read(path).authorization == "Bearer first"
    names = {line.rpartition("|")[2].strip() for line in imported.read_text().splitlines()}
    assert "kubernetes.config" in names
    assert names & {"jsonschema", "kubernetes.client.api_client", "kubernetes.dynamic"} == set()


@pytest.mark.parametrize("user", [{}, {"token": "first"}, {"tokenFile": "token"}, {"client-certificate": "pki/me.crt"}])
def test_a_process_is_started_for_a_login_alone(
    user: dict[str, str], ca: ClusterCa, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "token").write_text("first")
    ca.issue("me", common_name="me")
    monkeypatch.setattr("sys.executable", str(tmp_path / "no python"))
    with pytest.raises(ConfigError, match="No such file or directory"):
        read(config(ApiServer(port=1), tmp_path / "kc", plugin(tmp_path, {"token": "first"})))
    assert read(config(ApiServer(port=1), tmp_path / "kc", user)).server == "http://127.0.0.1:1"


def test_a_token_of_an_oidc_issuer_that_expired_is_renewed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the package's client, which the process does not import before."""
    monkeypatch.setenv("OAUTHLIB_INSECURE_TRANSPORT", "1")
    with Issuer() as issuer:
        settings = {"client-id": "c", "client-secret": "s", "idp-issuer-url": issuer.url}
        provider = {"name": "oidc", "config": {"id-token": token(1), "refresh-token": "r"} | settings}
        path = config(ApiServer(port=1), tmp_path / "kc", {"auth-provider": provider})
        assert read(path).authorization == f"Bearer {token(LATE)}"


def test_without_kubeconfig_and_cluster_the_sentence_names_the_flag(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(ConfigError, match="pass --kubeconfig FILE"):
        load(None)


def test_a_pod_without_a_token_gets_a_sentence_about_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    monkeypatch.setattr("deviceplugin.kube.credentials.SERVICE_ACCOUNT", tmp_path)
    with pytest.raises(ConfigError, match=r"service account cannot be used: .*/token cannot be read: No such file"):
        load(None)
    (tmp_path / "token").write_text("\n")
    with pytest.raises(ConfigError, match=r"service account cannot be used: .*/token cannot be read: it is empty"):
        load(None)


def broken(change: Callable[[dict[str, Any]], object]) -> str:
    document: dict[str, Any] = {
        "apiVersion": "v1",
        "current-context": "c",
        "clusters": [{"name": "k", "cluster": {"server": "https://127.0.0.1:1"}}],
        "users": [{"name": "u", "user": {}}],
        "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
    }
    change(document)
    return yaml.safe_dump(document)


UNUSABLE = [
    "",
    "nonsense",
    "- a\n- b\n",
    "{",
    "\x00",
    "current-context: 5",
    broken(lambda d: d.pop("current-context")),
    broken(lambda d: d.update({"current-context": "other"})),
    broken(lambda d: d.pop("clusters")),
    broken(lambda d: d.update(clusters=None)),
    broken(lambda d: d.update(contexts="c")),
    broken(lambda d: d["clusters"][0].update(cluster={})),
    broken(lambda d: d["clusters"][0].update(cluster={"server": "ftp://x"})),
    broken(lambda d: d["clusters"][0]["cluster"].update({"certificate-authority": "/no/such/file"})),
    broken(lambda d: d["clusters"][0]["cluster"].update({"certificate-authority-data": "bm8gY2VydA=="})),
    broken(lambda d: d["clusters"][0]["cluster"].update({"proxy-url": "socks5://127.0.0.1:1"})),
    broken(lambda d: d["users"][0]["user"].update({"client-certificate-data": "!!!", "client-key-data": "!!!"})),
    broken(lambda d: d["users"][0]["user"].update({"tokenFile": "/no/such/file"})),
    broken(lambda d: d["users"][0]["user"].update({"token": "two\nlines"})),
]


def test_a_kubeconfig_that_cannot_be_used_is_one_sentence(tmp_path: Path) -> None:
    said = {text: sentence(tmp_path, text) for text in UNUSABLE}
    assert {text: each for text, each in said.items() if "\n" in each or not 0 < len(each) < 600} == {}


def sentence(tmp_path: Path, text: str) -> str:
    """Of the refusal; empty where there is none."""
    path = tmp_path / "kc"
    path.write_text(text)
    try:
        load(path)
    except ConfigError as refusal:
        return refusal.message
    return ""


def test_a_kubeconfig_that_cannot_be_read_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    for name in ("absent", "folder", "absent/below"):
        with pytest.raises(ConfigError, match=rf"{name} cannot be read: .*; check --kubeconfig"):
            load(tmp_path / name)


@given(st.binary(max_size=200))
@examples(50, suppress=[HealthCheck.function_scoped_fixture])
def test_any_bytes_are_a_config_error(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "kc"
    path.write_bytes(content)
    with pytest.raises(ConfigError):
        load(path)
