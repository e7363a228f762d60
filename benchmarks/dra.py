"""The cost of a share by ResourceClaim, beside a bare DRA driver and beside the device plugin, in the same run.

`vcuda agent --dra` and a driver that does only what every driver must are asked by turns to prepare and end the same
claims, one by one and eight at once, while an agent without `--dra` runs as many pods through the device plugin.
Output: `prepare_ms` and `bare_prepare_ms`, `prepare_over_bare_ms` and `prepare_ratio` with the least and the most of
all turns, the same of Unprepare and of bursts; `allocate_ms` and `prestart_ms`, of which kubelet makes two of each for
a pod; `rss_mib` and `idle_cpu_percent` with `--dra`, `plain_...` without, `ready_s` from start to /readyz.

`--kubelet` (as root) starts a real Kubernetes too: pods that ask for no device, pods with a claim of the agent and pods
with one of the bare driver are created at once, by turns. `pods_ratio` is the rate with a claim of the agent over the
rate without, `pods_bare_ratio` that of the bare driver.

    python -m benchmarks.dra [--kubelet] [--output json] [--short]
"""

import asyncio
import contextlib
import os
import statistics
from collections.abc import Callable, Iterable, Sequence
from itertools import chain

from benchmarks.agent import idle_percent, median_ms, rss_mib, running_api_server
from benchmarks.claims.calls import Calling, Calls, Sizes
from benchmarks.claims.node import BARE_NODE, OWN_NODE, PLUGIN_NODE, Nodes, running_nodes
from benchmarks.claims.pods import measure_pods
from benchmarks.command import ends_in_one_sentence, options, scratch_folder, show
from sandbox.cluster.cluster import running_cluster
from sandbox.cluster.prerequisites import containerd_programs, kubernetes_programs
from sandbox.kubelet.apisource import ApiClient, from_kubeconfig

SHORT_IDLE_S = 0.2
SHORT_PODS = 2
SHORT = Sizes(turns=2, claims=2, bursts=1)
KINDS: dict[str, Callable[[Calls], list[float]]] = {
    "prepare": lambda calls: calls.prepare,
    "unprepare": lambda calls: calls.unprepare,
    "burst_prepare": lambda calls: calls.burst_prepare,
    "burst_unprepare": lambda calls: calls.burst_unprepare,
}


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--turns", type=int, default=5, help="number of turns (default: %(default)s)")
    parser.add_argument("--claims", type=int, default=20, help="claims of a turn, one by one (default: %(default)s)")
    parser.add_argument("--bursts", type=int, default=5, help="bursts of eight in a turn (default: %(default)s)")
    parser.add_argument("--idle", type=float, default=10.0, help="seconds of the idle phase (default: %(default)s)")
    parser.add_argument("--kubelet", action="store_true", help="measure pods a second on a real kubelet, as root")
    parser.add_argument("--pods", type=int, default=20, help="pods of each kind in a turn (default: %(default)s)")
    given = parser.parse_args()
    sizes = SHORT if given.short else Sizes(given.turns, given.claims, given.bursts)
    figures = asyncio.run(measure(sizes, SHORT_IDLE_S if given.short else given.idle))
    if given.kubelet:
        with running_cluster(kubernetes_programs(), containerd_programs()) as cluster:
            figures |= measure_pods(cluster, turns=sizes.turns, count=SHORT_PODS if given.short else given.pods)
    show(figures, given.output)


async def measure(sizes: Sizes, idle_s: float) -> dict[str, object]:
    with scratch_folder() as base:
        async with contextlib.AsyncExitStack() as stack:
            nodes = (OWN_NODE, PLUGIN_NODE, BARE_NODE)
            kubeconfig = await stack.enter_async_context(running_api_server(base, nodes))
            api = await stack.enter_async_context(ApiClient(from_kubeconfig(kubeconfig)))
            running = await stack.enter_async_context(running_nodes(base, kubeconfig))
            calling = Calling.of(running, api, sizes)
            await calling.prepare_all()
            resting = await of_resting(running, idle_s)
            await calling.end_all()
            return {**of_calls(calling), **of_plugin(running), **resting, "load": os.getloadavg()[0]}


def of_calls(calling: Calling) -> dict[str, object]:
    own, bare = (lane.turns for lane in calling.lanes)
    found: dict[str, object] = {}
    for kind, of in KINDS.items():
        ours, theirs = [of(turn) for turn in own], [of(turn) for turn in bare]
        for prefix, turns in (("", ours), ("bare_", theirs)):
            every = list(chain.from_iterable(turns))
            found |= {f"{prefix}{kind}_ms": median(every), f"{prefix}{kind}_p99_ms": p99(every)}
        pairs = [(median(mine), median(other)) for mine, other in zip(ours, theirs, strict=True)]
        found |= over_turns(f"{kind}_over_bare_ms", (mine - other for mine, other in pairs))
        found |= over_turns(f"{kind}_ratio", (mine / other for mine, other in pairs))
    return found | {"turns": calling.sizes.turns, "claims": calling.sizes.turns * calling.sizes.claims}


def of_plugin(nodes: Nodes) -> dict[str, object]:
    calls = nodes.plugin.kubelet.calls
    return {
        "allocate_ms": median_ms(calls.of("Allocate")),
        "prestart_ms": median_ms(calls.of("PreStartContainer")),
    }


async def of_resting(nodes: Nodes, idle_s: float) -> dict[str, object]:
    """Both agents hold as many grants, and nobody calls them."""
    pids = nodes.with_claims.process.pid, nodes.plugin.process.pid
    own, plain = await asyncio.gather(*(idle_percent(pid, idle_s) for pid in pids))
    return {
        "idle_cpu_percent": own,
        "plain_idle_cpu_percent": plain,
        "rss_mib": rss_mib(pids[0]),
        "plain_rss_mib": rss_mib(pids[1]),
        "rss_more_mib": rss_mib(pids[0]) - rss_mib(pids[1]),
        "ready_s": nodes.with_claims.ready_s,
        "plain_ready_s": nodes.plugin.ready_s,
    }


def over_turns(name: str, values: Iterable[float]) -> dict[str, object]:
    """One value of each turn: the median under the name itself, beside the least and the most."""
    found = sorted(values)
    return {name: statistics.median(found), f"{name}_min": found[0], f"{name}_max": found[-1]}


def median(seconds: Sequence[float]) -> float:
    """In milliseconds."""
    return statistics.median(seconds) * 1000


def p99(seconds: Sequence[float]) -> float:
    """In milliseconds."""
    return sorted(seconds)[min(len(seconds) - 1, int(len(seconds) * 0.99))] * 1000


if __name__ == "__main__":
    ends_in_one_sentence(main)
