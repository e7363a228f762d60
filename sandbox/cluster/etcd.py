"""etcd, the API server's store.

In: the layout. Out: a running etcd and its URL. Not here: durability: the data are thrown away, so fsync is off.
"""

from dataclasses import dataclass
from pathlib import Path
from shutil import which

import urllib3

from sandbox.cluster.cgroups import ClusterCgroup
from sandbox.cluster.layout import Layout
from sandbox.cluster.processes import SEARCH_PATH, Process, free_ports
from sandbox.cluster.waiting import wait_until


@dataclass(frozen=True, slots=True)
class Etcd:
    """One etcd on loopback."""

    process: Process
    url: str

    def start(self) -> None:
        self.process.start()
        wait_until(self._healthy, "etcd is healthy", evidence=self.process.log_tail)

    def _healthy(self) -> bool:
        self.process.require_running()
        try:
            return urllib3.request("GET", f"{self.url}/health", timeout=2, retries=False).status == 200
        except urllib3.exceptions.HTTPError:
            return False


def make_etcd(layout: Layout, cgroup: ClusterCgroup) -> Etcd:
    client, peer = (f"http://127.0.0.1:{port}" for port in free_ports(2))
    command = [
        which("etcd", path=SEARCH_PATH) or "etcd",
        f"--data-dir={_private(layout.etcd)}",
        "--name=e2e",
        "--unsafe-no-fsync",
        f"--listen-client-urls={client}",
        f"--advertise-client-urls={client}",
        f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster=e2e={peer}",
    ]
    return Etcd(Process("etcd", cgroup.joining(command), layout.logs / "etcd.log"), client)


def _private(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    return folder
