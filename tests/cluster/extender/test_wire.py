"""The extender protocol as kube-scheduler speaks it."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deviceplugin.cluster.extender.wire import (
    FilterResult,
    Victims,
    read_args,
    read_bind,
    read_preempt,
    write_binding_result,
    write_filter_result,
    write_scores,
    write_victims,
)
from deviceplugin.errors import ParseError
from tests.refusals import refusal

POD: dict[str, Any] = {
    "metadata": {"name": "p", "namespace": "d", "uid": "u", "resourceVersion": "7"},
    "spec": {
        "priority": 3,
        "containers": [
            {"name": "main", "resources": {"limits": {"tencent.com/vcuda-core": "50", "tencent.com/vcuda-memory": "8"}}}
        ],
    },
}


def body(**keys: object) -> bytes:
    return json.dumps(keys).encode()


def test_names_are_read_as_kube_scheduler_writes_them_and_count_beside_nodes() -> None:
    question = read_args(body(Pod=POD, Nodes=None, NodeNames=["a", "b"]))
    assert question.names == ("a", "b")
    assert (question.pod.uid, question.pod.priority) == ("u", 3)
    assert question.pod.pod.is_gpu
    nodes = {"metadata": {}, "items": [{"metadata": {"name": "x"}}]}
    assert read_args(body(Pod=POD, Nodes=nodes, NodeNames=["a"])).names == ("a",)


def test_whole_nodes_and_whole_victims_are_refused_with_the_setting_that_is_wrong() -> None:
    nodes = {"metadata": {}, "items": [{"metadata": {"name": "a"}}]}
    victims = {"n": {"Pods": [{"metadata": {"uid": "x"}}], "NumPDBViolations": 0}}
    whole = body(Pod=POD, NodeNameToVictims=victims, NodeNameToMetaVictims=None)
    for read, asked in ((read_args, body(Pod=POD, Nodes=nodes, NodeNames=None)), (read_preempt, whole)):
        with pytest.raises(ParseError, match="nodeCacheCapable: true"):
            read(asked)


def test_no_reasons_stand_beside_a_node() -> None:
    """kube-scheduler would read and forget hundreds of them for every pod."""
    answer = json.loads(write_filter_result(FilterResult(("a",), {"b": "full"}, {"c": "no GPU"})))
    assert (answer["NodeNames"], answer["FailedNodes"], answer["FailedAndUnresolvableNodes"]) == (["a"], {}, {})


def test_a_bind_order_is_read() -> None:
    order = read_bind(body(PodName="p", PodNamespace="d", PodUID="u", Node="n"))
    assert (str(order.pod), order.pod.uid, order.node) == ("d/p", "u", "n")


def test_victims_are_read_by_uid() -> None:
    meta = {"n": {"Pods": [{"UID": "x"}], "NumPDBViolations": 1}, "m": {"Pods": None, "NumPDBViolations": 0}}
    found = read_preempt(body(Pod=POD, NodeNameToVictims=None, NodeNameToMetaVictims=meta))
    assert found.victims == {"n": Victims(("x",), 1), "m": Victims(())}  # type: ignore[arg-type]


def test_answers_have_the_keys_of_the_protocol() -> None:
    refused = FilterResult((), {"a": "full", "b": "full"}, {"c": "no GPU"})
    assert json.loads(write_filter_result(refused)) == {
        "Nodes": None,
        "NodeNames": [],
        "FailedNodes": {"a": "full", "b": "full"},
        "FailedAndUnresolvableNodes": {"c": "no GPU"},
        "Error": "",
    }
    assert json.loads(write_binding_result("")) == {"Error": ""}
    assert json.loads(write_scores([("a", 7)])) == [{"Host": "a", "Score": 7}]
    assert json.loads(write_victims({"n": Victims(("x",), 2)})) == {  # type: ignore[arg-type]
        "NodeNameToMetaVictims": {"n": {"Pods": [{"UID": "x"}], "NumPDBViolations": 2}}
    }


def test_what_is_no_question_is_one_sentence() -> None:
    words = {
        b"": "the request cannot be read",
        b"[]": "the request cannot be read",
        b"{}": "Pod",
        b'{"Pod": 3}': "Pod",
        b'{"Pod": {"metadata": {"name": 5}}}': "Pod",
        json.dumps({"Pod": POD, "NodeNames": [1]}).encode(): "NodeNames",
    }
    said = {body: refusal(ParseError, read_args, body) for body in words}
    assert [(body, said[body]) for body, word in words.items() if word not in said[body]] == []


@given(st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(noise: bytes) -> None:
    for read in (read_args, read_bind, read_preempt):
        with pytest.raises(ParseError):
            read(noise)
