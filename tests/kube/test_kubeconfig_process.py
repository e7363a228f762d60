"""What a kubeconfig or a service account says, and one sentence where it says nothing that can be used."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from deviceplugin.errors import ConfigError
from deviceplugin.kube.kubeconfig_process import read, read_apart
from sandbox.apiserver import ApiServer
from sandbox.cluster.certificates import ClusterCa
from tests.examples import examples
from tests.kube.kubeconfigs import config, load, plugin, trusting


def test_the_process_that_reads_says_what_reading_in_place_says(ca: ClusterCa, tmp_path: Path) -> None:
    pair = ca.issue("agent", common_name="agent")
    status = {"clientCertificateData": pair.certificate.read_text(), "clientKeyData": pair.key.read_text()}
    for user in (plugin(tmp_path, status), {"token": "first"}, {"client-certificate": "pki/agent.crt"}, {}):
        path = config(ApiServer(port=1), tmp_path / "kc", user, cluster=trusting(ca))
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
    with pytest.raises(ConfigError, match=r"kubeconfig kc could not be read: .* printed: no such module"):
        read_apart(Path("kc"))
    python.unlink()
    with pytest.raises(ConfigError, match=r"kubeconfig kc cannot be read: No such file or directory"):
        read_apart(Path("kc"))


def test_the_process_does_not_import_what_it_does_not_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    imported, python = tmp_path / "imported", tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -X importtime "$@" 2>{imported}\n')
    python.chmod(0o755)
    path = config(ApiServer(port=1), tmp_path / "kc", {"token": "first"})
    monkeypatch.setattr("sys.executable", str(python))
    assert read_apart(path).authorization == "Bearer first"
    names = {line.rpartition("|")[2].strip() for line in imported.read_text().splitlines()}
    assert "kubernetes.config" in names
    assert "jsonschema" not in names


def test_without_kubeconfig_and_cluster_the_sentence_names_the_flag(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(ConfigError, match="pass --kubeconfig FILE"):
        load(None)


def test_a_pod_without_a_token_gets_a_sentence_about_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    monkeypatch.setattr("kubernetes.config.incluster_config.SERVICE_TOKEN_FILENAME", str(tmp_path / "absent"))
    with pytest.raises(ConfigError, match="service account cannot be used"):
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


@pytest.mark.parametrize(
    "text",
    [
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
@examples(50, suppress=[HealthCheck.function_scoped_fixture])
def test_any_bytes_are_a_config_error(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "kc"
    path.write_bytes(content)
    with pytest.raises(ConfigError):
        load(path)
