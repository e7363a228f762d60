"""`/view/events`: the newest first, by page, and by what was asked for."""

import pytest

from deviceplugin.cluster.view.query import EventsQuery, PageQuery, events_query
from deviceplugin.errors import ParseError
from deviceplugin.model.cluster_view import ClusterEventKind
from deviceplugin.model.pod import ClusterPod
from deviceplugin.structs import replace
from tests.cluster.extender.makers import bound, ended, node, pod
from tests.cluster.view.scene import Scene, scene


def within(namespace: str, one: ClusterPod) -> ClusterPod:
    return replace(one, pod=replace(one.pod, ref=replace(one.pod.ref, namespace=namespace)))


@pytest.fixture
def busy() -> Scene:
    """Pods of two namespaces are placed, one ends; a GPU falls ill and a node comes."""
    made = scene()
    made.extender.put_node(node("a", 2))
    made.extender.warm_up()
    for namespace, name in (("red", "one"), ("blue", "two")):
        made.extender.put_pod(bound(within(namespace, pod(name, uid=f"uid-{name}")), "a"))
    made.extender.put_pod(ended(bound(within("red", pod("one", uid="uid-one")), "a")))
    made.extender.put_node(node("a", 2, ill=[0]))
    made.extender.put_node(node("b", 1))
    return made


async def asked(made: Scene, query: EventsQuery) -> list[tuple[str, str, str]]:
    found = await made.views.events(query)
    assert found.total == len(found.items)
    return [(row.kind.value, row.pod, row.node) for row in found.items]


async def test_the_newest_are_first(busy: Scene) -> None:
    assert await asked(busy, events_query({})) == [
        ("node", "", "b"),
        ("gpu", "", "a"),
        ("ended", "one", "a"),
        ("placed", "two", "a"),
        ("placed", "one", "a"),
    ]


async def test_only_those_that_are_asked_for(busy: Scene) -> None:
    assert await asked(busy, events_query({"kind": "gpu"})) == [("gpu", "", "a")]
    assert await asked(busy, EventsQuery(node="b")) == [("node", "", "b")]
    assert await asked(busy, events_query({"namespace": "blue"})) == [("placed", "two", "a")]
    red = await asked(busy, EventsQuery(namespace="red", kind=ClusterEventKind.ENDED))
    assert red == [("ended", "one", "a")]


async def test_pages_neither_repeat_nor_skip_while_events_come(busy: Scene) -> None:
    first = await busy.views.events(replace(events_query({}), page=PageQuery(2, descending=True)))
    busy.extender.put_node(node("c", 1))
    rest = await busy.views.events(replace(events_query({}), page=PageQuery(10, first.more, descending=True)))
    assert [row.node for row in first.items] == ["b", "a"]
    assert [(row.kind.value, row.pod) for row in rest.items] == [("ended", "one"), ("placed", "two"), ("placed", "one")]


async def test_the_answer_says_since_when_events_are_noted(busy: Scene) -> None:
    found = await busy.views.events(events_query({}))
    assert (found.since, found.dropped, found.replica) == (busy.extender.recent_events.since, 0, "here")
    assert found.since > 0


def test_what_no_event_has_is_refused() -> None:
    for query in [{"kind": "other"}, {"stage": "bound"}, {"limit": "0"}, {"order": "up"}]:
        with pytest.raises(ParseError, match=r"; write |is not a parameter"):
            events_query(query)
