"""The published policies and the perturbed workloads that the fragmentation policy is measured against."""

import json
from pathlib import Path

import pytest

from benchmarks.traces import example
from benchmarks.traces.held_out import chooser, planned_for, report, runs
from benchmarks.traces.mixes import MIXES, mixed
from benchmarks.traces.rivals import BestFit, DotProduct, Fgd, Rival
from deviceplugin.model.preferences import NodePolicy
from deviceplugin.placement.fragmentation import workload
from deviceplugin.placement.node_state import NodeState, Spare
from deviceplugin.simulate.replay import replay
from deviceplugin.simulate.scene import read_scene
from tests.placement.clusters import node, pod
from tests.simulate.scenes import plan

TRACES = Path(example.__file__).parent
SCENE = read_scene(TRACES / "example-nodes.csv", TRACES / "example-pods.csv")
ROOM = Spare(100, 100)
NEEDS = Spare(1, 1)


def taken(rival: Rival, *nodes: NodeState, cores: int, needs: Spare = NEEDS) -> tuple[str | None, set[str]]:
    choice = rival.choose(pod((cores, 0)), nodes, needs=needs)
    return choice.node, set(choice.placed.uuids) if choice.placed else set()


def test_fgd_takes_the_gpu_on_which_least_becomes_useless_even_where_another_is_fuller() -> None:
    """Remainders of 50 are useful: 30 goes where none is lost, not to the fullest GPU that fits."""
    halves = workload([(pod((50, 0)), Spare(0, 0))])
    both = node("n", 2, used={0: (50, 0), 1: (20, 0)}, spare=ROOM)
    assert taken(Rival(Fgd(halves)), both, cores=30) == ("n", {"n/1"})
    assert taken(Rival(BestFit(100, 200)), both, cores=30) == ("n", {"n/0"})


def test_best_fit_and_dot_product_weigh_cpu_beside_gpus() -> None:
    little_cpu, few_gpus = node("little-cpu", 4, spare=Spare(10, 100)), node("few-gpus", 2, spare=Spare(90, 100))
    assert taken(Rival(BestFit(100, 400)), little_cpu, few_gpus, cores=100)[0] == "little-cpu"
    hungry = Spare(10, 1)
    assert taken(Rival(DotProduct(100, 400)), little_cpu, few_gpus, cores=20, needs=hungry)[0] == "little-cpu"
    assert taken(Rival(DotProduct(100, 400)), little_cpu, few_gpus, cores=200, needs=Spare(0, 0))[0] == "few-gpus"


def test_a_mix_is_another_scene_of_the_same_size_and_the_same_for_the_same_seed() -> None:
    for name in MIXES:
        one, again = mixed(SCENE, name, seed=7), mixed(SCENE, name, seed=7)
        assert (len(one.nodes), len(one.tasks)) == (len(SCENE.nodes), len(SCENE.tasks)), name
        assert one.tasks == again.tasks, name
        spare = [(each.name, each.spare) for each in one.nodes]
        assert spare == [(each.name, each.spare) for each in again.nodes], name
        assert (one.tasks, spare) != (SCENE.tasks, [(each.name, each.spare) for each in SCENE.nodes]), name


def test_no_chooser_gives_more_than_a_gpu_has() -> None:
    fragmentation = NodePolicy.FRAGMENTATION
    allocated = {}
    for who in ("fgd", "best-fit", "dot-product", "fragmentation@assumed", "extender"):
        asked = chooser(who, fragmentation, SCENE, TRACES)
        allocated[who] = replay(SCENE, plan(fragmentation), seed=1, chooser=asked).at(130).allocated
    assert {who: part for who, part in allocated.items() if not 0.85 < part <= 1} == {}


def test_a_run_is_kept_once_and_reported_with_its_mean(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "openb_node_list_gpu_node.csv").write_bytes((TRACES / "example-nodes.csv").read_bytes())
    (tmp_path / "openb_pod_list_default.csv").write_bytes((TRACES / "example-pods.csv").read_bytes())
    found = list(runs(tmp_path, "default/2:cpu-ample:binpack:1-2", {("default/2", "cpu-ample", "binpack", "1")}))
    assert [each["seed"] for each in found] == [2]
    results = tmp_path / "results.jsonl"
    results.write_text("".join(json.dumps({**found[0], "seed": at, "at_130": 90 + at}) + "\n" for at in (1, 2)))
    report(results)
    assert "| default/2 | cpu-ample | binpack |" in (said := capsys.readouterr().out)
    assert "| 91.50 |" in said


def test_what_is_planned_for_is_what_the_tasks_ask() -> None:
    assert sum(count for _, count in planned_for(SCENE).kinds) == sum(1 for each in SCENE.tasks if each.demand)
