"""The stand-in as a program: a node of an API server until SIGTERM or SIGINT; says where it is in one line on stdout.

A process of its own has no container runtime that outlives it: after a real SIGKILL and a new start, all containers
count as gone, as after a reboot of the machine.
"""

import argparse
import asyncio
import signal
from pathlib import Path
from typing import get_args

import yaml

from sandbox.kubelet.apisource import ApiAddress, ApiSource, from_kubeconfig
from sandbox.kubelet.kubelet import Kubelet
from sandbox.kubelet.options import KubeletOptions, PodResourcesForm


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m sandbox.kubelet", description=__doc__)
    parser.add_argument("--root", type=Path, required=True, help="kubelet's directory; keep it short")
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--api", metavar="URL", help="an API server without authentication")
    where.add_argument("--kubeconfig", type=Path, metavar="FILE")
    parser.add_argument("--node", required=True, metavar="NAME")
    parser.add_argument("--seed", type=int, default=0, help="of everything that is random (default: %(default)s)")
    parser.add_argument("--speed", type=float, default=1.0, help="of kubelet's clock (default: %(default)s)")
    parser.add_argument("--pods-port", type=int, default=0, metavar="PORT", help="of GET /pods; 0 chooses a free one")
    parser.add_argument("--pods-http", action="store_true", help="GET /pods without TLS")
    parser.add_argument("--token", default="stand-in-token", help="that GET /pods wants (default: %(default)s)")
    parser.add_argument("--static", type=Path, action="append", default=[], metavar="FILE", help="a static pod")
    parser.add_argument("--run-commands", action="store_true", help="run the containers' commands as real processes")
    parser.add_argument("--no-pods-api", action="store_true")
    parser.add_argument("--no-podresources", action="store_true")
    parser.add_argument(
        "--podresources-form", choices=get_args(PodResourcesForm), default="1.36", help="since which kubelet"
    )
    parser.add_argument("--no-plugins-registry", action="store_true")
    parser.add_argument("--flat-checkpoint", action="store_true", help="as kubelet 1.12 to 1.19")
    parser.add_argument("--numa", action="store_true", help="align devices to NUMA nodes")
    asyncio.run(_serve(parser.parse_args()))


async def _serve(given: argparse.Namespace) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    options = KubeletOptions(
        root=given.root.absolute(),
        node_name=given.node,
        seed=given.seed,
        speed=given.speed,
        plugin_watcher=not given.no_plugins_registry,
        checkpoint_form="flat" if given.flat_checkpoint else "numa",
        podresources=not given.no_podresources,
        podresources_form=given.podresources_form,
        pods_api=not given.no_pods_api,
        pods_tls=not given.pods_http,
        pods_port=given.pods_port,
        token=given.token,
        numa_alignment=given.numa,
        run_commands=given.run_commands,
        static_pods=tuple(yaml.safe_load(path.read_text()) for path in given.static),
    )
    address = from_kubeconfig(given.kubeconfig) if given.kubeconfig else ApiAddress(given.api)
    async with Kubelet(options, ApiSource(options, address)) as kubelet:
        print(f"kubelet of {options.node_name} in {options.root}, pods at {kubelet.pods_url}", flush=True)
        await stop.wait()


if __name__ == "__main__":
    main()
