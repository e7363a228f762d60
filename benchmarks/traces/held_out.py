"""Compares the fragmentation policy with others on tasks and clusters for which its weights were not tuned.

    python -m benchmarks.traces.held_out FOLDER RESULTS.jsonl default:as-is:fragmentation:100-109 ...
    python -m benchmarks.traces.held_out --report RESULTS.jsonl
    python -m benchmarks.traces.held_out --short [--output json]

In: the folder of the openb trace, and jobs: workload, mix (`mixes`, or `as-is`), chooser and seeds. `default/3` has
every third node and takes a ninth of the time. Out: one line for each run, appended; a run in the file is not repeated.
`--report` prints a file as a table, `--short` one run of the example trace. Choosers:

    binpack, spread, fragmentation   vcuda's policies
    fgd, best-fit, dot-product       published policies (`rivals`)
    fragmentation@WORKLOAD           expects the tasks of another workload
    fragmentation@assumed            expects the assumed mix, without observation
    scheduler                        with the knowledge of the scheduler (`vcuda simulate --as-scheduler`)
    extender, extender@...           without CPU and memory of nodes, which an older scheduler did not know:
                                     kube-scheduler removes nodes with too little

A chooser places all pods, as in the published experiment; `CHOOSER+stock` leaves those without GPUs to kube-scheduler's
default scores, as a cluster does, and `CHOOSER+most-allocated` to its strategy MostAllocated.
"""

import json
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean

from benchmarks.command import BenchmarkError, ends_in_one_sentence, options, show
from benchmarks.traces.mixes import mixed
from benchmarks.traces.rivals import BestFit, DotProduct, Fgd, Rival
from deviceplugin.model.pod_request import PodRequest
from deviceplugin.model.preferences import GpuPolicy, NodePolicy
from deviceplugin.placement.fragmentation import ASSUMED, NO_NEEDS, TaskKind, Workload, workload
from deviceplugin.placement.node_state import NodeState, Spare
from deviceplugin.placement.nodes import NodeChoice, NodeScorer
from deviceplugin.simulate.replay import SchedulerView, SimulationPlan, replay
from deviceplugin.simulate.scene import read_scene
from deviceplugin.simulate.stock_scheduler import Chooser, OtherPods
from deviceplugin.simulate.trace import Scene
from deviceplugin.structs import replace

HERE = Path(__file__).parent
NODES = "openb_node_list_gpu_node.csv"
PERCENT = 130
AS_IS = "as-is"


def read(folder: Path, name: str) -> Scene:
    name, _, part = name.partition("/")
    scene = read_scene(folder / NODES, folder / f"openb_pod_list_{name}.csv")
    return replace(scene, nodes=scene.nodes[:: int(part or 1)])


def planned_for(scene: Scene) -> Workload:
    return workload((task.pod, task.needs) for task in scene.tasks)


def without_needs(typical: Workload) -> Workload:
    counted: Counter[TaskKind] = Counter()
    for kind, count in typical.kinds:
        counted[replace(kind, needs=NO_NEEDS)] += count
    return Workload(tuple(counted.items()))


class Blind:
    """Does not see CPU and memory; caches the reduced nodes, so that an unchanged node stays identical."""

    def __init__(self, typical: Workload, node_policy: NodePolicy) -> None:
        self._scorer = NodeScorer(typical, node_policy=node_policy)
        self._shown: dict[str, tuple[NodeState, NodeState]] = {}

    def choose(self, pod: PodRequest, states: Iterable[NodeState], *, needs: Spare) -> NodeChoice:
        shown = [self._show(state) for state in states if state.spare is None or state.spare.covers(needs)]
        return self._scorer.choose(pod, shown)

    def _show(self, state: NodeState) -> NodeState:
        known = self._shown.get(state.name)
        if known is None or known[0] is not state:
            known = self._shown[state.name] = (state, replace(state, spare=None))
        return known[1]


def chooser(who: str, policy: NodePolicy, scene: Scene, folder: Path) -> Chooser:
    name, _, plan = who.partition("@")
    if plan or name == "extender":
        known = {"assumed": ASSUMED, "": planned_for(scene)}
        typical = known[plan] if plan in known else planned_for(read(folder, plan))
        return Blind(without_needs(typical), policy) if name == "extender" else NodeScorer(typical, node_policy=policy)
    if name == "scheduler":
        return SchedulerView(policy, GpuPolicy.BINPACK)
    if name == "fgd":
        return Rival(Fgd(planned_for(scene)))
    most_cpu = max(node.spare.cpu_milli for node in scene.nodes if node.spare is not None)
    most_cores = max(100 * len(node.snapshot.gpus) for node in scene.nodes)
    if name in ("best-fit", "dot-product"):
        return Rival((BestFit if name == "best-fit" else DotProduct)(most_cpu, most_cores))
    return NodeScorer(planned_for(scene), node_policy=policy)


def runs(folder: Path, job: str, done: set[tuple[str, ...]]) -> Iterator[Mapping[str, object]]:
    name, mix, who, seeds = job.split(":")
    first, _, last = seeds.partition("-")
    known = read(folder, name)
    for seed in range(int(first), int(last or first) + 1):
        if (name, mix, who, str(seed)) in done:
            continue
        scene = known if mix == AS_IS else mixed(known, mix, seed=seed)
        who_of_gpus, _, other_pods = who.partition("+")
        policy = who_of_gpus.partition("@")[0]
        node_policy = NodePolicy(policy) if policy in {each.value for each in NodePolicy} else NodePolicy.FRAGMENTATION
        others = OtherPods(other_pods or OtherPods.POLICY)
        plan = SimulationPlan(node_policy, GpuPolicy.BINPACK, PERCENT, other_pods=others)
        run = replay(scene, plan, seed=seed, chooser=chooser(who_of_gpus, node_policy, scene, folder))
        yield {
            "workload": name, "mix": mix, "who": who, "seed": seed,
            "at_100": round(100 * run.at(100).allocated, 3), "at_130": round(100 * run.at(130).allocated, 3),
            "processor_seconds": round(run.processor_seconds, 1),
        }  # fmt: skip


def report(path: Path) -> None:
    """A row for each workload, mix and chooser: mean, worst and number of seeds."""
    found: dict[tuple[str, str, str], list[tuple[float, float]]] = {}
    for line in map(json.loads, path.read_text().splitlines()):
        found.setdefault((line["workload"], line["mix"], line["who"]), []).append((line["at_100"], line["at_130"]))
    print("| workload | mix | who chooses | at 100 % | at 130 % | worst seed | seeds |\n|---|---|---|---|---|---|---|")
    for (name, mix, who), pairs in sorted(found.items()):
        early, late = ([pair[at] for pair in pairs] for at in (0, 1))
        worst = f"{min(early):.2f} / {min(late):.2f}"
        print(f"| {name} | {mix} | {who} | {fmean(early):.2f} | {fmean(late):.2f} | {worst} | {len(pairs)} |")


def append(folder: Path, results: Path, jobs: Sequence[str]) -> None:
    lines = map(json.loads, results.read_text().splitlines() if results.exists() else ())
    done = {tuple(str(line[key]) for key in ("workload", "mix", "who", "seed")) for line in lines}
    for job in jobs:
        for run in runs(folder, job, done):
            with results.open("a") as file:
                file.write(json.dumps(run) + "\n")


def short() -> Mapping[str, object]:
    """One run of a third of the example's nodes."""
    with tempfile.TemporaryDirectory(prefix="vt-") as name:
        folder = Path(name)
        shutil.copyfile(HERE / "example-nodes.csv", folder / NODES)
        shutil.copyfile(HERE / "example-pods.csv", folder / "openb_pod_list_example.csv")
        (run,) = runs(folder, "example/3:as-is:binpack:1", set())
        return run


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--report", type=Path, metavar="RESULTS.jsonl")
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("results", type=Path, nargs="?")
    parser.add_argument("jobs", nargs="*", metavar="WORKLOAD:MIX:WHO:SEEDS")
    given = parser.parse_args()
    if given.report:
        report(given.report)
    elif given.short:
        show(short(), given.output)
    elif not given.jobs:
        raise BenchmarkError("nothing to run: name the folder of the openb trace, a results file and at least one job")
    else:
        append(given.folder, given.results, given.jobs)


if __name__ == "__main__":
    ends_in_one_sentence(main)
