"""The commands of operators need nothing that only Linux has: many operators sit at a Mac."""

import asyncio
import json
import os
import ssl
import subprocess
import sys
from pathlib import Path

import yaml

from benchmarks.traces import example
from deviceplugin.kube.kubeconfig import Kubeconfigs, choose
from deviceplugin.model.cluster_view import ClusterEventKind
from sandbox.apiserver import ApiServer
from sandbox.cluster.certificates import ClusterCa
from tests.cli.command_runner import kubeconfig
from tests.cli.test_narrow import WORKLOAD
from tests.cli.view_server import Cluster, event, node, pod, serving
from tests.kube.kubeconfigs import config, plugin

REPOSITORY = Path(example.__file__).parents[2]
COMMANDS = (
    ("--help",),
    ("nodes",),
    ("node", "node-a"),
    ("pods", "-A"),
    ("events",),
    ("top", "--once"),
    ("top", "pods", "-A", "--once"),
    ("version",),
    ("completion", "bash"),
    ("ui", "--help"),
    ("place", "--topology", "emulator/profiles/hgx-a100.json", "--cores", "200"),
    ("simulate", *WORKLOAD),
)


async def started(
    *words: str, program: str = "deviceplugin.cli:main", given: bytes = b"", **environment: str
) -> tuple[int, str, str]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.cli.without_linux", program, *words),
        cwd=REPOSITORY,
        env={**os.environ, **environment},
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, errors = await process.communicate(given)
    assert process.returncode is not None
    return process.returncode, out.decode(), errors.decode()


async def test_a_command_needs_nothing_that_only_linux_has(tmp_path: Path) -> None:
    """In one process, because each costs half a second; nothing that was imported brings back what is missing."""
    cluster = Cluster([node("node-a")], [pod("llm")], [event("llm", ClusterEventKind.PLACED)])
    async with serving(cluster) as url:
        path = kubeconfig(tmp_path / "kubeconfig", url, namespace="research")
        program = "tests.cli.without_linux:each"
        status, out, errors = await started(json.dumps(COMMANDS), program=program, KUBECONFIG=str(path))
    assert (status, errors) == (0, "")
    found = dict(zip(COMMANDS, json.loads(out), strict=True))
    assert {words: answer for words, answer in found.items() if answer[0] or answer[2] or not answer[1]} == {}


async def test_doctor_and_bundle_report_as_on_linux(tmp_path: Path) -> None:
    nothing = {"/api/v1/namespaces/kube-system/pods": (200, '{"items": []}')}
    async with serving(Cluster([node("node-a")], answers=nothing)) as url:
        path = kubeconfig(tmp_path / "kubeconfig", url)
        status, out, errors = await started("doctor", KUBECONFIG=str(path))
        assert (status, errors) == (1, "")
        assert "failed" in out
        status, out, errors = await started("bundle", "--file", str(tmp_path / "b.tar.gz"), KUBECONFIG=str(path))
        assert (status, (tmp_path / "b.tar.gz").exists()) == (0, True), errors


async def test_the_process_for_an_exec_plugin_needs_nothing_either(tmp_path: Path) -> None:
    server = ApiServer(port=1)
    chosen = choose(Kubeconfigs((config(server, tmp_path / "kc", plugin(tmp_path, {"token": "first"})),)))
    document = json.dumps(chosen.document()).encode()
    status, out, errors = await started(program="deviceplugin.kube.login:main", given=document)
    assert (status, errors) == (0, "")
    assert '"authorization":"Bearer first"' in out


async def test_a_client_certificate_is_shown_and_its_key_is_on_no_disk_afterwards(tmp_path: Path) -> None:
    ca, folder = ClusterCa(tmp_path / "pki"), tmp_path / "temporary"
    folder.mkdir()
    serves = ca.issue("serving", common_name="api", names=["127.0.0.1"])
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_verify_locations(ca.certificate)
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_cert_chain(serves.certificate, serves.key)
    mine = ca.issue("ann", common_name="ann")
    async with serving(Cluster([node("node-a")]), tls=context) as url:
        path = kubeconfig(tmp_path / "kubeconfig", url)
        document = yaml.safe_load(path.read_text())
        document["clusters"][0]["cluster"]["certificate-authority"] = str(ca.certificate)
        document["users"][0]["user"] = {"client-certificate": str(mine.certificate), "client-key": str(mine.key)}
        path.write_text(yaml.safe_dump(document))
        status, out, errors = await started("nodes", KUBECONFIG=str(path), TMPDIR=str(folder))
    assert (status, errors) == (0, "")
    assert "node-a" in out
    assert list(folder.iterdir()) == []


def test_the_file_of_a_key_is_for_this_user_only(tmp_path: Path) -> None:
    """Whatever the umask is; OpenSSL opens it, so the test looks while it is there."""
    script = (
        "import os; del os.memfd_create; os.umask(0)\n"
        "from deviceplugin.kube import credentials\n"
        "with credentials.file_of(b'secret') as path:\n"
        "    print(path.read_bytes(), oct(path.stat().st_mode & 0o777), oct(path.parent.stat().st_mode & 0o777))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "b'secret' 0o600 0o700\n"
    assert list(tmp_path.iterdir()) == []
