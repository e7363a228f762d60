"""The same load by turns on `vcuda scheduler` and on an empty extender, and what the one takes for one of the other.

In: a folder, the size of the cluster, pairs of filter and bind for each of several turns. Out: figures by name. Both
processes share one core and never work at the same time; each has an API server of its own, so that the events of one's
pods are no work for the other. A ratio is taken within each turn, so that a busy machine slows down both sides of it.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from statistics import median

from benchmarks.cluster.load import WARM, Load, Turn, percentile, reviews
from benchmarks.cluster.measured import Measured, MeasuredExtender, empty_extender, measured_scheduler
from benchmarks.cluster.stub import PODS_A_NODE, stub_server
from benchmarks.command import BenchmarkError
from sandbox.apiserver.kubeconfig import write_kubeconfig
from sandbox.http_connection import HttpError

LIMITS = ("--kube-api-qps=5000",)
Side = Sequence[Turn]


def measure_by_turns(folder: Path, nodes: int, *, pairs: int, turns: int, policy: str, core: int) -> dict[str, float]:
    """`pairs` in each turn. The keys are those of the benchmark's output."""
    pods = nodes * PODS_A_NODE
    folder.mkdir(parents=True)
    with stub_server(nodes, pods) as ours_api, stub_server(nodes, 0) as empty_api:
        kubeconfig = write_kubeconfig(folder / "kubeconfig", ours_api[0])
        flags = (*LIMITS, f"--node-policy={policy}")
        other = write_kubeconfig(folder / "kubeconfig-empty", empty_api[0])
        with (
            measured_scheduler(folder, kubeconfig, *flags, core=core) as ours,
            empty_extender(other, core=core) as empty,
        ):
            rss_ready = ours.rss_mib()
            try:
                spent, found = asyncio.run(_turns((ours, *ours_api), (empty, *empty_api), nodes, pairs, turns))
            except (HttpError, OSError, EOFError) as error:
                raise BenchmarkError(f"{error}: {ours.log.read_text(errors='replace')[-2000:]}") from None
            return {
                "nodes": nodes,
                "running_pods": pods,
                "ready_s": ours.ready_s,
                "rss_ready_mib": rss_ready,
                "rss_mib": ours.rss_mib(),
                "peak_rss_mib": ours.rss_mib("VmHWM"),
                "cpu_ms_a_pair": spent,
                **found,
            }


async def _turns(
    ours: tuple[Measured, str, int], empty: tuple[MeasuredExtender, str, int], nodes: int, pairs: int, turns: int
) -> tuple[float, dict[str, float]]:
    ours_load, empty_load = await Load.open(*ours, nodes), await Load.open(*empty, nodes)
    measured, mine, others, spent = ours[0], [], [], 0.0
    for _ in range(turns):
        before, placed = measured.cpu_seconds(), ours_load.next_pod
        mine.append(await ours_load.turn(pairs))
        spent += (measured.cpu_seconds() - before) * 1000 / (ours_load.next_pod - placed)
        others.append(await empty_load.turn(pairs))
    took = await reviews(measured, max(WARM + 1, pairs))
    for load in (ours_load, empty_load):
        await load.filters.close()
    return spent / turns, {
        "names": ours_load.sample,
        "turns": turns,
        "pairs": pairs,
        **_latencies(mine),
        "webhook_p50_ms": percentile(took, 50),
        "webhook_p99_ms": percentile(took, 99),
        "harness_percent": median(turn.harness_percent for turn in mine),
        "server_percent": median(turn.server_percent for turn in mine),
        **_beside(mine, others),
    }


def _latencies(turns: Side) -> dict[str, float]:
    """Over all answers of all turns; `pairs_per_s` is the median of the turns."""
    calm = _all(turn.calm_filters for turn in turns)
    binds = _all(turn.binds for turn in turns)
    return {
        "filter_p50_ms": percentile(calm, 50),
        "filter_p99_ms": percentile(calm, 99),
        "filter_busy_p99_ms": percentile(_all(turn.busy_filters for turn in turns), 99),
        "bind_calm_p99_ms": percentile(_all(turn.calm_binds for turn in turns), 99),
        "bind_p50_ms": percentile(binds, 50),
        "bind_p99_ms": percentile(binds, 99),
        "pairs_per_s": median(turn.pairs_per_s for turn in turns),
    }


def _beside(mine: Side, others: Side) -> dict[str, float]:
    empty = _latencies(others)
    kept = ("filter_p50_ms", "filter_p99_ms", "bind_p50_ms", "bind_p99_ms", "pairs_per_s")
    return {
        **{f"empty_{name}": empty[name] for name in kept},
        **ratios("filter_ratio", _each(mine, others, lambda turn: median(turn.calm_filters))),
        **ratios("bind_ratio", _each(mine, others, lambda turn: median(turn.binds))),
        **ratios("pairs_ratio", _each(mine, others, lambda turn: turn.pairs_per_s)),
    }


def ratios(name: str, found: Sequence[float]) -> dict[str, float]:
    return {name: median(found), f"{name}_least": min(found), f"{name}_most": max(found)}


def _each(mine: Side, others: Side, figure: Callable[[Turn], float]) -> list[float]:
    return [figure(one) / figure(other) for one, other in zip(mine, others, strict=True)]


def _all(parts: Iterable[list[float]]) -> list[float]:
    return [each for part in parts for each in part]
