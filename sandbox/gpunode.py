"""A GPU node in one directory: the real agent on the emulated driver, between a stand-in kubelet and API server.

In: a directory, a profile, flags of the agent and options of kubelet that are to differ. Out: a `GpuNode` on which
everything runs but the agent, which the caller starts. Works for any user: the device nodes are plain files, because
nothing opens them here. Invariant: at its end nothing runs; the directory belongs to the caller.
"""

import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deviceplugin.model.units import DEFAULT_DOMAIN, Resource, ResourceNames
from sandbox.agent import AgentCommand, AgentFailureError, AgentProcess, free_port
from sandbox.apiserver import ApiServer
from sandbox.driver_root import make_interposers
from sandbox.emulated_gpus import PROFILES, EmulatedGpus
from sandbox.kubelet import Kubelet, KubeletOptions
from sandbox.kubelet.apisource import ApiAddress, ApiSource
from sandbox.program import clean_environment

EIGHT_GPUS = PROFILES / "hgx-a100.json"
TOKEN = "stand-in-token"
PROGRAM = Path(sys.executable).with_name("vcuda")
Flags = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class GpuNode:
    """The programs of one node; `home` holds all their files."""

    server: ApiServer
    kubelet: Kubelet
    agent: AgentProcess
    gpus: EmulatedGpus
    names: ResourceNames
    home: Path

    async def start_agent(self, *more: str, deadline_s: float = 120.0) -> None:
        """Until kubelet offers its devices; `more` are flags for this life of the agent only."""
        await self.agent.start(*more)
        await self.agent.wait_ready(deadline_s=deadline_s)
        names = (self.names.of(resource) for resource in Resource)
        try:
            await self.kubelet.wait_registered(*names, deadline_s=deadline_s)
        except TimeoutError as error:
            raise AgentFailureError(f"{error}; {self.agent.last_words()}") from error

    @property
    def grants(self) -> Path:
        return self.home / "vm"

    @property
    def journal(self) -> Path:
        return self.home / "journal" / "ledger.journal"


@asynccontextmanager
async def gpu_node(
    home: Path,
    *,
    profile: Path = EIGHT_GPUS,
    library: Path | None = None,
    flags: Flags | None = None,
    fed_by_server: bool = True,
    cluster: ApiServer | None = None,
    **options: Any,
) -> AsyncIterator[GpuNode]:
    """`fed_by_server`: kubelet follows the API server; otherwise only what is submitted to it reaches it.

    `cluster`: the API server of several nodes, the caller's; otherwise this node has one of its own.
    `library` is where the interposers are built; without it stand-ins are mirrored, with which no program can run.
    """
    gpus = EmulatedGpus(profile, home / "emulator")
    given = flags or {}
    names = ResourceNames(str(given.get("resource-domain", DEFAULT_DOMAIN)))
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(ApiServer(token=TOKEN)) if cluster is None else cluster
        made = KubeletOptions(root=home / "kubelet", token=TOKEN, **options)
        source = ApiSource(made, ApiAddress(server.url, server.token)) if fed_by_server else None
        kubelet = await stack.enter_async_context(Kubelet(made, source))
        kubeconfig = server.kubeconfig(home / "kubeconfig")
        agent = AgentProcess(agent_command(home, kubelet, gpus, kubeconfig=kubeconfig, library=library, flags=given))
        stack.push_async_callback(agent.destroy)
        yield GpuNode(server, kubelet, agent, gpus, names, home)


def agent_command(
    home: Path,
    kubelet: Kubelet,
    gpus: EmulatedGpus,
    *,
    kubeconfig: Path,
    library: Path | None = None,
    flags: Flags | None = None,
) -> AgentCommand:
    """All paths are below `home`; `flags` override the defaults here."""
    _make_device_nodes(home / "host" / "dev", gpus)
    driver = gpus.install(home / "host")
    port = free_port()
    own: Flags = {
        "device-plugin-path": kubelet.options.plugin_dir,
        "kubelet-root": kubelet.options.root,
        "checkpoint-path": home / "journal",
        "virtual-manager-path": home / "vm",
        "driver-mirror-path": home / "vdriver",
        "driver-root": driver.path,
        "driver-version-file": driver.version_file,
        "library-path": library or make_interposers(home / "library"),
        "device-root": home / "host",
        "display-socket": home / "display.sock",
        "container-runtime-endpoint": home / "cri.sock",
        "kubeconfig": kubeconfig,
        "kubelet-pods-endpoint": kubelet.pods_url,
        "hostname-override": kubelet.options.node_name,
        "share-mode": "true",
        "query-addr": "127.0.0.1",
        "query-port": port,
    }
    arguments = (f"--{flag}={value}" for flag, value in {**own, **(flags or {})}.items())
    return AgentCommand(
        (str(PROGRAM), "agent", *arguments), clean_environment(gpus.environment), home / "agent.log", port
    )


def _make_device_nodes(directory: Path, gpus: EmulatedGpus) -> None:
    directory.mkdir(parents=True)
    for name in ("nvidiactl", "nvidia-uvm", *(f"nvidia{minor}" for minor in gpus.minors())):
        (directory / name).touch()
