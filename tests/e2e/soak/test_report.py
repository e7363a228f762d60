"""The table names everything that is wrong, and how to repeat it."""

from dataclasses import replace

from tests.e2e.soak.report import Findings, table
from tests.e2e.soak.soak import Plan

GOOD = Findings(
    minutes=3.2,
    pods_made={"a share": 4, "a Job": 5},
    killed_containers=1,
    containers_checked=20,
    most_at_once=9,
    looks=80,
    faults={"SIGKILL agent": 2},
    ended_by_themselves={},
    unanswered_calls=3,
    refused={"UnexpectedAdmissionError: no": 2},
    without_devices=0,
    forgotten=0,
    repeat=Plan(3, 7).repeat,
)


def test_a_good_soak_passes_and_its_table_has_the_counts() -> None:
    assert GOOD.passed
    lines = [" ".join(line.split()) for line in table(GOOD).splitlines()]
    assert "workloads made 9" in lines
    assert "2 SIGKILL agent" in lines
    assert "2 UnexpectedAdmissionError: no" in lines
    assert "violations 0" in lines
    assert lines[-1] == "To repeat: scripts/soak --minutes 3 --seed 7"


def test_anything_wrong_fails_it_and_is_told_in_full() -> None:
    for bad in (
        replace(GOOD, violations=["something wrong"]),
        replace(GOOD, stuck=["something wrong"]),
        replace(GOOD, left=["something wrong"]),
        replace(GOOD, errors=["something wrong"]),
    ):
        assert not bad.passed
        assert "- something wrong" in table(bad).splitlines()


def test_a_soak_that_saw_no_container_has_proved_nothing() -> None:
    assert replace(GOOD, containers_checked=0).wrong == ["the watcher saw no container, so it has proved nothing"]


def test_the_command_to_repeat_has_every_option() -> None:
    plan = Plan(90, 7, spin=4, identity_budget="30ms")
    assert plan.repeat == "scripts/soak --minutes 90 --seed 7 --spin 4 --identity-budget 30ms"
    assert plan.agent_flags == ["--identity-budget=30ms"]
    assert Plan(1, 2).agent_flags == []
