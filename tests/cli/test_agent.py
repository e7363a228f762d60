"""`vcuda agent` as a process: what it says at start, how it refuses, and how it waits and ends."""

import json
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from click.testing import CliRunner

from deviceplugin import __version__
from deviceplugin.cli import main

VCUDA = [sys.executable, "-m", "deviceplugin"]
KUBECONFIG = """
apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: "http://127.0.0.1:1"}}]
users: [{name: u, user: {token: t}}]
contexts: [{name: x, context: {cluster: c, user: u}}]
current-context: x
"""


def command(directory: Path, *flags: str) -> list[str]:
    """The agent, with everything that it would touch below the directory and no driver."""
    (directory / "kubeconfig").write_text(KUBECONFIG)
    (directory / "device-plugins").mkdir(exist_ok=True)
    own = {
        "kubeconfig": "kubeconfig",
        "driver-root": "no-such-driver",
        "checkpoint-path": "checkpoint",
        "virtual-manager-path": "vm",
        "driver-mirror-path": "vdriver",
        "device-plugin-path": "device-plugins",
        "kubelet-root": ".",
        "display-socket": "d.sock",
    }
    paths = [f"--{flag}={directory / name}" for flag, name in own.items()]
    return [*VCUDA, "agent", "--hostname-override=gpu-7", "--query-addr=127.0.0.1", "--query-port=0", *paths, *flags]


def ended(directory: Path, *flags: str) -> tuple[int, list[str]]:
    result = subprocess.run(command(directory, *flags), capture_output=True, text=True, timeout=50, check=False)
    assert result.stdout == ""
    return result.returncode, result.stderr.splitlines()


def test_it_logs_what_was_set_and_says_in_one_line_that_there_is_no_driver(short_tmp: Path) -> None:
    """`--version=false` of gpu-manager starts it; flags that do nothing are named."""
    status, lines = ended(short_tmp, "--standalone", "--share-mode", "--version=false")
    assert status == 1
    retired, settings = (json.loads(line) for line in lines[:2])
    assert retired["error"].startswith("--standalone has no effect: ")
    assert settings["msg"] == "effective_settings"
    assert settings["set"]["shareMode"] == "true (--share-mode)"
    assert settings["set"]["hostnameOverride"] == "gpu-7 (--hostname-override)"
    (sentence,) = [line for line in lines if not line.startswith("{")]
    assert sentence.startswith("vcuda: ")
    assert "no-such-driver" in sentence
    assert not any("traceback" in line.lower() for line in lines)


def test_it_tells_its_version_as_gpu_manager_does() -> None:
    flags = ("--version", "--version=true", "--version=raw")
    said = {flag: CliRunner().invoke(main, ["agent", flag, "--share_mode=true"]) for flag in flags}
    assert {flag: (each.exit_code, each.output) for flag, each in said.items()} == dict.fromkeys(
        flags, (0, f"{__version__}\n")
    )


def test_a_port_that_is_taken_ends_it_with_the_sentence(short_tmp: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        status, lines = ended(short_tmp, f"--query-port={port}")
    assert status == 1
    sentence = f"vcuda: --query-port: port {port} on 127.0.0.1 is in use; stop what listens there or give another port"
    assert [line for line in lines if not line.startswith("{")] == [sentence]


@contextmanager
def running(directory: Path, *flags: str) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """The process, and where its views are once it says so."""
    log = directory / "log"
    with log.open("wb") as file, subprocess.Popen(command(directory, *flags), stderr=file) as process:
        try:
            yield process, f"http://127.0.0.1:{_port(process, log)}"
        finally:
            process.kill()


def _port(process: subprocess.Popen[bytes], log: Path) -> int:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline and process.poll() is None:
        for line in log.read_text().splitlines():
            if '"http_listening"' in line:
                return int(json.loads(line)["port"])
        time.sleep(0.05)
    raise AssertionError(log.read_text())


def get(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_it_waits_for_a_driver_says_so_and_ends_in_order_when_asked(short_tmp: Path) -> None:
    with running(short_tmp, "--wait-for-driver") as (process, url):
        assert get(f"{url}/healthz") == (200, "ok\n")
        status, why = get(f"{url}/readyz")
        assert status == 503
        assert why.startswith("waiting for the NVIDIA driver; not registered with kubelet")
        assert get(f"{url}/graph") == (200, "gpu-7: the driver has not answered yet\n")
        assert "vcuda_kubelet_registered 0.0" in get(f"{url}/metrics")[1]
        assert (short_tmp / "d.sock").is_socket()

        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == 0
    assert not (short_tmp / "d.sock").exists()
    assert not list((short_tmp / "device-plugins").glob("*.sock"))
