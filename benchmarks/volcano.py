"""What Volcano waits for when it asks `vcuda scheduler` about a gang, beside an extender that does nothing.

500 nodes of eight GPUs, half of them used; a gang of 100 shares of four sizes. A session asks as Volcano does
(sandbox/vc_scheduler.py): whole tasks and nodes, 16 predicates at once, on as many nodes as Volcano looks for in a
cluster of this size. Output (keys of `--output json`): `session_s` until every member has its GPU, `empty_session_s`
with an extender that says yes at once; `session_ratio`, their median over the turns, with `_least` and `_most`;
`predicate_p50_ms`, `predicate_p99_ms` and the same of the empty one; `cpu_ms_a_predicate` of vcuda's process;
`body_kib` of a predicate. Both extenders run on one core, the session on the others.

    python -m benchmarks.volcano [--output json] [--short]
"""

import asyncio
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.cluster import fleet
from benchmarks.cluster.load import percentile
from benchmarks.cluster.measured import empty_extender, measured_scheduler, pin_others
from benchmarks.cluster.stub import stub_server
from benchmarks.command import BenchmarkError, ends_in_one_sentence, options, scratch_folder, show
from sandbox.apiserver.kubeconfig import write_kubeconfig
from sandbox.vc_scheduler import PodGroup, Times, VcScheduler

SHORT = (30, 8, 1)
CORE = 0
SIZES = (20, 30, 50, 70)
BLOCKS = 8
Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Turn:
    """One session of each."""

    seconds: float
    times: Times
    sent_bytes: int


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--nodes", type=int, default=500, help="nodes of eight GPUs each (default: %(default)s)")
    parser.add_argument("--members", type=int, default=100, help="pods of the gang (default: %(default)s)")
    parser.add_argument("--turns", type=int, default=5, help="sessions of each extender (default: %(default)s)")
    given = parser.parse_args()
    if given.short:
        given.nodes, given.members, given.turns = SHORT
    with scratch_folder() as folder:
        pin_others(CORE)
        show(measure(folder, given.nodes, given.members, given.turns), given.output)


def measure(folder: Path, nodes: int, members: int, turns: int) -> dict[str, float]:
    with stub_server(nodes, 2 * nodes) as (stub, _), empty_extender(core=CORE) as empty:
        kubeconfig = write_kubeconfig(folder / "kubeconfig", stub)
        with measured_scheduler(folder, kubeconfig, "--volcano", core=CORE) as server:
            documents = [fleet.node(number) for number in range(nodes)]
            ours, others, cpu = [], [], 0.0
            for turn in range(turns):
                gang = PodGroup(f"gang-{turn}", tuple(_member(turn, number) for number in range(members)))
                before = server.cpu_seconds()
                ours.append(asyncio.run(_session(f"{server.url}/volcano", documents, gang)))
                cpu += server.cpu_seconds() - before
                others.append(asyncio.run(_session(f"{empty.url}/volcano", documents, gang)))
    return _figures(ours, others, cpu)


async def _session(url: str, nodes: list[Json], gang: PodGroup) -> Turn:
    """And gives back what it got, outside of the time."""

    async def never(_binding: Json) -> None:
        raise BenchmarkError("the session ends before its Bindings")

    async with VcScheduler(url, nodes, never) as volcano:
        began = time.perf_counter()
        placed = await volcano.session([gang], dies=True)
        seconds = time.perf_counter() - began
        if gang.name not in placed:
            raise BenchmarkError(f"the gang of {len(gang.pods)} found no room on {len(nodes)} nodes")
        await volcano.give_back(gang, placed[gang.name])
    return Turn(seconds, volcano.times, volcano.sent_bytes)


def _member(turn: int, number: int) -> Json:
    """The four sizes by turns, as roles of one job come."""
    cores = SIZES[number % len(SIZES)]
    return fleet.pod_of(f"volcano-{turn}-{number}", [("main", cores, BLOCKS)])


def _figures(ours: list[Turn], others: list[Turn], cpu: float) -> dict[str, float]:
    ratios = [mine.seconds / other.seconds for mine, other in zip(ours, others, strict=True)]
    predicates = [took for turn in ours for took in turn.times.predicate]
    empty = [took for turn in others for took in turn.times.predicate]
    return {
        "session_s": median(turn.seconds for turn in ours),
        "empty_session_s": median(turn.seconds for turn in others),
        "session_ratio": median(ratios),
        "session_ratio_least": min(ratios),
        "session_ratio_most": max(ratios),
        "predicates": len(ours[0].times.predicate),
        "predicate_p50_ms": percentile(predicates, 50),
        "predicate_p99_ms": percentile(predicates, 99),
        "empty_predicate_p50_ms": percentile(empty, 50),
        "empty_predicate_p99_ms": percentile(empty, 99),
        "cpu_ms_a_predicate": cpu * 1000 / len(predicates),
        "body_kib": ours[0].sent_bytes / len(ours[0].times.predicate) / 1024,
    }


if __name__ == "__main__":
    ends_in_one_sentence(main)
