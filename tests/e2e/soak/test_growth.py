"""Growth is judged over the life of one process, after it has settled."""

from tests.e2e.soak.growth import MOST_DESCRIPTORS, MOST_MIB, SETTLED_S, SHORTEST_S, Growth, Life, Sample

LATE = SETTLED_S + SHORTEST_S


def life(*samples: Sample) -> list[Life]:
    growth = Growth()
    for sample in samples:
        growth.note("agent", 7, sample)
    return list(growth.lives())


def test_what_a_process_uses_while_it_settles_does_not_count() -> None:
    (found,) = life(Sample(0, 10, 10, 0), Sample(SETTLED_S, 80, 30, 0), Sample(LATE, 81, 31, 0))
    assert (found.grew, str(found)) == ("", "80 -> 81 MiB, 30 -> 31 descriptors in 120 s")


def test_a_short_life_tells_nothing() -> None:
    assert life(Sample(0, 10, 10, 0), Sample(SETTLED_S, 80, 30, 0), Sample(LATE - 1, 800, 30, 0)) == []


def test_growing_memory_is_told() -> None:
    (found,) = life(Sample(0, 10, 10, 0), Sample(SETTLED_S, 80, 30, 0), Sample(LATE, 81 + MOST_MIB, 30, 0))
    assert found.grew == "the memory or the descriptors of the agent grew: 80 -> 113 MiB, 30 -> 30 descriptors in 120 s"


def test_growing_descriptors_are_told_unless_more_containers_explain_them() -> None:
    late = Sample(LATE, 80, 31 + MOST_DESCRIPTORS, 0)
    (found,) = life(Sample(0, 10, 10, 0), Sample(SETTLED_S, 80, 30, 0), late)
    assert found.grew
    late = Sample(LATE, 80, 31 + MOST_DESCRIPTORS, 10)
    (found,) = life(Sample(0, 10, 10, 0), Sample(SETTLED_S, 80, 30, 0), late)
    assert not found.grew


def test_two_processes_are_not_compared() -> None:
    growth = Growth()
    growth.note("agent", 7, Sample(0, 10, 10, 0))
    growth.note("agent", 8, Sample(LATE, 1000, 1000, 0))
    assert list(growth.lives()) == []
