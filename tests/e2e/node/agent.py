"""`vcuda agent` as a process on the test node.

In: the cluster, emulated GPUs, an identity. Out: an agent that can be killed and started again on the same journal.
Not here: what it is tested for.
Invariant: its permissions are those of the shipped manifest (daemonset/base/clusterrole.yaml), nothing more.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import urllib3
import yaml
from prometheus_client.parser import text_string_to_metric_families

from sandbox.cluster.agent import GRANTS, agent_process
from sandbox.cluster.client import JsonObject
from sandbox.cluster.cluster import Cluster
from sandbox.cluster.identities import Identity
from sandbox.cluster.processes import Process
from sandbox.cluster.waiting import wait_until
from sandbox.emulated_gpus import REPOSITORY, EmulatedGpus
from tests.e2e.node.usage import Usage, parse_usage

ALLOCATION_CHECK_S = 1
SHIPPED_ROLE = REPOSITORY / "daemonset" / "base" / "clusterrole.yaml"


@dataclass(frozen=True, slots=True)
class Agent:
    """The agent's process, its views and its folders."""

    process: Process
    url: str
    gpus: EmulatedGpus
    identity: Identity
    grants: Path

    def start(self) -> None:
        self.process.start()
        wait_until(self._ready, "the agent is ready", evidence=self.process.log_tail)

    def usage(self) -> Usage:
        return parse_usage(self._get("/usage"))

    def grant_folders(self) -> list[str]:
        """The folders of grants on disk; before the first grant their parent need not exist."""
        return sorted(path.name for path in self.grants.glob("g-*"))

    def metric(self, name: str, **labels: str) -> float | None:
        """One sample; None where there is none with these labels."""
        for family in text_string_to_metric_families(self._get("/metrics")):
            for sample in family.samples:
                if sample.name == name and labels.items() <= sample.labels.items():
                    return sample.value
        return None

    def log(self) -> str:
        return self.process.log.read_text()

    def _get(self, path: str) -> str:
        reply = urllib3.request("GET", self.url + path, timeout=30, retries=False)
        if reply.status != 200:
            raise AssertionError(f"GET {path}: {reply.status} {reply.data.decode(errors='replace')[:500]}")
        return reply.data.decode()

    def _ready(self) -> bool:
        self.process.require_running()
        try:
            return urllib3.request("GET", f"{self.url}/readyz", timeout=30, retries=False).status == 200
        except urllib3.exceptions.HTTPError:
            return False


def shipped_rules(*, without: Sequence[str] = ()) -> list[JsonObject]:
    """The rules of the shipped manifest, without those for the named resources."""
    role, _ = yaml.safe_load_all(SHIPPED_ROLE.read_text())
    rules: list[JsonObject] = role["rules"]
    return [rule for rule in rules if not set(rule["resources"]) & set(without)]


def make_agent(cluster: Cluster, folder: Path, gpus: EmulatedGpus, identity: Identity, *flags: str) -> Agent:
    """`folder` is the agent's own."""
    often = f"--allocation-check-period={ALLOCATION_CHECK_S}s"
    process, url = agent_process(cluster, folder, gpus, identity, often, *flags)
    return Agent(process, url, gpus, identity, folder / GRANTS)
