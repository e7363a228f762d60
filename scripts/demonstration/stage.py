"""What runs during the demo: stand-in API server, stand-in kubelet, and the real agent on the emulated driver.

In: nothing. Out: a `Stage`, everything in one temporary directory, nothing left of it afterwards. Works for any user:
the device nodes are plain files, because nobody opens them here.
"""

import os
import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from scripts.demonstration.agent import Agent, AgentCommand, free_port
from scripts.demonstration.failure import DemoError
from tests.fakes.apiserver import ApiServer
from tests.fakes.kubelet import Kubelet, KubeletOptions
from tests.fakes.kubelet.apiclient import ApiAddress
from tests.fakes.kubelet.apisource import ApiSource

ROOT = Path(__file__).resolve().parents[2]
NODE = "gpu-node"
GPUS = 8
PROFILE = ROOT / "library/emulator/profiles/hgx-a100.json"
DRIVER = ROOT / "library/build/emulator"
TOKEN = "demo-token"
KUBELET_SPEED = 20.0
LONGEST_ROOT = 40  # leaves room for the sockets below it


@dataclass(frozen=True, slots=True)
class Stage:
    """The three programs; `home` holds all their files."""

    server: ApiServer
    kubelet: Kubelet
    agent: Agent
    home: Path


@asynccontextmanager
async def set_up(*, keep: bool) -> AsyncIterator[Stage]:
    """Everything but the agent is running; the agent is the play's to start."""
    home = _home()
    try:
        async with ApiServer(token=TOKEN) as server:
            options = KubeletOptions(root=home / "kubelet", node_name=NODE, speed=KUBELET_SPEED, token=TOKEN)
            source = ApiSource(options, ApiAddress(server.url, TOKEN))
            async with Kubelet(options, source) as kubelet:
                agent = Agent(_command(home, server, kubelet))
                try:
                    yield Stage(server, kubelet, agent, home)
                finally:
                    await agent.destroy()
    finally:
        if not keep:
            shutil.rmtree(home, ignore_errors=True)


def _home() -> Path:
    """A short path: a unix socket's has 107 bytes at most."""
    if not PROFILE.is_file() or not (DRIVER / "libnvidia-ml.so.1").exists():
        raise DemoError("the emulated driver is not built; run scripts/setup")
    base = tempfile.gettempdir()
    return Path(tempfile.mkdtemp(prefix="vcuda-demo-", dir=base if len(base) < LONGEST_ROOT else "/tmp"))


def _command(home: Path, server: ApiServer, kubelet: Kubelet) -> AgentCommand:
    devices = home / "host" / "dev"
    devices.mkdir(parents=True)
    for name in ("nvidiactl", "nvidia-uvm", *(f"nvidia{number}" for number in range(GPUS))):
        (devices / name).touch()
    port = free_port()
    flags = {
        "--device-plugin-path": kubelet.options.plugin_dir,
        "--checkpoint-path": home / "journal",
        "--virtual-manager-path": home / "vm",
        "--driver-mirror-path": home / "vdriver",
        "--device-root": home / "host",
        "--display-socket": home / "display.sock",
        "--kubeconfig": server.kubeconfig(home / "kubeconfig"),
        "--kubelet-pods-endpoint": kubelet.pods_url,
        "--hostname-override": NODE,
        "--share-mode": "true",
        "--query-addr": "127.0.0.1",
        "--query-port": port,
        "--log-format": "json",
    }
    program = ROOT / ".venv/bin/vcuda"
    arguments = (str(program), "agent", *(f"{flag}={value}" for flag, value in flags.items()))
    return AgentCommand(arguments, _environment(home), home / "agent.log", port)


def _environment(home: Path) -> dict[str, str]:
    """Nothing of the caller's settings, so that the demo is the same everywhere."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG", "TMPDIR") if name in os.environ}
    return kept | {
        "LD_LIBRARY_PATH": str(DRIVER),
        "VCUDA_EMULATOR_PROFILE": str(PROFILE),
        "VCUDA_EMULATOR_STATE": str(home / "emulator"),
    }
