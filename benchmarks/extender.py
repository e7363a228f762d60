"""The cost of `vcuda scheduler` in a large cluster, and the throughput of a real kube-scheduler with it.

Output (keys of `--output json`): `filter_p99_ms` with as many names as kube-scheduler samples; `bind_p99_ms` with 64
concurrent Binds and an API server that answers after 5 ms; `pairs_per_s` of filter and bind; `webhook_p99_ms`;
`rss_mib` at the end (`rss_ready_mib` before thousands of pods came and went); `ready_s` from the start of the process.
`filter_ratio`, `bind_ratio`, `pairs_ratio`: the medians of ours over those of an empty extender, by turns; its figures
begin with `empty_`. `throughput_ratio`: pods per second of a real kube-scheduler with the extender over the same
without it, both with the configuration of the chart. `throughput_ratio_unlimited` is the same with client limits that
are never reached, and `throughput_ratio_empty` then the rate over that with the empty extender. A ratio is the median
of the turns; `_least` and `_most` are of the turns too. `waiting_rss_mib` with 10,000 pods that wait, each with 4 KiB
of annotations for vcuda, and `waiting_longest_ms`, the longest review while the scheduler takes them in, in processor
time; `claims_rss_mib` and `claims_longest_ms` when 1,000 pods with claims come to them. The measured processes run on
one core, the measuring ones on the others. `--growth` also measures clusters of 100 to 10,000 nodes, without the real
kube-scheduler.

    python -m benchmarks.extender [--output json] [--short] [--growth] [--without throughput] [--node-policy POLICY]
"""

import json
from functools import partial

from benchmarks.cluster.measured import pin_others
from benchmarks.cluster.throughput import Size, measure_throughput, shipped_limits
from benchmarks.cluster.turns import measure_by_turns
from benchmarks.cluster.waiting import measure_waiting
from benchmarks.command import ends_in_one_sentence, options, scratch_folder, show
from deviceplugin.config.scheduler import PlacementSettings
from deviceplugin.model.preferences import NodePolicy
from sandbox.cluster.schedulers import UNLIMITED

GROWTH_TURNS = 2
SIZES = (100, 500, 1_000, 5_000, 10_000)
CORE = 0
SHORT = (40, 20, 2)
WAITING = (10_000, 1_000)
SHORT_WAITING = (100, 20)
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


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--nodes", type=int, default=5_000, help="nodes of eight GPUs each (default: %(default)s)")
    parser.add_argument("--pairs", type=int, default=500, help="filter and bind in a turn (default: %(default)s)")
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
    parser.add_argument("--turns", type=int, default=5, help="of each program (default: %(default)s)")
    given = parser.parse_args()
    if given.short:
        given.without, given.growth, (given.nodes, given.pairs, given.turns) = "throughput", False, SHORT
    with scratch_folder() as base:
        throughput: dict[str, float] = {}
        if not given.without:
            size = Size(given.hollow_nodes, given.hollow_pods, given.turns)
            for under, limits in (("", shipped_limits()), ("_unlimited", UNLIMITED)):
                throughput |= measure_throughput(base / f"t{under}", size, limits).as_json(under)
        pin_others(CORE)
        measure = partial(measure_by_turns, pairs=given.pairs, policy=given.node_policy, core=CORE)
        result = measure(base / "main", given.nodes, turns=given.turns)
        result |= measure_waiting(base / "waiting", *(SHORT_WAITING if given.short else WAITING), core=CORE)
        growth = [measure(base / str(size), size, turns=GROWTH_TURNS) for size in (SIZES if given.growth else ())]
    _print(given.output, result, throughput, growth)


def _print(form: str, result: dict[str, float], throughput: dict[str, float], growth: list[dict[str, float]]) -> None:
    document = result | throughput
    if form == "json":
        print(json.dumps({**document, **({"growth": growth} if growth else {})}))
        return
    show(document, form)
    if growth:
        print("\n" + " ".join(f"{name:>15}" for name in ("nodes", *TABLE)))
        for row in growth:
            print(f"{row['nodes']:15.0f} " + " ".join(f"{row[name]:15.2f}" for name in TABLE))


if __name__ == "__main__":
    ends_in_one_sentence(main)
