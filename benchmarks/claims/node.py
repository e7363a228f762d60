"""Three drivers side by side: the agent with `--dra`, a bare DRA driver, and the agent as a device plugin.

In: a directory, a kubeconfig. Out: all three, registered and ready, each with a stand-in of kubelet. The API server and
the drivers are processes of their own; the kubelets and the container runtime are in the calling one, which times them.
"""

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.agent import DEADLINE_S, NAMES, REPOSITORY, kubelet_of, running_agent
from benchmarks.command import BenchmarkError
from sandbox.agent import AgentProcess
from sandbox.claims import DRIVER, ClaimKubelet, DriverConnection
from sandbox.kubelet import Kubelet, KubeletOptions
from sandbox.runtime import StandInRuntime

OWN_NODE, PLUGIN_NODE, BARE_NODE = "node-1", "node-2", "node-3"
BARE_DRIVER = "bare.example.org"
_LOOK_S = 0.02


@dataclass(frozen=True, slots=True)
class ClaimDriver:
    """A DRA driver as kubelet has it; `pool` is its node."""

    name: str
    pool: str
    kubelet: ClaimKubelet
    connection: DriverConnection


@dataclass(frozen=True, slots=True)
class RunningAgent:
    """An agent, its kubelet, and the seconds from its start until it was ready."""

    process: AgentProcess
    kubelet: Kubelet
    ready_s: float


@dataclass(frozen=True, slots=True)
class Nodes:
    """`own` is served by `with_claims`."""

    with_claims: RunningAgent
    own: ClaimDriver
    bare: ClaimDriver
    plugin: RunningAgent


@contextlib.asynccontextmanager
async def running_nodes(base: Path, kubeconfig: Path) -> AsyncIterator[Nodes]:
    async with contextlib.AsyncExitStack() as stack:
        plugin = await stack.enter_async_context(_agent(PLUGIN_NODE, base / "p", kubeconfig))
        await plugin.kubelet.wait_registered(NAMES.core, NAMES.memory, deadline_s=DEADLINE_S)
        with_claims = await stack.enter_async_context(_agent(OWN_NODE, base / "c", kubeconfig, DRIVER))
        bare = await stack.enter_async_context(_bare(base / "b", kubeconfig))
        yield Nodes(with_claims, _driver(with_claims.kubelet, DRIVER, OWN_NODE), bare, plugin)


def _driver(kubelet: Kubelet, name: str, pool: str) -> ClaimDriver:
    claims = ClaimKubelet(kubelet, name)
    return ClaimDriver(name, pool, claims, claims.connection)


@contextlib.asynccontextmanager
async def _agent(node: str, home: Path, kubeconfig: Path, driver: str = "") -> AsyncIterator[RunningAgent]:
    flags = {"dra": "true", "cdi-dir": home / "cdi"} if driver else {}

    async def registered(agent: AgentProcess) -> None:
        async def taken() -> bool:
            return not driver or bool(kubelet.drivers.connected(driver))

        await agent.until(taken, what="kubelet has taken the driver", deadline_s=DEADLINE_S)

    home.mkdir()
    async with (
        StandInRuntime(home / "cri.sock"),
        kubelet_of(node, home / "kubelet", kubeconfig) as kubelet,
        running_agent(home, kubelet, kubeconfig, flags=flags, registered=registered) as (agent, ready_s),
    ):
        yield RunningAgent(agent, kubelet, ready_s)


@contextlib.asynccontextmanager
async def _bare(home: Path, kubeconfig: Path) -> AsyncIterator[ClaimDriver]:
    root = home / "kubelet"
    command = [sys.executable, "-m", "benchmarks.bare_dra", BARE_DRIVER, str(root), str(home / "cdi"), str(kubeconfig)]
    async with Kubelet(KubeletOptions(root=root, node_name=BARE_NODE)) as kubelet:
        process = await asyncio.create_subprocess_exec(*command, cwd=REPOSITORY)
        try:
            while not kubelet.drivers.connected(BARE_DRIVER):
                if process.returncode is not None:
                    raise BenchmarkError("the bare DRA driver has ended; its process says why above")
                await asyncio.sleep(_LOOK_S)
            yield _driver(kubelet, BARE_DRIVER, BARE_NODE)
        finally:
            process.terminate()
            await process.wait()
