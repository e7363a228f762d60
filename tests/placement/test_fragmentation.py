"""The measure, against its definition written out task by task."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from deviceplugin.model.preferences import GpuFilter
from deviceplugin.model.request import Request
from deviceplugin.placement.capacity_after import Capacities
from deviceplugin.placement.fit import GpuCapacity, GpuModel
from deviceplugin.placement.fragmentation import Fragmentation, TaskKind, Workload, by_count, by_rate, stranded
from deviceplugin.placement.node_state import Spare

T4 = GpuModel("T4", 60)
A100 = GpuModel("A100", 320)
ALONE = GpuModel("A100", 320, whole_only=True)

requests = st.one_of(
    st.builds(Request, st.integers(1, 99), st.integers(0, 80)),
    st.builds(lambda gpus, blocks: Request(100 * gpus, blocks), st.integers(1, 4), st.integers(0, 400)),
    st.builds(lambda parts, cores, blocks: Request(cores * parts, blocks * parts, parts), st.integers(2, 3),
              st.integers(1, 99), st.integers(0, 80)),
)  # fmt: skip
needs = st.builds(Spare, st.integers(0, 9), st.integers(0, 9))
filters = st.sampled_from([GpuFilter(), GpuFilter(models=("a100",)), GpuFilter(not_models=("T4",))])
workloads = st.builds(
    lambda kinds: Workload(tuple(kinds.items())),
    st.dictionaries(st.builds(TaskKind, requests, needs, filters), st.integers(1, 50), max_size=6),
)


@st.composite
def some_cards(draw: st.DrawFn) -> Capacities:
    cards = []
    for _ in range(draw(st.integers(0, 5))):
        kind = draw(st.sampled_from([T4, A100, A100, ALONE]))
        whole = draw(st.booleans())
        cores = 100 if whole else draw(st.integers(0, 100))
        cards.append(GpuCapacity(kind, cores, kind.blocks if whole else draw(st.integers(0, kind.blocks))))
    return tuple(sorted(cards))


spares = st.one_of(st.none(), st.builds(Spare, st.integers(-5, 30), st.integers(0, 30)))


def takes(task: TaskKind, card: GpuCapacity) -> int:
    """How many such tasks, or parts of one, go onto a GPU."""
    request = task.request
    if not task.wanted.admits_model(card.model.name):
        return 0
    if request.cores_per_gpu == 100:
        whole = card.cores == 100 and card.blocks == card.model.blocks
        return int(whole and card.blocks >= request.blocks_per_gpu)
    if card.model.whole_only:
        return 0
    count = 0
    while (count + 1) * request.cores_per_gpu <= card.cores and (count + 1) * request.blocks_per_gpu <= card.blocks:
        count += 1
    return count


def copies(task: TaskKind, cards: Sequence[GpuCapacity], spare: Spare | None) -> int:
    """Placed one by one on the GPUs that fit the most, which is best where a task wants different GPUs."""
    room, placed = [takes(task, card) for card in cards], 0
    left = spare
    while True:
        room.sort(reverse=True)
        if len(room) < task.request.gpus or room[task.request.gpus - 1] == 0:
            return placed
        if left is not None and not Spare(max(0, left.cpu_milli), max(0, left.memory_mib)).covers(task.needs):
            return placed
        left = None if left is None else left - task.needs
        room = [count - 1 for count in room[: task.request.gpus]] + room[task.request.gpus :]
        placed += 1


def written_out(load: Workload, cards: Capacities, spare: Spare | None) -> int:
    free, total = sum(card.cores for card in cards), 0
    for task, count in load.kinds:
        placed = copies(task, cards, spare)
        alone = sum(card.cores for card in cards if takes(task, card)) if placed else 0
        total += count * by_rate(task.request) * (2 * free - alone - placed * task.request.cores)
    return total


@given(workloads, some_cards(), spares)
def test_it_is_what_its_definition_says_task_by_task_and_never_less_than_nothing_or_more_than_all(
    load: Workload, cards: Capacities, spare: Spare | None
) -> None:
    measure, free = Fragmentation(load), sum(card.cores for card in cards)
    assert measure.of(cards, spare) == written_out(load, cards, spare)
    assert 0 <= measure.of(cards, spare) <= 2 * measure.weight * free
    assert 0 <= stranded(measure, cards, spare) <= measure.weight * free


@given(workloads, st.lists(st.tuples(some_cards(), spares), min_size=1, max_size=8))
def test_what_was_kept_changes_no_measure(load: Workload, nodes: list[tuple[Capacities, Spare | None]]) -> None:
    used = Fragmentation(load)
    for cards, spare in [*nodes, *nodes]:
        assert used.of(cards, spare) == Fragmentation(load).of(cards, spare)


def test_a_workload_without_tasks_finds_nothing_fragmented() -> None:
    assert Fragmentation(Workload(())).of((GpuCapacity(T4, 100, 60),), None) == 0


def test_what_is_stranded_is_counted_once_for_each_task_that_cannot_use_it() -> None:
    share, whole = TaskKind(Request(50, 20), Spare(2, 0)), TaskKind(Request(100, 0), Spare(2, 0))
    measure = Fragmentation(Workload(((share, 1), (whole, 1))), weigh=by_count)
    cases = {
        "a whole GPU serves the share and the whole": ((100, 60), None, 0),
        "half a GPU serves the share alone": ((50, 30), None, 50),
        "too few cores for both": ((40, 60), None, 80),
        "too little memory for the share": ((50, 10), None, 100),
        "no CPU is left beside it": ((100, 60), Spare(1, 0), 200),
    }
    found = {name: stranded(measure, (GpuCapacity(T4, *free),), spare) for name, (free, spare, _) in cases.items()}
    assert found == {name: useless for name, (*_, useless) in cases.items()}


def test_copies_that_find_no_cpu_count_as_useless_although_one_of_them_would_fit() -> None:
    measure = Fragmentation(Workload(((TaskKind(Request(100, 0), Spare(4, 0)), 1),)))
    cards = (GpuCapacity(T4, 100, 60), GpuCapacity(T4, 100, 60))
    assert measure.of(cards, Spare(8, 0)) == 0
    assert measure.of(cards, Spare(7, 0)) > 0
    assert stranded(measure, cards, Spare(7, 0)) == 0


def test_a_task_of_four_gpus_weighs_half_of_one_of_one_and_a_half_share_twice() -> None:
    one = by_rate(Request(100, 0))
    assert [by_rate(Request(400, 0)), by_rate(Request(50, 4))] == [one // 2, one * 2]
