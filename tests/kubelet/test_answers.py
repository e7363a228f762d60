"""Which answers kubelet has lost, and in which order pods, processes, checkpoint and ledger are read."""

import json
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

from deviceplugin.kubelet.answers import AnswerReader, AnswerRecords
from deviceplugin.kubelet.checkpoint import CheckpointReader
from deviceplugin.kubelet.identity import Question
from deviceplugin.kubelet.identity_sources import PodsSource
from deviceplugin.ledger.grant import Grant
from deviceplugin.ledger.journal import Journal
from deviceplugin.ledger.ledger import Ledger
from deviceplugin.model.pod import ContainerState, Pod
from deviceplugin.model.units import Resource, ResourceNames
from tests.kubelet.makers import grant, inventory, pod

Running = Callable[[Iterable[Grant]], frozenset[str]]
WAITING, RUNNING = (pod(name, ("c", 20, 4), state=ContainerState[name]) for name in ("WAITING", "RUNNING"))
ENDED = pod("ended", ("c", 20, 4), phase="Succeeded")
PODS = (WAITING, RUNNING, ENDED)


def never(_grants: Iterable[Grant]) -> frozenset[str]:
    raise AssertionError("the processes need not be read")


class Node:
    """A ledger and a checkpoint; each grant has the name of its pod."""

    def __init__(self, base: Path) -> None:
        self.ledger = Ledger(Journal.open(base / "ledger.journal"))
        self._checkpoint = base / "checkpoint"

    def grants(self, *pods: Pod, proved: bool = True) -> None:
        for each in pods:
            made = grant(each.containers[0], (0, 20, 4), grant_id=each.ref.name, proved=proved)
            self.ledger.grant(made, inventory(1))

    def records(self, *pods: Pod) -> None:
        self._checkpoint.write_text(json.dumps({"Data": {"PodDeviceEntries": [_entry(each) for each in pods]}}))

    def break_checkpoint(self) -> None:
        self._checkpoint.write_text("no JSON")

    def reader(self, running: Running = lambda _grants: frozenset()) -> AnswerReader:
        return AnswerReader(self.ledger, CheckpointReader(self._checkpoint), running)


def _entry(of: Pod) -> dict[str, object]:
    ids = {"-1": ["GPU-0/1"]}
    name = of.containers[0].ref.name
    return {"PodUID": of.ref.uid, "ContainerName": name, "ResourceName": ResourceNames().core, "DeviceIDs": ids}


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    made = Node(tmp_path)
    yield made
    made.ledger.close()


def lost(answers: AnswerRecords) -> set[str]:
    return {uid.removeprefix("uid-") for uid, _ in answers.lost}


async def test_kubelet_has_lost_what_it_has_no_record_of_and_what_has_no_process(node: Node) -> None:
    node.grants(*PODS)
    for recorded, running, even_running, expected in [
        ((), (), False, {"WAITING"}),
        ((), (), True, {"WAITING", "RUNNING"}),
        ((), ("WAITING",), True, {"RUNNING"}),
        ((WAITING,), (), True, {"RUNNING"}),
        ((WAITING, RUNNING), (), True, set()),
    ]:
        node.records(*recorded)
        reader = node.reader(lambda _grants, running=running: frozenset(running))  # type: ignore[misc]
        answers = await reader.read(PODS, Resource.CORE, even_running=even_running)
        assert lost(answers) == expected, (recorded, running)
        assert len(answers.given) == len(answers.proved) == 3


async def test_without_a_checkpoint_that_can_be_read_nothing_counts_as_lost(node: Node) -> None:
    node.grants(WAITING)
    node.break_checkpoint()
    assert lost(await node.reader(never).read(PODS, Resource.CORE)) == set()


async def test_for_pods_that_kubelet_may_not_have_seen_nothing_counts_as_lost(node: Node) -> None:
    node.grants(WAITING)
    node.records()
    key = WAITING.containers[0].ref.key
    assert node.reader(never).given() == AnswerRecords({key: frozenset({Resource.CORE})}, frozenset({key}))


async def test_the_processes_are_read_beside_the_loop_and_only_for_what_started_and_has_no_record(node: Node) -> None:
    seen = []

    def running(grants: Iterable[Grant]) -> frozenset[str]:
        seen.append(([each.id for each in grants], threading.current_thread() is threading.main_thread()))
        return frozenset()

    node.grants(WAITING)
    node.grants(RUNNING, proved=False)
    node.records()
    await node.reader(running).read(PODS, Resource.CORE, even_running=True)
    assert seen == [(["WAITING"], False)]
    node.records(WAITING)
    assert lost(await node.reader(never).read(PODS, Resource.CORE, even_running=True)) == {"RUNNING"}
    assert lost(await node.reader(never).read(PODS, Resource.MEMORY, even_running=True)) == set()


async def test_a_grant_that_moves_while_processes_are_read_is_seen_where_it_is(node: Node) -> None:
    def moves(_grants: Iterable[Grant]) -> frozenset[str]:
        node.ledger.release(["WAITING"], why="its pod ended")  # type: ignore[list-item]
        node.grants(RUNNING)
        return frozenset()

    node.grants(WAITING)
    node.records()
    answers = await node.reader(moves).read(PODS, Resource.CORE)
    assert set(answers.given) == {RUNNING.containers[0].ref.key}


async def test_a_grant_that_moves_while_kubelet_is_asked_for_its_pods_is_seen_where_it_is(node: Node) -> None:
    """PreStartContainer proves meanwhile that a guess was meant for another pod; the call is for the one that it was
    guessed for."""
    one, other = pod("one", ("c", 20, 4)), pod("other", ("c", 20, 4))

    async def fetch() -> tuple[Pod, ...]:
        node.ledger.release(["one"], why="was meant for other")  # type: ignore[list-item]
        node.grants(other)
        node.records(other)
        return (one, other)

    node.grants(one, proved=False)
    node.records(other)
    found = await PodsSource(fetch, node.reader(never)).candidates(Question(Resource.CORE, 20))
    assert [each.ref.name for each, _ in found] == ["one"]
