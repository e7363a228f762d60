"""However a line of a watch is written, it is the same change; and what is no line is none in any writing."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deviceplugin.errors import KubeError, ParseError
from deviceplugin.kube.cluster_pods import AnyPod, cluster_pods
from deviceplugin.kube.collection import EventKind, WatchEvent, read_line
from sandbox.apiserver import JsonObject, container, pod

PODS = cluster_pods()
KINDS = (EventKind.ADDED, EventKind.MODIFIED, EventKind.DELETED)


def an_object() -> JsonObject:
    item = pod("a", container(cores=30, blocks=16), node="n1")
    item["metadata"] |= {"uid": "u-1", "resourceVersion": "7"}
    return item


def as_the_server_writes(kind: EventKind, item: JsonObject) -> bytes:
    return json.dumps({"type": kind.value, "object": item}, separators=(",", ":")).encode()


def outcome(line: bytes) -> WatchEvent[AnyPod] | str:
    try:
        return read_line(line, PODS)
    except (KubeError, ParseError) as error:
        return type(error).__name__


@pytest.mark.parametrize("kind", KINDS)
def test_a_line_may_be_written_in_many_ways(kind: EventKind) -> None:
    item = an_object()
    usual = read_line(as_the_server_writes(kind, item), PODS)
    assert (usual.kind, usual.version) == (kind, "7")
    assert usual.item is not None
    for line in (
        json.dumps({"type": kind.value, "object": item}),
        json.dumps({"object": item, "type": kind.value}),
        json.dumps({"type": kind.value, "object": item, "more": {}}, separators=(",", ":")),
        json.dumps({"more": {}, "type": kind.value, "object": item}, separators=(",", ":")),
        as_the_server_writes(kind, item).decode() + " \r",
    ):
        assert read_line(line.encode(), PODS) == usual


@given(st.sampled_from(KINDS), st.data())
def test_a_line_that_was_harmed_is_read_as_json_is_read(kind: EventKind, data: st.DataObject) -> None:
    line = as_the_server_writes(kind, an_object())
    begin = data.draw(st.integers(0, len(line)))
    end = data.draw(st.integers(begin, min(len(line), begin + 4)))
    harmed = line[:begin] + data.draw(st.sampled_from([b"", b"}", b"{", b'"', b",", b"0", b" ", b"}}"])) + line[end:]
    # No server begins a line with a space: such a line is read without looking at how it begins.
    assert outcome(harmed) == outcome(b" " + harmed)
