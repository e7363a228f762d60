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

POD: dict[str, Any] = {
    "metadata": {"name": "p", "namespace": "d", "uid": "u", "resourceVersion": "7"},
    "spec": {
        "priority": 3,
        "containers": [
            {
                "name": "main",
                "resources": {"limits": {"tencent.com/vcuda-core": "50", "tencent.com/vcuda-memory": "8"}},
            }
        ],
    },
}


def body(**keys: object) -> bytes:
    return json.dumps(keys).encode()


def test_names_are_read_as_kube_scheduler_writes_them() -> None:
    question = read_args(body(Pod=POD, Nodes=None, NodeNames=["a", "b"]))
    assert question.names == ("a", "b")
    assert (question.pod.uid, question.pod.priority) == ("u", 3)
    assert question.pod.pod.is_gpu


def test_lower_case_keys_are_read_too() -> None:
    assert read_args(body(pod=POD, nodenames=["a"])).names == ("a",)


@given(name=st.text(min_size=1), nodes=st.lists(st.text()), priority=st.integers(-(2**31), 2**31 - 1))
def test_keys_in_any_case_mean_the_same(name: str, nodes: list[str], priority: int) -> None:
    """As kube-scheduler writes it a request is read at once, otherwise key by key."""
    made = {**POD, "metadata": {**POD["metadata"], "name": name}, "spec": {**POD["spec"], "priority": priority}}
    written = body(Pod=made, Nodes=None, NodeNames=nodes)
    assert read_args(written) == read_args(body(pod=made, NODENAMES=nodes))
    order = {"PodName": name, "PodNamespace": "d", "PodUID": "u", "Node": "n"}
    assert read_bind(body(**order)) == read_bind(body(**{key.lower(): value for key, value in order.items()}))


def test_names_count_where_both_names_and_nodes_are_there() -> None:
    nodes = {"metadata": {}, "items": [{"metadata": {"name": "x"}}]}
    assert read_args(body(Pod=POD, Nodes=nodes, NodeNames=["a"])).names == ("a",)


def test_no_names_and_no_nodes_are_no_nodes() -> None:
    assert read_args(body(Pod=POD, Nodes=None, NodeNames=None)).names == ()


def test_whole_nodes_without_names_are_refused_with_the_setting_that_is_wrong() -> None:
    nodes = {"metadata": {}, "items": [{"metadata": {"name": "a"}}]}
    with pytest.raises(ParseError, match="nodeCacheCapable: true"):
        read_args(body(Pod=POD, Nodes=nodes, NodeNames=None))


def test_the_answer_has_the_keys_of_the_protocol() -> None:
    assert json.loads(write_filter_result(FilterResult((), {"a": "full", "b": "full"}, {"c": "no GPU"}))) == {
        "Nodes": None,
        "NodeNames": [],
        "FailedNodes": {"a": "full", "b": "full"},
        "FailedAndUnresolvableNodes": {"c": "no GPU"},
        "Error": "",
    }


def test_no_reasons_stand_beside_a_node() -> None:
    """kube-scheduler would read and forget hundreds of them for every pod."""
    answer = json.loads(write_filter_result(FilterResult(("a",), {"b": "full"}, {"c": "no GPU"})))
    assert (answer["NodeNames"], answer["FailedNodes"], answer["FailedAndUnresolvableNodes"]) == (["a"], {}, {})


def test_a_bind_order_is_read() -> None:
    order = read_bind(body(PodName="p", PodNamespace="d", PodUID="u", Node="n"))
    assert (str(order.pod), order.pod.uid, order.node) == ("d/p", "u", "n")


def test_victims_are_read_by_uid_and_as_whole_pods() -> None:
    meta = {"n": {"Pods": [{"UID": "x"}], "NumPDBViolations": 1}}
    assert read_preempt(body(Pod=POD, NodeNameToMetaVictims=meta)).victims == {"n": Victims(("x",), 1)}  # type: ignore[arg-type]
    full = {"n": {"Pods": [{"metadata": {"uid": "x"}}], "NumPDBViolations": 0}}
    found = read_preempt(body(Pod=POD, NodeNameToVictims=full, NodeNameToMetaVictims=None))
    assert found.victims == {"n": Victims(("x",))}  # type: ignore[arg-type]


def test_the_other_answers_have_the_keys_of_the_protocol() -> None:
    assert json.loads(write_binding_result("")) == {"Error": ""}
    assert json.loads(write_scores([("a", 7)])) == [{"Host": "a", "Score": 7}]
    assert json.loads(write_victims({"n": Victims(("x",), 2)})) == {  # type: ignore[arg-type]
        "NodeNameToMetaVictims": {"n": {"Pods": [{"UID": "x"}], "NumPDBViolations": 2}}
    }


@pytest.mark.parametrize(
    ("wrong", "word"),
    [
        (b"", "filter request"),
        (b"[]", "filter request"),
        (b"{}", "Pod"),
        (b'{"Pod": 3}', "Pod"),
        (b'{"Pod": {"metadata": {"name": 5}}}', "Pod"),
        (json.dumps({"Pod": POD, "NodeNames": [1]}).encode(), "NodeNames"),
        (json.dumps({"Pod": POD, "Nodes": {"items": [7]}}).encode(), "Nodes"),
    ],
)
def test_what_is_no_question_is_one_sentence(wrong: bytes, word: str) -> None:
    with pytest.raises(ParseError, match=word):
        read_args(wrong)


@given(st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(noise: bytes) -> None:
    for read in (read_args, read_bind, read_preempt):
        with pytest.raises(ParseError):
            read(noise)
