"""What kubectl honours in a kubeconfig is honoured, or refused with a sentence; nothing is ignored.

The forms are those of client-go: `clientcmd/api/v1/types.go`, its validation and its merging of several files.
"""

import base64
import json
import os
import ssl
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import web
from kubernetes import client
from kubernetes.client.rest import should_bypass_proxies
from kubernetes.config import kube_config

from deviceplugin.cli.connection import Connection
from deviceplugin.cli.scheduler_client import opened
from deviceplugin.errors import ConfigError
from deviceplugin.kube.credentials import Facts, read
from deviceplugin.kube.kubeconfig import Kubeconfigs, namespaces
from deviceplugin.kube.pods import pods_of_node
from sandbox.apiserver import ApiServer
from sandbox.cluster.certificates import ClusterCa
from tests.kube.kubeconfigs import ask, config, load, plugin, trusting

Json = dict[str, Any]
NOWHERE = ApiServer(port=1)


def _jwt(expires: int) -> str:
    parts = (b"{}", json.dumps({"exp": expires}).encode(), b"sig")
    return ".".join(base64.urlsafe_b64encode(part).decode().rstrip("=") for part in parts)


EXPIRED = _jwt(1)


@contextmanager
def issuer(ca: ClusterCa) -> Iterator[tuple[str, list[str]]]:
    """Of OIDC tokens, which has none; its URL, and the paths that were asked for."""
    asked: list[str] = []

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_error(404)

        def log_message(self, *_: object) -> None:
            """Nothing on standard error."""

    # requests, which the package asks with, is as strict as Python is.
    pair = ca.issue("issuer", common_name="issuer", names=("127.0.0.1",), names_its_issuer=True)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.certificate, pair.key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield f"https://127.0.0.1:{server.server_port}", asked
    server.shutdown()
    server.server_close()
    thread.join()


def facts(tmp_path: Path, user: Json, cluster: Json | None = None) -> Facts:
    return read(config(NOWHERE, tmp_path / "kc", user, cluster=cluster))


def refusal(tmp_path: Path, user: Json, cluster: Json | None = None) -> str:
    with pytest.raises(ConfigError) as refused:
        facts(tmp_path, user, cluster)
    return refused.value.message


IMPERSONATION = {
    "as": "alice",
    "as-uid": "u1",
    "as-groups": ["ml", "ops"],
    "as-user-extra": {"example.org/Team%": ["a b"], "scopes": ["view", "edit"]},
}


@pytest.fixture
async def heard() -> AsyncIterator[tuple[str, list[tuple[str, str]]]]:
    """The URL of a server, and the headers that reach it."""
    headers: list[tuple[str, str]] = []

    async def answer(request: web.Request) -> web.Response:
        headers.extend(request.headers.items())
        return web.json_response({"kind": "PodList", "items": [], "metadata": {"resourceVersion": "1"}})

    runner = web.ServerRunner(web.Server(answer))  # type: ignore[arg-type] # aiohttp's own type names BaseRequest
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}", headers
    await runner.cleanup()


async def test_requests_are_sent_in_the_name_that_the_kubeconfig_says(
    heard: tuple[str, list[tuple[str, str]]], tmp_path: Path
) -> None:
    url, headers = heard
    path = config(NOWHERE, tmp_path / "kc", {"token": "mine", **IMPERSONATION}, cluster={"server": url})
    await ask(path)
    assert ("Authorization", "Bearer mine") in headers
    expected = [
        ("Impersonate-User", "alice"),
        ("Impersonate-Uid", "u1"),
        ("Impersonate-Group", "ml"),
        ("Impersonate-Group", "ops"),
        ("Impersonate-Extra-example.org%2FTeam%25", "a b"),
        ("Impersonate-Extra-scopes", "view"),
        ("Impersonate-Extra-scopes", "edit"),
    ]
    assert [each for each in headers if each[0].startswith("Impersonate")] == expected
    headers.clear()
    async with opened(Connection(kubeconfig=str(path))) as client:
        assert client.api is not None
        assert (await client.api.list(pods_of_node("n"))).items == {}
    assert [each for each in headers if each[0].startswith("Impersonate")] == expected, "the commands' own requests too"


def test_impersonation_that_cannot_be_meant_is_refused(tmp_path: Path, subtests: pytest.Subtests) -> None:
    cases: list[tuple[Json, str]] = [
        ({"as-groups": ["ml"]}, "as-groups without `as`"),
        ({"as-uid": "u1"}, "as-uid without `as`"),
        ({"as-user-extra": {"scopes": ["a"]}}, "as-user-extra without `as`"),
        ({"as": "alice", "as-groups": "ml"}, "as-groups"),
        ({"as": "alice", "as-user-extra": {"scopes": "a"}}, "as-user-extra"),
        ({"as": "alice\nImpersonate-Group: system:masters"}, "no HTTP header"),
    ]
    for user, said in cases:
        with subtests.test(user=user):
            assert said in refusal(tmp_path, {"token": "t", **user})


def test_what_is_given_twice_counts_as_kubectl_counts_it(ca: ClusterCa, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("from-file\n")
    assert facts(tmp_path, {"token": "t", "tokenFile": "token"}).authorization == "Bearer from-file"
    https = {"server": "https://127.0.0.1:1", "certificate-authority": "/no/such/file", **trusting(ca)}
    assert facts(tmp_path, {}, https).ca == ca.certificate.read_bytes(), "the data"
    empty = {**https, "certificate-authority": str(ca.certificate), "certificate-authority-data": ""}
    assert facts(tmp_path, {}, empty).ca == ca.certificate.read_bytes(), "empty data says nothing"


def test_a_proxy_a_server_name_and_compression_are_as_the_cluster_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1,api.example.org")
    https = {"server": "https://api.example.org", "proxy-url": "http://p:3128", "tls-server-name": "kubernetes"}
    found = facts(tmp_path, {}, {**https, "disable-compression": True})
    assert (found.proxy, found.tls_server_name) == ("http://p:3128", "kubernetes"), "NO_PROXY is for the environment's"
    assert found.headers == (("Accept-Encoding", "identity"),)
    for proxy in ("p:3128", "ftp://p", "socks5://p:1080"):
        assert "use an HTTP proxy" in refusal(tmp_path, {}, {**https, "proxy-url": proxy})


def test_a_certificate_authority_that_would_not_count_is_refused(ca: ClusterCa, tmp_path: Path) -> None:
    https = {"server": "https://127.0.0.1:1", "insecure-skip-tls-verify": True}
    assert facts(tmp_path, {}, https).verify is False
    assert "insecure-skip-tls-verify and a certificate authority" in refusal(tmp_path, {}, {**https, **trusting(ca)})


def recording(tmp_path: Path, user: Json, status: Json) -> Json:
    """A plugin that writes down what it was given."""
    made = plugin(tmp_path, status)
    script = Path(made["exec"]["command"])
    script.write_text(
        f'#!/bin/sh\nenv >{tmp_path}/env\npwd >{tmp_path}/cwd\necho "$@" >{tmp_path}/args\ncat {tmp_path}/answer\n'
    )
    return {"exec": {**made["exec"], **user}}


def test_an_exec_plugin_gets_its_arguments_its_environment_and_the_cluster(ca: ClusterCa, tmp_path: Path) -> None:
    https = {"server": "https://127.0.0.1:1", "certificate-authority": "ca.crt", "tls-server-name": "k"}
    extension = {"name": "client.authentication.k8s.io/exec", "extension": {"audience": "x"}}
    (tmp_path / "ca.crt").write_bytes(ca.certificate.read_bytes())
    told = {
        "args": ["get", "--x"],
        "env": [{"name": "PROFILE", "value": "prod"}],
        "provideClusterInfo": True,
        "interactiveMode": "IfAvailable",
        "command": "./plugin",
    }
    user = recording(tmp_path, told, {"token": "first"})
    assert facts(tmp_path, user, {**https, "extensions": [extension]}).authorization == "Bearer first"
    env = dict(line.split("=", 1) for line in (tmp_path / "env").read_text().splitlines() if "=" in line)
    assert ((tmp_path / "args").read_text().strip(), env["PROFILE"]) == ("get --x", "prod")
    assert (tmp_path / "cwd").read_text().strip() == str(Path.cwd()), "as kubectl starts it"
    spec = json.loads(env["KUBERNETES_EXEC_INFO"])["spec"]
    assert spec["interactive"] is False
    assert base64.b64decode(spec["cluster"]["certificate-authority-data"]) == ca.certificate.read_bytes()
    assert (spec["cluster"]["tls-server-name"], spec["cluster"]["config"]) == ("k", {"audience": "x"})


def test_a_plugin_that_gives_nothing_is_named_with_its_own_words(
    tmp_path: Path, subtests: pytest.Subtests, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0)
    monkeypatch.setenv("PATH", f"{closed}:{os.environ['PATH']}")  # execvp says EACCES then, not ENOENT
    good = plugin(tmp_path, {"token": "first"})["exec"]
    (tmp_path / "fails").write_text("#!/bin/sh\necho 'session expired' >&2\nexit 3\n")
    (tmp_path / "fails").chmod(0o755)
    cases: list[tuple[Json, tuple[str, ...]]] = [
        ({"command": "./fails"}, ("fails of kubeconfig", "session expired")),
        ({"command": "no-such-plugin", "installHint": "brew install it"}, ("PATH has none", "brew install it")),
        ({"command": "./none", "installHint": ""}, ("no such program can be run; try it in a shell",)),
        ({"apiVersion": "client.authentication.k8s.io/v1beta1"}, ("does not match",)),
        ({"interactiveMode": "Always"}, ("interactiveMode: Always", "without a terminal")),
        ({"interactiveMode": "Sometimes"}, ("interactiveMode",)),
    ]
    for change, said in cases:
        with subtests.test(change=change):
            message = refusal(tmp_path, {"exec": {**good, **change}})
            assert [each for each in said if each not in message] == [], message


def test_credentials_of_other_kinds_are_refused_and_not_left_out(tmp_path: Path, subtests: pytest.Subtests) -> None:
    (tmp_path / "empty").write_text("")
    cases: list[tuple[Json, str]] = [
        ({"auth-provider": {"name": "azure", "config": {"access-token": "t"}}}, "auth-provider 'azure'"),
        ({"auth-provider": {"name": "oidc", "config": {"id-token": "no-jwt"}}}, "auth-provider"),
        ({"auth-provider": "oidc"}, "`auth-provider` is no mapping"),
        ({"auth-provider": {"name": "oidc", "config": "x"}}, "`auth-provider` is no mapping"),
        ({"username": "me"}, "username"),
        ({"tokenFile": "empty"}, "tokenFile"),
        ({"auth-provider": {"name": "oidc"}, **plugin(tmp_path, {"token": "t"})}, "exec and auth-provider"),
    ]
    for user, said in cases:
        with subtests.test(user=user):
            assert said in refusal(tmp_path, user)
    assert facts(tmp_path, {}).is_anonymous, "nothing was asked for"


def test_files_are_merged_as_kubectl_merges_them(ca: ClusterCa, tmp_path: Path) -> None:
    """What is named first counts, and each path is relative to the file that names it."""
    pair = ca.issue("me", common_name="me")
    one, two = tmp_path / "one", tmp_path / "two"
    for folder in (one, two):
        folder.mkdir()
    (one / "ca.crt").write_bytes(ca.certificate.read_bytes())
    (two / "me.crt").write_bytes(pair.certificate.read_bytes())
    (two / "me.key").write_bytes(pair.key.read_bytes())
    cluster = {"server": "https://127.0.0.1:1", "certificate-authority": "ca.crt"}
    (one / "kc").write_text(
        yaml.safe_dump(
            {
                "current-context": "c",
                "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u", "namespace": "team"}}],
                "clusters": [{"name": "k", "cluster": cluster}],
            }
        )
    )
    (two / "kc").write_text(
        json.dumps(
            {
                "current-context": "other",
                "clusters": [{"name": "k", "cluster": {"server": "https://wrong"}}],
                "users": [{"name": "u", "user": {"client-certificate": "me.crt", "client-key": "./me.key"}}],
            },
            indent="\t",
        )
    )
    found = read(Kubeconfigs((one / "kc", two / "kc")))
    assert (found.server, found.namespace) == ("https://127.0.0.1:1", "team")
    assert (found.certificate, found.key) == (pair.certificate.read_bytes(), pair.key.read_bytes())
    assert found.ca == ca.certificate.read_bytes()
    (two / "kc").write_text("{")
    with pytest.raises(ConfigError, match="two/kc cannot be used"):
        read(Kubeconfigs((one / "kc", two / "kc")))


def test_namespaces_are_those_of_contexts_of_the_same_cluster_the_chosen_first(tmp_path: Path) -> None:
    def context(name: str, cluster: str, namespace: str) -> dict[str, Any]:
        return {"name": name, "context": {"cluster": cluster, "user": "u", "namespace": namespace}}

    one, two = tmp_path / "one", tmp_path / "two"
    one.write_text(
        yaml.safe_dump({"current-context": "b", "contexts": [context("a", "k", "x"), context("b", "k", "y")]})
    )
    more = [context("c", "other", "z"), context("d", "k", ""), context("e", "k", "x"), context("b", "k", "hidden")]
    two.write_text(yaml.safe_dump({"contexts": [*more, context("f", "k", "last")]}))
    assert namespaces(Kubeconfigs((one, two))) == ("y", "x", "last")
    assert namespaces(Kubeconfigs((one, two), "c")) == ("z",)
    with pytest.raises(ConfigError, match="has no context 'g'; it has: a, b, c, d, e, f"):
        namespaces(Kubeconfigs((one, two), "g"))


def test_a_user_or_a_cluster_that_is_nowhere_is_named(tmp_path: Path) -> None:
    path = config(NOWHERE, tmp_path / "kc", {"token": "t"})
    whole = yaml.safe_load(path.read_text())
    for part, what in (("users", "user"), ("clusters", "cluster")):
        path.write_text(yaml.safe_dump({**whole, part: []}))
        with pytest.raises(ConfigError, match=f"has no {what} '.*', which its context names"):
            load(path)
        path.write_text(yaml.safe_dump({**whole, part: whole[part] * 2}))
        with pytest.raises(ConfigError, match=f"several {part} "):
            load(path)


def test_a_token_is_renewed_only_at_an_issuer_whose_certificate_is_known(ca: ClusterCa, tmp_path: Path) -> None:
    """The package would not look at the certificate, and would send the refresh token to whom it names."""
    settings = {"client-id": "c", "client-secret": "s", "id-token": EXPIRED, "refresh-token": "r"}
    with issuer(ca) as (url, asked):
        provider: Json = {"name": "oidc", "config": {**settings, "idp-issuer-url": url}}
        assert "CERTIFICATE_VERIFY_FAILED" in refusal(tmp_path, {"auth-provider": provider})
        assert asked == []
        provider["config"]["idp-certificate-authority"] = str(ca.certificate)
        assert facts(tmp_path, {"auth-provider": provider}).authorization == f"Bearer {EXPIRED}"
        assert asked == ["/.well-known/openid-configuration"]


def by_the_package(path: Path) -> tuple[str, str, bytes, bytes, bytes, bool, str | None]:
    """As the package of the Kubernetes project reads it, which is the counterpart of `read`."""
    configuration = client.Configuration()
    configuration.host = ""
    kube_config.load_kube_config(str(path), client_configuration=configuration, persist_config=False)
    files = (configuration.ssl_ca_cert, configuration.cert_file, configuration.key_file)
    ca, certificate, key = (Path(each).read_bytes() if each else b"" for each in files)
    header = str(configuration.get_api_key_with_prefix("BearerToken") or "")
    return configuration.host, header, ca, certificate, key, configuration.verify_ssl, configuration.tls_server_name


def test_what_is_read_here_is_what_the_package_reads(ca: ClusterCa, tmp_path: Path, subtests: pytest.Subtests) -> None:
    pair = ca.issue("me", common_name="me")
    (tmp_path / "token").write_text("from-file")
    inline = [base64.b64encode(each.read_bytes()).decode() for each in (pair.certificate, pair.key)]
    users: list[Json] = [
        {},
        {"token": "t"},
        {"tokenFile": str(tmp_path / "token")},
        {"username": "me", "password": "it's me:"},
        {"token": "t", "username": "me", "password": "p"},
        {"client-certificate": str(pair.certificate), "client-key": str(pair.key)},
        {"client-certificate-data": inline[0], "client-key-data": inline[1], "token": "t"},
    ]
    clusters: list[Json] = [
        {"server": "http://127.0.0.1:1/"},
        {"server": "https://127.0.0.1:1/prefix", **trusting(ca)},
        {"server": "https://127.0.0.1:1", "certificate-authority": str(ca.certificate), "tls-server-name": "k"},
        {"server": "https://127.0.0.1:1", "insecure-skip-tls-verify": True},
    ]
    for user, cluster in product(users, clusters):
        with subtests.test(user=user, cluster=cluster):
            path = config(NOWHERE, tmp_path / "kc", user, cluster=cluster)
            found = read(path)
            ours = (found.server, found.authorization, found.ca, found.certificate, found.key, found.verify)
            assert (*ours, found.tls_server_name) == by_the_package(path)


PROXIES = [
    ("https://api.example.org", "", "http://p:1"),
    ("https://api.example.org", "example.org", None),
    ("https://api.example.org", ".example.org", None),
    ("https://api.example.org", "other.org, api.example.org", None),
    ("https://api.example.org:6443", "api.example.org:6443", None),
    ("https://api.example.org:6443", "api.example.org:443", "http://p:1"),
    ("https://notexample.org", "example.org", "http://p:1"),
    ("https://10.2.3.4:6443", "10.0.0.0/8", None),
    ("https://10.2.3.4:6443", "192.168.0.0/16", "http://p:1"),
    ("https://[fd00::1]:6443", "fd00::/8", None),
    ("https://api.example.org", "*", None),
    ("http://api.example.org", "", None),
]


@pytest.mark.parametrize(("server", "no_proxy", "expected"), PROXIES)
def test_a_proxy_of_the_environment_is_used_but_where_no_proxy_says_otherwise(
    server: str, no_proxy: str, expected: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "all_proxy", "HTTP_PROXY", "ALL_PROXY", "https_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HTTPS_PROXY", "http://p:1")
    monkeypatch.setenv("NO_PROXY", no_proxy)
    assert facts(tmp_path, {}, {"server": server}).proxy == expected
    configuration = client.Configuration()
    configuration.host = server
    bypassed = should_bypass_proxies(server, configuration.no_proxy or "")
    assert (None if bypassed else configuration.proxy) == expected, "as the package"
