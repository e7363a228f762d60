"""A patch gives the wanted pod when another library applies it, and names only what changed."""

import copy
import json
from typing import Any

import jsonpatch
from hypothesis import given
from hypothesis import strategies as st

from deviceplugin.cluster.webhook.mutate import mutate
from deviceplugin.cluster.webhook.pod_json import Json, difference, escaped
from deviceplugin.errors import VcudaError
from tests.cluster.webhook.makers import A100S, HAMI, odd_pods
from tests.examples import examples

_keys = st.sampled_from(["a", "b", "x/y", "m~n", "", "~1", "0"])
values = st.recursive(
    st.none() | st.booleans() | st.integers(0, 2) | st.sampled_from(["", "s", "1"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_keys, inner, max_size=4),
    max_leaves=12,
)


def patched(before: Any, operations: list[Json]) -> Any:
    return jsonpatch.apply_patch(copy.deepcopy(before), operations)


@examples(400)
@given(st.dictionaries(_keys, values, max_size=4), st.dictionaries(_keys, values, max_size=4))
def test_a_patch_applied_gives_what_was_wanted(before: Json, after: Json) -> None:
    operations = list(difference(before, after))
    # As texts: in Python 1 == True.
    assert json.dumps(patched(before, operations), sort_keys=True) == json.dumps(after, sort_keys=True)
    assert list(difference(after, copy.deepcopy(after))) == []


@examples(200)
@given(odd_pods)
def test_a_patch_of_a_pod_gives_the_mutated_pod(pod: Json) -> None:
    try:
        wanted = mutate(pod, HAMI, A100S).pod
    except VcudaError:
        return
    assert patched(pod, list(difference(pod, wanted))) == wanted


def test_a_patch_names_only_what_differs() -> None:
    cases: list[tuple[Json, Json, list[Json]]] = [
        ({}, {"a": {"b/c": "1"}}, [{"op": "add", "path": "/a", "value": {"b/c": "1"}}]),
        ({"a": None}, {"a": {"b": "1"}}, [{"op": "add", "path": "/a", "value": {"b": "1"}}]),
        ({"a": {}}, {"a": {"b/c~d": "1"}}, [{"op": "add", "path": "/a/b~1c~0d", "value": "1"}]),
        ({"a": {"x/y": 1, "z": 2}}, {"a": {"z": 2}}, [{"op": "remove", "path": "/a/x~1y"}]),
        ({"a": [1, 2, 3]}, {"a": [1, 3]}, [{"op": "replace", "path": "/a", "value": [1, 3]}]),
        ({"a": [{"n": 1}, {"n": 2}]}, {"a": [{"n": 1}, {"n": 3}]}, [{"op": "replace", "path": "/a/1/n", "value": 3}]),
        ({"a": 1}, {"a": True}, [{"op": "replace", "path": "/a", "value": True}]),
        ({"a": 1, "b": [{"c": None}]}, {"a": 1, "b": [{"c": None}]}, []),
    ]
    assert [(before, after, list(difference(before, after))) for before, after, _ in cases] == cases


def test_a_key_is_escaped_as_one_step_of_a_pointer() -> None:
    assert escaped("a~1/b") == "a~01~1b"
