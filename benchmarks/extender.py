"""The cost of `vcuda scheduler` in a large cluster, and the throughput of a real kube-scheduler with it.

Output (keys of `--output json`): `filter_p99_ms` with as many names as kube-scheduler samples; `bind_p99_ms` with 64
concurrent Binds and an API server that answers after 5 ms; `pairs_per_s` of filter and bind; `webhook_p99_ms`;
`rss_mib` at the end (`rss_ready_mib` before thousands of pods came and went); `ready_s` from the start of the process;
`throughput_ratio`: pods per second of a real kube-scheduler with the extender over the same without it, both with the
configuration of the chart. `throughput_ratio_unlimited` is the same with client limits that are never reached. The
measured process runs on one core, the measuring ones on the others. `--growth` also measures clusters of 100 to 10,000
nodes, without the real kube-scheduler.

    python -m benchmarks.extender [--output json] [--short] [--growth] [--without throughput] [--node-policy POLICY]
"""

import asyncio
import contextlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.cluster.connection import HttpError
from benchmarks.cluster.load import Figures, Load
from benchmarks.cluster.measured import measured_scheduler, pin_others
from benchmarks.cluster.stub import PODS_A_NODE, stub_server
from benchmarks.cluster.throughput import Throughput, measure_throughput, shipped_limits
from benchmarks.command import BenchmarkError, ends_in_one_sentence, options, show
from deviceplugin.config.scheduler import PlacementSettings
from deviceplugin.model.preferences import NodePolicy
from sandbox.apiserver.kubeconfig import write_kubeconfig
from sandbox.cluster.schedulers import UNLIMITED

SIZES = (100, 500, 1_000, 5_000, 10_000)
CORE = 0
SHORT = (40, 20)
TABLE = (
    "names",
    "ready_s",
    "rss_mib",
    "filter_p50_ms",
    "filter_p99_ms",
    "bind_p99_ms",
    "pairs_per_s",
    "webhook_p99_ms",
)


@dataclass(frozen=True, slots=True)
class Result:
    """One cluster size."""

    nodes: int
    running_pods: int
    ready_s: float
    rss_ready_mib: float
    rss_mib: float
    peak_rss_mib: float
    cpu_ms_a_pair: float
    figures: Figures

    def as_json(self) -> dict[str, float]:
        document = asdict(self)
        figures = document.pop("figures")
        return {**document, **figures}


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--nodes", type=int, default=5_000, help="nodes of eight GPUs each (default: %(default)s)")
    parser.add_argument("--pairs", type=int, default=2_000, help="pairs of filter and bind (default: %(default)s)")
    parser.add_argument(
        "--node-policy",
        choices=[each.value for each in NodePolicy],
        default=PlacementSettings().node_policy.value,
        help="of the measured scheduler (default: %(default)s)",
    )
    parser.add_argument("--growth", action="store_true", help=f"also measure {', '.join(map(str, SIZES))} nodes")
    parser.add_argument("--without", choices=["throughput"], help="leave out the real kube-scheduler, which needs root")
    parser.add_argument("--hollow-nodes", type=int, default=40, help="for throughput_ratio (default: %(default)s)")
    parser.add_argument("--hollow-pods", type=int, default=600, help="for throughput_ratio (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="for throughput_ratio (default: %(default)s)")
    given = parser.parse_args()
    if given.short:
        given.without, given.growth, (given.nodes, given.pairs) = "throughput", False, SHORT
    with _temporary() as base:
        throughput: dict[str, Throughput] = {}
        if not given.without:
            nodes, count, rounds = given.hollow_nodes, given.hollow_pods, given.rounds
            for under, limits in (("", shipped_limits()), ("_unlimited", UNLIMITED)):
                throughput[under] = measure_throughput(
                    base / f"t{under}", nodes=nodes, count=count, rounds=rounds, limits=limits
                )
        pin_others(CORE)
        result = measure(base / "main", given.nodes, given.pairs, given.node_policy)
        sizes = SIZES if given.growth else ()
        growth = [measure(base / str(size), size, given.pairs // 2, given.node_policy) for size in sizes]
    _print(given.output, result, throughput, growth)


def measure(folder: Path, nodes: int, pairs: int, node_policy: str) -> Result:
    pods = nodes * PODS_A_NODE
    folder.mkdir(parents=True)
    with stub_server(nodes, pods) as (stub, stub_pid):
        kubeconfig = write_kubeconfig(folder / "kubeconfig", stub)
        flags = ("--kube-api-qps=5000", "--kube-api-burst=5000", f"--node-policy={node_policy}")
        with measured_scheduler(folder, kubeconfig, *flags, core=CORE) as server:
            try:
                before, rss_ready = server.cpu_seconds(), server.rss_mib()
                figures = asyncio.run(Load(server, stub, stub_pid, nodes).run(pairs))
            except (HttpError, OSError, EOFError) as error:
                words = server.log.read_text(errors="replace")[-2000:]
                raise BenchmarkError(f"{error}: {words}") from None
            return Result(
                nodes=nodes,
                running_pods=pods,
                ready_s=server.ready_s,
                rss_ready_mib=rss_ready,
                rss_mib=server.rss_mib(),
                peak_rss_mib=server.rss_mib("VmHWM"),
                cpu_ms_a_pair=(server.cpu_seconds() - before) * 1000 / (pairs * 2.5),
                figures=figures,
            )


@contextlib.contextmanager
def _temporary() -> Iterator[Path]:
    base = Path(tempfile.mkdtemp(prefix="vx-", dir="/tmp"))
    try:
        yield base
    finally:
        if "VCUDA_BENCHMARK_KEEP" not in os.environ:
            shutil.rmtree(base, ignore_errors=True)


def _print(form: str, result: Result, throughput: dict[str, Throughput], growth: list[Result]) -> None:
    document = result.as_json()
    for under, found in throughput.items():
        document |= {
            f"throughput_ratio{under}": found.ratio,
            f"pods_per_s_with_extender{under}": found.with_extender,
            f"pods_per_s_without{under}": found.without,
        }
        document |= {f"cpu_ms_a_pod_with{under}_{what}": ms for what, ms in found.rounds_with[-1].cpu_ms.items()}
        document |= {f"cpu_ms_a_pod_without{under}_{what}": ms for what, ms in found.rounds_without[-1].cpu_ms.items()}
    if form == "json":
        table = [each.as_json() for each in growth]
        print(json.dumps({**document, **({"growth": table} if growth else {})}))
        return
    show(document, form)
    if growth:
        print("\n" + " ".join(f"{name:>15}" for name in ("nodes", *TABLE)))
        for each in growth:
            row = each.as_json()
            print(
                " ".join(f"{row[name]:15.2f}" if name != "nodes" else f"{each.nodes:15d}" for name in ("nodes", *TABLE))
            )


if __name__ == "__main__":
    ends_in_one_sentence(main)
