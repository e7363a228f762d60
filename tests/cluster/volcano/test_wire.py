"""What vc-scheduler really sent is read: the task, the pod in it, the node; and answers are what its plugin reads."""

import json
from collections.abc import Callable

from deviceplugin.cluster.volcano import wire
from deviceplugin.cluster.volcano.wire import Code
from deviceplugin.errors import ParseError
from deviceplugin.model.units import ResourceNames
from tests.cluster.volcano.makers import recorded
from tests.refusals import refusal

NAMES = ResourceNames()


def test_a_recorded_predicate() -> None:
    for body in map(recorded, ("predicate-01", "predicate-03")):
        said = json.loads(body)
        task, node = wire.read_predicate(body)
        assert (task.uid, task.node, task.is_pipelined) == (said["task"]["UID"], "", False)
        assert node == said["node"]["Name"]
        pod = task.pod(NAMES)
        assert (pod.uid, str(pod.pod.ref)) == (task.uid, f"default/{said['task']['Name']}")
        (container,) = pod.pod.containers
        assert (container.cores, container.blocks) == (25, 16)


def test_a_recorded_allocate_and_a_pipelined_one() -> None:
    task = wire.read_event(recorded("allocateFunc-01"))
    assert (task.node, task.is_pipelined) == ("vcuda-node", False)
    said = json.loads(recorded("allocateFunc-01"))
    said["task"]["Status"] = 4
    assert wire.read_event(json.dumps(said).encode()).is_pipelined


def test_evictees_come_back_as_they_came() -> None:
    """Volcano reads them as whole tasks."""
    task = json.loads(recorded("allocateFunc-01"))["task"]
    others = [task | {"UID": str(number), "Name": f"other-{number}"} for number in range(3)]
    body = json.dumps({"evictor": task, "evictees": others}).encode()
    evictor, evictees = wire.read_eviction(body)
    assert [each.uid for each in evictees] == ["0", "1", "2"]
    assert json.loads(wire.write_victims(evictees[1:])) == {"status": 1, "victims": others[1:]}
    assert json.loads(wire.write_victims(())) == {"status": -1, "victims": []}
    assert evictor.uid == task["UID"]


def test_a_list_may_be_null() -> None:
    """So sent by 1.14.1 when it looks for victims."""
    task = json.loads(recorded("predicate-01"))["task"]
    assert wire.read_prioritize(json.dumps({"task": task, "nodes": None}).encode())[1] == ()
    assert wire.read_eviction(json.dumps({"evictor": task, "evictees": None}).encode())[1] == ()


def test_answers() -> None:
    assert json.loads(wire.write_predicate("", Code.FITS)) == {"status": "", "code": 0}
    assert json.loads(wire.write_predicate("no", Code.UNSCHEDULABLE)) == {"status": "no", "code": 2}
    assert json.loads(wire.write_scores({"a": 100.0})) == {"nodeScore": {"a": 100.0}, "errorMessage": ""}
    assert json.loads(wire.write_event("no")) == {"errorMessage": "no"}


def test_what_cannot_be_read_is_one_sentence() -> None:
    cases: list[tuple[Callable[[bytes], object], bytes]] = [
        (wire.read_predicate, b"{"),
        (wire.read_predicate, b'{"task": {"UID": "u"}, "node": {"Name": "n"}}'),
        (wire.read_predicate, b'{"task": {"UID": "u", "Pod": {}}}'),
        (wire.read_event, b'{"task": {"UID": "u", "Pod": {}}}'),
        (wire.read_event, b'{"task": {"UID": 1, "Pod": {}, "NodeName": "n"}}'),
        (wire.read_prioritize, b'{"task": {"UID": "u", "Pod": {}}, "nodes": 7}'),
        (wire.read_eviction, b'{"evictor": {}}'),
    ]
    said = [(read.__name__, body, refusal(ParseError, read, body)) for read, body in cases]
    assert [each for each in said if not each[2] or "\n" in each[2]] == []
