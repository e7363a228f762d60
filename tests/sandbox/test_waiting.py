"""A wait outlives what is not filled in yet, and ends with the reason when it never is."""

import itertools

import pytest

from sandbox.cluster.client import JsonObject
from sandbox.cluster.waiting import DeadlineError, wait_until

FRESH: list[JsonObject] = [
    {},
    {"status": None},
    {"status": {"conditions": None}},
    {"status": {"conditions": []}},
]
"""As an API server shows a CustomResourceDefinition, a pod or a node before its controller has looked at it."""


def established(found: JsonObject) -> bool:
    return bool(found["status"]["conditions"][0]["status"] == "True")


def test_an_object_without_a_status_is_looked_at_again() -> None:
    shown = iter([*FRESH, {"status": {"conditions": [{"status": "True"}]}}])
    assert wait_until(lambda: established(next(shown)), "it is established")
    assert next(shown, None) is None


@pytest.mark.parametrize("fresh", FRESH, ids=str)
def test_a_status_that_never_comes_is_the_cause_of_the_failure(fresh: JsonObject) -> None:
    with pytest.raises(DeadlineError, match=r"it is established: not within 0 s\.\nwhat there is") as raised:
        wait_until(lambda: established(fresh), "it is established", seconds=0, evidence=lambda: "what there is")
    assert isinstance(raised.value.__cause__, LookupError | TypeError)


def test_a_condition_that_was_false_at_the_end_has_no_cause() -> None:
    seen = itertools.chain([{}], itertools.repeat({"status": {"conditions": [{"status": "False"}]}}))
    with pytest.raises(DeadlineError) as raised:
        wait_until(lambda: established(next(seen)), "it is established", seconds=1)
    assert raised.value.__cause__ is None
