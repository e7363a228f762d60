"""However a line of a watch is written, it is the same change."""

import json

import pytest

from deviceplugin.kube.cluster_objects import cluster_pods
from deviceplugin.kube.collection import EventKind, read_line
from sandbox.apiserver import JsonObject, container, pod

PODS = cluster_pods()
KINDS = (EventKind.ADDED, EventKind.MODIFIED, EventKind.DELETED)


def an_object() -> JsonObject:
    item = pod("a", container(cores=30, blocks=16), node="n1")
    item["metadata"] |= {"uid": "u-1", "resourceVersion": "7"}
    return item


def as_the_server_writes(kind: EventKind, item: JsonObject) -> bytes:
    return json.dumps({"type": kind.value, "object": item}, separators=(",", ":")).encode()


def test_a_line_may_be_written_in_many_ways(subtests: pytest.Subtests) -> None:
    for kind in KINDS:
        with subtests.test(kind=kind):
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
