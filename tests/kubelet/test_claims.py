"""Which container a call may be for: the table of kubelet's order."""

import pytest

from deviceplugin.kubelet.claims import again, candidates, next_container
from deviceplugin.model.allocation import PodUid
from deviceplugin.model.pod import ContainerState, Pod
from deviceplugin.model.units import Resource
from tests.kubelet.makers import pod

Key = tuple[PodUid, str]


class Books:
    """Which calls were answered, written as `pod/container/resource`."""

    def __init__(self, *answered: str) -> None:
        self._answered = set(answered)

    def __call__(self, key: Key, resource: Resource) -> bool:
        return f"{key[0].removeprefix('uid-')}/{key[1]}/{resource.value}" in self._answered


TWO = pod("p", ("a", 20, 4), ("b", 30, 8))
INIT = pod("p", ("app", 60, 4), init=(("setup", 30, 2), ("proxy", 10, 1)), sidecars=("proxy",))


@pytest.mark.parametrize(
    ("which", "resource", "count", "answered", "expected"),
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
    which: Pod, resource: Resource, count: int, answered: tuple[str, ...], expected: str | None
) -> None:
    found = next_container(which, resource, count, Books(*answered))
    assert (found.ref.name if found else None) == expected


def test_ended_pods_are_no_candidates() -> None:
    pods = [pod("done", ("c", 20, 4), phase="Succeeded"), pod("refused", ("c", 20, 4), phase="Failed"), TWO]
    assert [found.ref.name for found, _ in candidates(pods, Resource.CORE, 20, Books())] == ["p"]


def test_a_container_that_started_without_us_is_taken_only_when_nothing_waits() -> None:
    ghost = pod("ghost", ("c", 20, 4), state=ContainerState.RUNNING)
    assert [found.ref.name for found, _ in candidates([ghost, TWO], Resource.CORE, 20, Books())] == ["p"]
    assert [found.ref.name for found, _ in candidates([ghost], Resource.CORE, 20, Books())] == ["ghost"]


def test_after_a_lost_checkpoint_only_stopped_unrecorded_containers_are_asked_for_again() -> None:
    running = pod("running", ("c", 20, 4), state=ContainerState.RUNNING)
    recorded = pod("recorded", ("c", 20, 4), state=ContainerState.WAITING)
    stopped = pod("stopped", ("c", 20, 4), state=ContainerState.TERMINATED)
    found = again([running, recorded, stopped], Resource.CORE, 20, lambda key: key[0] == "uid-recorded")
    assert [each.ref.name for each, _ in found] == ["stopped"]


def test_a_container_that_kubelet_was_killed_over_is_asked_for_again_before_the_next_one() -> None:
    """Both containers want the same; the first was answered, and kubelet was killed before it wrote that down."""
    twins = pod("p", ("app", 20, 4), init=(("first", 20, 4),))
    answered = Books("p/first/core")
    assert next_container(twins, Resource.CORE, 20, answered, recorded=lambda key: False) is None
    (found,) = again([twins], Resource.CORE, 20, lambda key: False)
    assert found[1].ref.name == "first"
    following = next_container(twins, Resource.CORE, 20, answered, recorded=lambda key: key[1] == "first")
    assert following is not None
    assert following.ref.name == "app"
