"""The pods of a soak: of every kind, by the seed alone."""

from random import Random

import pytest

from sandbox.cluster.client import JsonObject
from tests.e2e.node.workload import CORE, MEMORY
from tests.e2e.soak.workloads import LARGE, Kind, Workload, make_workload, random_kind


@pytest.mark.parametrize("kind", Kind)
def test_a_seed_makes_the_same_workload_each_time(kind: Kind) -> None:
    assert make_workload(kind, "soak-1", Random(5)) == make_workload(kind, "soak-1", Random(5))


@pytest.mark.parametrize("kind", Kind)
def test_every_container_says_in_its_environment_what_it_asks_for(kind: Kind) -> None:
    containers = containers_of(make_workload(kind, "soak-1", Random(5)))
    assert containers
    for each in containers:
        env = {pair["name"]: pair["value"] for pair in each["env"]}
        limits = each["resources"]["limits"]
        assert (env["SOAK_CONTAINER"], env["SOAK_CORES"]) == (each["name"], limits[CORE])
        assert env["SOAK_BLOCKS"] == limits.get(MEMORY, "0")


def test_every_kind_is_chosen_and_large_ones_only_where_there_is_room() -> None:
    rng = Random(5)
    assert {random_kind(rng, large=True) for _ in range(500)} == set(Kind)
    assert {random_kind(rng, large=False) for _ in range(500)} == set(Kind) - LARGE


def containers_of(workload: Workload) -> list[JsonObject]:
    specs = [body["spec"] for _, body in workload.objects]
    pods = [spec["template"]["spec"] if "template" in spec else spec for spec in specs]
    return [each for pod in pods for key in ("initContainers", "containers") for each in pod.get(key, [])]
