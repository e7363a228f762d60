"""The pods' network: one bridge of our own, no routes, no firewall rules.

In: the cluster's layout. Out: the bridge, its address (the node's InternalIP, on which kubelet listens) and the CNI
configuration. Not here: a way out: pods reach each other and the node, nothing else.
Invariant: nothing outside the bridge is changed (no forwarding, no iptables): with the bridge all of it goes.
"""

import ipaddress
import json
from dataclasses import dataclass
from pathlib import Path

from sandbox.cluster.layout import Layout
from sandbox.cluster.processes import run
from sandbox.cluster.waiting import HarnessError

API_ADDRESS = "10.96.0.1"  # of Service kubernetes; leads somewhere while `service_address` serves it
CANDIDATES = ipaddress.IPv4Network("10.224.0.0/11")
PREFIX_LENGTH = 22  # a few hundred pods, some still Terminating, each with an address


@dataclass(frozen=True, slots=True)
class PodNetwork:
    """A bridge and the subnet behind it."""

    bridge: str
    subnet: ipaddress.IPv4Network

    @property
    def node_address(self) -> str:
        return str(self.subnet[1])


def create_network(layout: Layout) -> PodNetwork:
    network = PodNetwork(layout.bridge, _free_subnet())
    # An address of its own: otherwise it takes the lowest of its ports', which changes as pods come, and the pods that
    # know the old one lose the node until their ARP entries are stale.
    hardware = f"02:76:63:{layout.identifier[:2]}:{layout.identifier[2:4]}:{layout.identifier[4:6]}"
    command = ["ip", "link", "add", network.bridge, "address", hardware, "type", "bridge"]
    run(command, doing="creating the pods' bridge")
    address = f"{network.node_address}/{PREFIX_LENGTH}"
    run(["ip", "address", "add", address, "dev", network.bridge], doing="giving the bridge its address")
    run(["ip", "link", "set", network.bridge, "up"], doing="bringing the bridge up")
    _write_cni(layout.cni, network)
    return network


def destroy_network(layout: Layout) -> None:
    if Path(f"/sys/class/net/{layout.bridge}").exists():
        run(["ip", "link", "delete", layout.bridge], doing="removing the pods' bridge")


def _free_subnet() -> ipaddress.IPv4Network:
    routes = json.loads(run(["ip", "-json", "-4", "route", "show", "table", "all"], doing="reading the routes"))
    taken = [ipaddress.IPv4Network(route["dst"]) for route in routes if route["dst"] != "default"]
    for subnet in CANDIDATES.subnets(new_prefix=PREFIX_LENGTH):
        if not any(subnet.overlaps(other) for other in taken):
            return subnet
    raise HarnessError(f"Every subnet of {CANDIDATES} is routed somewhere already: no address is left for pods.")


def _write_cni(folder: Path, network: PodNetwork) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    addresses = {
        "type": "host-local",
        "dataDir": str(folder / "addresses"),
        "ranges": [[{"subnet": str(network.subnet), "rangeStart": str(network.subnet[16])}]],
        "routes": [{"dst": f"{API_ADDRESS}/32", "gw": network.node_address}],
    }
    bridge = {"type": "bridge", "bridge": network.bridge, "isGateway": False, "ipMasq": False, "ipam": addresses}
    document = {"cniVersion": "0.4.0", "name": "e2e", "plugins": [bridge, {"type": "loopback"}]}
    (folder / "10-e2e.conflist").write_text(json.dumps(document, indent=2))
