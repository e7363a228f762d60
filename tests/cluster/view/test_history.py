"""Samples of what pods used: one a minute, of a quarter of an hour, within bounds."""

import sys
from dataclasses import dataclass

from deviceplugin.cluster.view import live
from deviceplugin.cluster.view.live import EVERY_S, KEPT_S, MOST_NODES, NodeUse, UseHistory
from deviceplugin.model.cluster_view import ShareLive, UseSample


@dataclass
class Wall:
    now: float = 1_000_000.0

    def __call__(self) -> float:
        return self.now


def use(*uids: str, **used: float) -> NodeUse:
    return NodeUse(shares={(uid, "main", f"GPU-{at}"): ShareLive(**used) for uid in uids for at in range(2)})  # type: ignore[arg-type]


def test_the_shares_of_a_pod_are_one_sample_and_what_is_not_measured_is_null() -> None:
    wall = Wall()
    kept = UseHistory(wall)
    kept.note("a", use("u1", cores_used=12.5), {"u1"})
    assert kept.of("a", "u1") == (UseSample(wall.now, 25.0, None, None),)
    kept.note("a", use("u1", cores_used=1.0, memory_used_bytes=3, throttled_seconds=0.5), {"u1"})
    assert kept.of("a", "u1")[1] == UseSample(wall.now, 2.0, 6, 1.0)


def test_samples_of_a_quarter_of_an_hour_are_kept_the_oldest_first() -> None:
    wall = Wall()
    kept = UseHistory(wall)
    for minute in range(40):
        kept.note("a", use("u1", cores_used=minute), {"u1"})
        wall.now += EVERY_S
    found = kept.of("a", "u1")
    assert [each.cores_used for each in found] == [2 * minute for minute in range(25, 40)]
    wall.now += KEPT_S
    assert kept.of("a", "u1") == ()


def test_an_agent_speaks_for_pods_of_its_node_only() -> None:
    kept = UseHistory(Wall())
    kept.note("a", use("u1", "forged", cores_used=1.0), {"u1"})
    kept.note("b", use("u1", cores_used=99.0), frozenset())
    assert [each.cores_used for each in kept.of("a", "u1")] == [2.0]
    assert (kept.of("a", "forged"), kept.of("b", "u1")) == ((), ())


def test_numbers_of_an_agent_that_are_out_of_all_bounds_do_no_harm() -> None:
    wall = Wall()
    kept = UseHistory(wall)
    kept.note("a", use("u1", cores_used=1e308, memory_used_bytes=10**400, throttled_seconds=-5.0), {"u1"})
    assert kept.of("a", "u1") == (UseSample(wall.now, float(1 << 60), 1 << 60, 0.0),)


def test_pods_that_are_gone_and_pods_beyond_the_bound_are_forgotten() -> None:
    wall = Wall()
    kept = UseHistory(wall)
    for number in range(live._MOST_PODS + 10):
        kept.note("a", use(f"u{number}", cores_used=1.0), {f"u{number}"})
    assert len(kept._samples) == live._MOST_PODS
    assert (kept.of("a", "u9"), len(kept.of("a", "u10"))) == ((), 1)
    wall.now += KEPT_S + 1
    kept.note("b", use("u1", cores_used=1.0), {"u1"})
    assert list(kept._samples) == [("b", "u1")]


def test_a_pod_costs_at_most_a_kilobyte() -> None:
    wall = Wall()
    kept = UseHistory(wall)
    for _ in range(30):
        kept.note("a", use("u1", cores_used=1.0), {"u1"})
        wall.now += EVERY_S
    (key,) = kept._samples
    entry = sys.getsizeof(kept._samples[key]) + sys.getsizeof(key)
    crowd = dict.fromkeys(range(live._MOST_PODS))
    assert entry + 3 * sys.getsizeof(crowd) / live._MOST_PODS < 1024


def test_few_nodes_are_asked_and_those_first_whose_pods_somebody_looks_at() -> None:
    wall = Wall()
    kept = UseHistory(wall)
    nodes = [f"n{number:03}" for number in range(MOST_NODES + 50)]
    assert kept.chosen(nodes) == nodes[:MOST_NODES]
    kept.watch(nodes[-1])
    kept.watch("gone")
    assert kept.chosen(nodes) == [nodes[-1], *nodes[: MOST_NODES - 1]]
    wall.now += KEPT_S + 1
    assert kept.chosen(nodes) == nodes[:MOST_NODES]
    for name in nodes:
        kept.watch(name)
    assert len(kept._watched) == MOST_NODES
