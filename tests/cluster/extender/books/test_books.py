"""The books: who holds what, whatever the order in which it is told."""

from dataclasses import replace

import pytest

from deviceplugin.cluster.extender.cache.pod_hold import Hold
from deviceplugin.cluster.extender.cache.scheduler_cache import Books
from deviceplugin.cluster.extender.refusal import AGENT_AWAY, FOREIGN_INVENTORY, NO_INVENTORY, UNKNOWN_NODE
from deviceplugin.model.allocation import ContainerRole
from deviceplugin.model.pod import ClusterPod
from tests.cluster.extender.makers import NAMES, allocated, bound, deleting, ended, node, on_gpu, pod


def books_with(*nodes: str) -> Books:
    books = Books(lambda: 0.0)
    for name in nodes:
        books.put_node(node(name))
    return books


def free(books: Books, name: str) -> list[tuple[int, int]]:
    return [(view.free_cores, view.free_blocks) for view in books.nodes[name].state.snapshot.gpus]


def placed(name: str = "a", at: int = 0, cores: int = 50, blocks: int = 8) -> ClusterPod:
    found = pod(cores=cores, blocks=blocks)
    return bound(found, name, allocated(found, {"main": on_gpu(name, at, cores, blocks)}))


def test_a_bound_pod_holds_what_its_annotation_says() -> None:
    books = books_with("a")
    books.put_pod(placed())
    assert free(books, "a") == [(50, 56), (100, 64)]


def test_a_pod_is_counted_once_however_often_it_is_told_of() -> None:
    books = books_with("a")
    one = placed()
    for _ in range(3):
        books.put_pod(one)
    assert free(books, "a") == [(50, 56), (100, 64)]


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_a_pod_that_ended_holds_nothing_and_late_news_do_not_bring_it_back(phase: str) -> None:
    books = books_with("a")
    one = placed()
    books.put_pod(one)
    books.put_pod(ended(one, phase))
    books.put_pod(one)
    assert free(books, "a") == [(100, 64), (100, 64)]
    books.drop_pod(one.uid)
    books.put_pod(one)
    assert free(books, "a") == [(100, 64), (100, 64)]


def test_a_pod_that_is_being_deleted_holds_on() -> None:
    books = books_with("a")
    books.put_pod(deleting(placed()))
    assert free(books, "a") == [(50, 56), (100, 64)]


def test_an_unbound_pod_holds_nothing_whatever_its_annotations_say() -> None:
    books = books_with("a")
    found = placed()
    books.put_pod(replace(found, pod=replace(found.pod, node="")))
    assert free(books, "a") == [(100, 64), (100, 64)]


def test_a_pod_that_was_seen_bound_is_not_unbound_by_older_news() -> None:
    books = books_with("a")
    found = placed()
    books.put_pod(found)
    books.put_pod(replace(found, pod=replace(found.pod, node="", annotations={})))
    assert free(books, "a") == [(50, 56), (100, 64)]


def test_a_pod_of_nobody_counts_on_every_gpu_that_may_hold_it_until_its_place_is_written() -> None:
    books = books_with("a")
    books.put_pod(placed(at=1, cores=70))
    stranger = pod(cores=40, blocks=8)
    books.put_pod(bound(stranger, "a"))
    assert free(books, "a") == [(60, 56), (30, 56)]  # GPU 1 has no room for it beside what is known
    books.put_pod(bound(stranger, "a", allocated(stranger, {"main": on_gpu("a", 0, 40, 8)})))
    assert free(books, "a") == [(60, 56), (30, 56)]
    books.put_pod(bound(stranger, "a", allocated(stranger, {"main": on_gpu("a", 0, 40, 8)})))
    books.drop_pod(stranger.uid)
    assert free(books, "a") == [(100, 64), (30, 56)]


@pytest.mark.parametrize(
    "annotations",
    [
        {NAMES.allocation: "{"},
        {NAMES.allocation: '{"version":2,"pod":"u","containers":{}}'},
        allocated(pod(), {"main": on_gpu("a", 0, 50, 8)}),  # of another pod
        {**allocated(pod(uid="u"), {"main": on_gpu("a", 0, 50, 8)}), NAMES.predicate_node: "b"},
        allocated(pod(uid="u"), {"main": on_gpu("a", 0, 1, 1)}),  # less than it asks
        allocated(pod(uid="u"), {"other": on_gpu("a", 0, 50, 8)}),
    ],
)
def test_an_annotation_that_is_not_believed_leaves_the_pod_somewhere(annotations: dict[str, str]) -> None:
    books = books_with("a")
    books.put_pod(bound(pod(uid="u"), "a", annotations))
    assert all(cores <= 50 for cores, _ in free(books, "a"))
    held = books.nodes["a"].holdings["u"]  # type: ignore[index]
    assert [each.name for each in held.somewhere] == ["main"]


def test_a_pod_that_asks_for_nonsense_holds_nothing_and_breaks_nothing() -> None:
    books = books_with("a")
    stranger = bound(pod(cores=150, blocks=1), "a")
    books.put_pod(stranger)
    assert free(books, "a") == [(100, 64), (100, 64)]
    assert "150" in books.nodes["a"].holdings[stranger.uid].problem


def test_init_containers_leave_their_room_to_the_others() -> None:
    books = books_with("a")
    found = pod(cores=50, more=[("setup", ContainerRole.INIT, 30, 8)])
    shares = {"main": on_gpu("a", 0, 50, 8), "setup": on_gpu("a", 0, 30, 8)}
    books.put_pod(bound(found, "a", allocated(found, shares)))
    assert free(books, "a") == [(50, 56), (100, 64)]


def test_a_node_that_comes_back_has_its_pods_and_with_other_gpus_they_hold_nothing_of_those() -> None:
    books = books_with("a")
    books.put_pod(placed())
    books.drop_node("a")
    assert books.problem("a") == UNKNOWN_NODE
    books.put_node(node("a"))
    assert free(books, "a") == [(50, 56), (100, 64)]
    other = node("b")
    books.put_node(replace(other, name="a"))
    assert free(books, "a") == [(100, 64), (100, 64)]
    assert books.nodes["a"].unknown_gpus == 1


def test_a_node_of_which_nobody_speaks_is_forgotten() -> None:
    books = books_with("a")
    one = placed()
    books.put_pod(one)
    books.drop_node("a")
    books.drop_pod(one.uid)
    assert "a" not in books.nodes


@pytest.mark.parametrize("text", ["{", '{"version": 9}', "[]", "nonsense"])
def test_an_inventory_that_cannot_be_read_makes_the_node_unusable_and_nothing_else(text: str) -> None:
    books = books_with("b")
    books.put_node(node("a", text=text))
    assert books.problem("a") == FOREIGN_INVENTORY
    assert "vcuda-inventory" in books.nodes["a"].sentence
    assert books.problem("b") is None
    books.put_node(node("a"))
    assert books.problem("a") is None


def test_a_node_without_inventory_or_agent_is_unusable() -> None:
    books = books_with()
    books.put_node(node("a", text=""))
    books.put_node(replace(node("b"), cores=0))
    assert (books.problem("a"), books.problem("b"), books.problem("c")) == (NO_INVENTORY, AGENT_AWAY, UNKNOWN_NODE)


def test_a_node_whose_agent_goes_is_unusable_until_it_comes_back() -> None:
    """Its annotation stays; kubelet takes away what the agent offered."""
    books = books_with()
    for cores, problem in ((200, None), (0, AGENT_AWAY), (200, None)):
        books.put_node(replace(node("a"), cores=cores))
        assert books.problem("a") is problem


def test_ill_and_cordoned_gpus_take_no_new_work() -> None:
    books = books_with()
    books.put_node(node("a", 4, ill=[1], cordon=["2", "GPU-a-3"]))
    assert [view.gpu.minor for view in books.nodes["a"].state.open_gpus.views] == [0]
    books.put_node(node("a", 4, ill=[1]))
    assert [view.gpu.minor for view in books.nodes["a"].state.open_gpus.views] == [0, 2, 3]


def test_what_frees_room_is_told() -> None:
    told: list[str] = []
    books = Books(lambda: 0.0, freed=told.append)
    books.put_node(node("a"))
    told.clear()
    one = placed()
    books.put_pod(one)
    assert told == []
    books.put_pod(ended(one))
    assert told == ["a"]


def test_a_node_that_has_not_changed_keeps_its_state() -> None:
    books = books_with("a")
    one = placed()
    books.put_pod(one)
    before = books.nodes["a"].state
    books.put_node(node("a"))
    books.put_pod(replace(one, pod=replace(one.pod, resource_version="9")))
    assert books.nodes["a"].state is before
    assert books.nodes["a"].holdings[one.uid].hold is Hold.BOUND
