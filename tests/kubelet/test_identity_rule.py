"""Which container a call may be for, in kubelet's order."""

import pytest

from deviceplugin.kubelet.answers import AnswerRecords
from deviceplugin.kubelet.identity import Question, candidates, next_container, readmitted
from deviceplugin.model.allocation import OwnerKey, PodUid
from deviceplugin.model.pod import ContainerState, Pod
from deviceplugin.model.units import Resource
from tests.kubelet.makers import pod


def question(count: int, resource: Resource = Resource.CORE) -> Question:
    return Question(resource, count)


def answers(*given: str, lost: str = "") -> AnswerRecords:
    """`given` is written as `pod/container/resource`, `lost` as `pod/container`, with spaces between several."""
    found: dict[OwnerKey, set[Resource]] = {}
    for name in given:
        found.setdefault(key(name.rpartition("/")[0]), set()).add(Resource(name.rpartition("/")[2]))
    return AnswerRecords(given=found, lost=frozenset(map(key, lost.split())))


def key(name: str) -> OwnerKey:
    uid, _, container = name.partition("/")
    return (PodUid(f"uid-{uid}"), container)


TWO = pod("p", ("a", 20, 4), ("b", 30, 8))
INIT = pod("p", ("app", 60, 4), init=(("setup", 30, 2), ("proxy", 10, 1)), sidecars=("proxy",))


@pytest.mark.parametrize(
    ("which", "resource", "count", "given", "expected"),
    [
        pytest.param(TWO, Resource.CORE, 20, (), "a", id="the-first-container"),
        pytest.param(TWO, Resource.CORE, 30, (), None, id="not-the-second-while-the-first-waits"),
        pytest.param(TWO, Resource.CORE, 30, ("p/a/core",), "b", id="the-second-when-the-first-is-answered"),
        pytest.param(TWO, Resource.MEMORY, 4, ("p/a/core",), "a", id="each-resource-on-its-own"),
        pytest.param(TWO, Resource.CORE, 21, (), None, id="another-count"),
        pytest.param(TWO, Resource.CORE, 20, ("p/a/core", "p/b/core"), None, id="all-answered"),
        pytest.param(INIT, Resource.CORE, 30, (), "setup", id="init-containers-first"),
        pytest.param(INIT, Resource.CORE, 10, ("p/setup/core",), "proxy", id="sidecars-in-their-place"),
        pytest.param(INIT, Resource.CORE, 60, ("p/setup/core", "p/proxy/core"), "app", id="then-the-app"),
        pytest.param(pod("p", ("cpu", 0, 0), ("g", 5, 1)), Resource.CORE, 5, (), "g", id="others-are-passed-over"),
    ],
)
def test_kubelet_asks_for_the_first_container_without_an_answer(
    which: Pod, resource: Resource, count: int, given: tuple[str, ...], expected: str | None
) -> None:
    found = next_container(which, question(count, resource), answers(*given))
    assert (found.ref.name if found else None) == expected


def test_ended_pods_are_no_candidates() -> None:
    pods = [pod("done", ("c", 20, 4), phase="Succeeded"), pod("refused", ("c", 20, 4), phase="Failed"), TWO]
    assert [found.ref.name for found, _ in candidates(pods, question(20), AnswerRecords())] == ["p"]


def test_a_container_that_started_without_an_allocate_is_taken_only_if_no_other_waits() -> None:
    started = pod("started", ("c", 20, 4), state=ContainerState.RUNNING)
    assert [found.ref.name for found, _ in candidates([started, TWO], question(20), AnswerRecords())] == ["p"]
    assert [found.ref.name for found, _ in candidates([started], question(20), AnswerRecords())] == ["started"]


def test_after_a_lost_checkpoint_only_stopped_unrecorded_containers_are_asked_for_again() -> None:
    running = pod("running", ("c", 20, 4), state=ContainerState.RUNNING)
    recorded = pod("recorded", ("c", 20, 4), state=ContainerState.WAITING)
    stopped = pod("stopped", ("c", 20, 4), state=ContainerState.TERMINATED)
    new = pod("new", ("c", 20, 4))
    given = (f"{name}/c/core" for name in ("running", "recorded", "stopped"))
    found = readmitted([running, recorded, stopped, new], question(20), answers(*given, lost="running/c stopped/c"))
    assert [each.ref.name for each, _ in found] == ["stopped"]


def test_if_nothing_else_fits_a_container_without_a_process_was_lost_whatever_its_status_says() -> None:
    """The soak found pods refused: containers had ended while kubelet was away, and their status still said running."""
    running, alive = (pod(name, ("a", 20, 4), ("b", 30, 4), state=ContainerState.RUNNING) for name in ("p", "alive"))
    given = [f"{name}/{each}/core" for name in ("p", "alive") for each in "ab"]
    for count, name in ((20, "a"), (30, "b")):
        found = readmitted([running, alive], question(count), answers(*given, lost="p/a p/b"))
        assert [(each.ref.name, container.ref.name) for each, container in found] == [("p", name)]
        assert readmitted([running, alive], question(count), answers(*given)) == []


def test_a_pod_without_an_answer_was_never_lost() -> None:
    """It is bound to the node, and kubelet has not come to it yet."""
    assert readmitted([TWO], question(20), answers(lost="p/a p/b")) == []


def test_a_container_that_kubelet_was_killed_over_is_asked_for_again_before_the_next_one() -> None:
    """Both containers want the same; the first was answered, and kubelet was killed before it wrote that down."""
    twins = pod("p", ("app", 20, 4), init=(("first", 20, 4),))
    unrecorded = answers("p/first/core", lost="p/first")
    assert next_container(twins, question(20), unrecorded) is None
    (found,) = readmitted([twins], question(20), unrecorded)
    assert found[1].ref.name == "first"
    following = next_container(twins, question(20), answers("p/first/core"))
    assert following is not None
    assert following.ref.name == "app"


def test_an_answer_for_one_resource_is_not_lost_for_the_other() -> None:
    asked = question(4, Resource.MEMORY)
    following = next_container(TWO, asked, answers("p/a/core", lost="p/a"))
    assert following is not None
    assert following.ref.name == "a"
