"""A container that runs without anything of ours: forgiven only if kubelet gave it nothing and the agent tells it."""

from tests.e2e.soak.running import Running
from tests.e2e.soak.without_devices import TOLD_WITHIN_S, WithoutDevices

BARE = Running("uid-a", 7, "1", "a", "main", 10, 5, (), (), "", None)
OWNER = ("uid-a", "main")


def test_it_is_a_violation_if_kubelet_has_devices_for_it() -> None:
    (said,) = WithoutDevices().look([BARE], {OWNER}, lambda _: True, 0)
    assert said == "a/main (uid-a) runs without its GPU, for which kubelet has devices"


def test_it_is_none_while_the_agent_has_time_to_tell_it() -> None:
    seen = WithoutDevices()
    assert seen.look([BARE], (), lambda _: False, 0) == []
    assert seen.look([BARE], (), lambda _: False, TOLD_WITHIN_S) == []


def test_it_is_a_violation_if_the_agent_never_tells_it() -> None:
    seen = WithoutDevices()
    seen.look([BARE], (), lambda _: False, 0)
    (said,) = seen.look([BARE], (), lambda _: False, TOLD_WITHIN_S + 1)
    assert said == "a/main (uid-a) runs without its GPU, and the agent does not tell it"


def test_it_is_none_once_the_agent_has_told_it() -> None:
    seen = WithoutDevices()
    seen.look([BARE], (), lambda _: True, 0)
    assert seen.look([BARE], (), lambda _: False, 10 * TOLD_WITHIN_S) == []
