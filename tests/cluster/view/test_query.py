"""What is asked for, and one sentence for each mistake."""

import pytest

from deviceplugin.cluster.view.query import (
    NamespaceSort,
    NamespacesQuery,
    NodeFilter,
    NodeSort,
    NodesQuery,
    PageQuery,
    PodSort,
    PodsQuery,
    is_among,
    live_query,
    namespaces_query,
    nodes_query,
    pods_query,
)
from deviceplugin.errors import ParseError
from deviceplugin.model.cluster_view import PodStage
from tests.refusals import refusal

NODE_PARAMETERS = "limit, more, sort, by, order, name, model, state, gpus, holders, live"


def test_nothing_asks_for_the_first_hundred_by_name() -> None:
    assert nodes_query({}) == NodesQuery(PageQuery(100))
    assert pods_query({}) == PodsQuery(PageQuery(100))
    assert namespaces_query({}) == NamespacesQuery(PageQuery(100))
    assert not live_query({})


def test_every_parameter_is_taken() -> None:
    asked = {"limit": "7", "more": "x", "sort": "free", "order": "desc", "state": "free", "gpus": "1"}
    assert nodes_query({**asked, "name": "Node-A", "model": "A100"}) == NodesQuery(
        PageQuery(7, "x", descending=True),
        NodeSort.FREE,
        name="node-a",
        model="a100",
        state=NodeFilter.FREE,
        with_gpus=True,
    )
    found = pods_query({"namespace": "ml", "node": "n", "stage": "pending", "sort": "age", "name": "Train"})
    assert found == PodsQuery(
        PageQuery(100), PodSort.AGE, namespace="ml", name="train", node="n", stages=frozenset({PodStage.PENDING})
    )
    assert pods_query({"stage": "allocated"}).stages == {PodStage.RESERVED, PodStage.BOUND}
    sums = namespaces_query({"namespace": "ml*", "sort": "idle", "live": "1", "order": "desc"})
    assert sums == NamespacesQuery(PageQuery(100, descending=True), NamespaceSort.IDLE, "ml*", live=True)
    assert nodes_query({"sort": "used", "by": "gpu", "live": "1"}).by_part
    assert not nodes_query({"sort": "used", "by": "node", "live": "1"}).by_part
    assert pods_query({"sort": "throttled", "by": "container", "live": "1"}).by_part


def test_a_mistake_is_one_sentence() -> None:
    cases: list[tuple[dict[str, str], str]] = [
        ({"limit": "0"}, "limit is '0'; write a number from 1 to 5000"),
        ({"limit": "5001"}, "limit is '5001'; write a number from 1 to 5000"),
        ({"limit": "251", "gpus": "1"}, "limit is '251'; write a number from 1 to 250"),
        ({"limit": "٣"}, "limit is '٣'; write a number from 1 to 5000"),
        ({"limit": "9" * 400}, f"limit is '{'9' * 20}'; write a number from 1 to 5000"),
        ({"sort": "colour"}, "sort is 'colour'; write one of name, cores, memory, free, used, idle"),
        ({"order": "up"}, "order is 'up'; write one of asc, desc"),
        ({"state": "x"}, "state is 'x'; write one of free, problem"),
        ({"sort": "used"}, "sort=used needs live=1, because the agents say what is used"),
        ({"by": "container"}, "by is 'container'; write one of node, gpu"),
        (
            {"by": "gpu", "sort": "free"},
            "by=gpu needs an order of its own amounts; set sort to one of cores, memory, used, idle",
        ),
        ({"gpus": "yes"}, "gpus is 'yes'; write 1 or 0"),
        ({"model": "x" * 600}, "model has more than 512 characters"),
        ({"namespace": "ml"}, f"'namespace' is not a parameter; the parameters are {NODE_PARAMETERS}"),
    ]
    assert [(asked, refusal(ParseError, nodes_query, asked)) for asked, _ in cases] == cases


def test_a_path_with_one_parameter_takes_no_other() -> None:
    assert live_query({"live": "1"})
    with pytest.raises(ParseError, match="'gpus' is not a parameter; the parameters are live"):
        live_query({"gpus": "1"})


def test_a_namespace_with_a_star_is_all_that_begin_so() -> None:
    asked = ("", "*", "team", "team*", "team-*")
    found = {each: [name for name in ("team", "team-a", "other") if is_among(name, each)] for each in asked}
    everything = ["team", "team-a", "other"]
    assert found == {
        "": everything,
        "*": everything,
        "team": ["team"],
        "team*": ["team", "team-a"],
        "team-*": ["team-a"],
    }
