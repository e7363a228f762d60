"""Sequences of events that `test_properties` once found, step by step, so that every run tries them."""

from tests.cluster.extender.api import Fate
from tests.cluster.extender.test_properties import Scheduling


def test_a_reservation_beside_an_unconfirmed_binding_ends_with_the_next_refusal() -> None:
    course = Scheduling()
    course.some_pods(sizes=[(30, 8), (30, 8)])
    course.what_was_reserved_is_not_wanted_any_more(which=0, how="deleting")
    course.a_binding_gets_no_answer_and_is_sent_again(
        which=0, then=Fate.WORKS, read=Fate.WORKS, look=False, seconds=80.0, slow=1
    )
    course.what_was_reserved_is_not_wanted_any_more(which=0, how="refused")
    course.the_watch_begins_anew()
    course.what_is_in_doubt_is_looked_up(again=False, read=Fate.WORKS, slow=1, turns=1)
    course.no_reservation_outlives_its_reason()
    course.teardown()


def test_a_pod_that_was_found_by_reading_counts_where_too_much_is_bound() -> None:
    """Two Bindings of earlier processes took effect; the watch has shown one."""
    course = Scheduling()
    course.some_pods(sizes=[(30, 8), (100, 64)])
    course.another_replica_leads()
    course.a_binding_gets_no_answer_and_is_sent_again(
        which=0, then=Fate.REFUSED, read=Fate.WORKS, look=False, seconds=5.0, slow=1
    )
    course.another_replica_leads()
    course.bind(which=0, name="a", fate=Fate.BROKEN_AFTER, read=Fate.WORKS, stay=False, turns=0)
    course.a_binding_arrives_late()
    course.a_binding_gets_no_answer_and_is_sent_again(
        which=0, then=Fate.WORKS, read=Fate.WORKS, look=False, seconds=5.0, slow=1
    )
    course.the_watch_tells(which=0)
    course.what_others_bound_too_much_is_said()
    assert course.cluster.extender.overcommit.gpus == 1
    course.teardown()


def test_a_pod_that_a_failed_binding_showed_to_be_bound_elsewhere_counts_as_well() -> None:
    """Nothing but that answer says that the GPU holds too much; the watch is late."""
    course = Scheduling()
    course.some_pods(sizes=[(30, 8), (30, 8)])
    course.a_binding_gets_no_answer_and_is_sent_again(
        which=0, then=Fate.REFUSED, read=Fate.WORKS, look=True, seconds=5.0, slow=1
    )
    course.create(size=(30, 8), gang=False, nonsense="broken")
    course.what_is_in_doubt_is_looked_up(again=False, read=Fate.LATE, slow=1, turns=1)
    course.somebody_binds_what_says_nothing_of_itself(which=0, name="a", claimed="a", copied=False, other=0)
    course.time_passes(seconds=80.0)
    course.create(size=(60, 8), gang=False, nonsense="broken")
    course.somebody_else_binds(which=1, name="a", claims=True, nonsense="broken")
    course.the_watch_catches_up()
    course.somebody_else_binds(which=0, name="a", claims=True, nonsense="broken")
    course.what_others_bound_too_much_is_said()
    assert course.cluster.extender.overcommit.gpus == 0
    course.what_is_in_doubt_is_looked_up(again=False, read=Fate.WORKS, slow=1, turns=1)
    course.what_others_bound_too_much_is_said()
    assert course.cluster.extender.overcommit.gpus == 1
    course.teardown()
