"""Why a pod is where it is: the annotation `vcuda-decision`, which the scheduler writes with the Binding.

In: sentences about the decision. Out: one line of JSON, or from one a `DecisionRecord`; ParseError for text that any
user may have written. It is for people only: nothing places, counts or trusts by it. Like `vcuda-allocation` it has the
UID of its pod and the node, because annotations are copied when a pod is created again from its YAML. Its size is
bounded, as each pod carries it through etcd and every watch.
"""

from collections.abc import Mapping

import msgspec

from deviceplugin.errors import ParseError
from deviceplugin.model.annotations import decode_json

VERSION = 1
LONGEST = 4096


class ContainerRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """`gpus`: minors. `others`: phrases about the GPUs of the node that were passed over."""

    gpus: tuple[int, ...]
    reason: str
    others: tuple[str, ...] = ()


class DecisionRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """`at`: Unix seconds of filter's choice. `others`: phrases about the nodes that were passed over."""

    version: int
    pod: str
    node: str
    at: int
    reason: str
    others: tuple[str, ...] = ()
    containers: Mapping[str, ContainerRecord] = {}


def format_decision(record: DecisionRecord) -> str:
    """Shortened until it fits: first without the GPUs that were passed over, then without all but the node's reason."""
    plain = {name: ContainerRecord(each.gpus, each.reason) for name, each in record.containers.items()}
    smaller = msgspec.structs.replace(record, containers=plain)
    smallest = msgspec.structs.replace(record, containers={}, others=())
    texts = (msgspec.json.encode(each).decode() for each in (record, smaller, smallest))
    return next((text for text in texts if len(text) <= LONGEST), "")


def parse_decision(text: str) -> DecisionRecord:
    if len(text) > LONGEST:
        raise ParseError(f"annotation vcuda-decision has {len(text)} characters; at most {LONGEST} are read")
    found = decode_json(DecisionRecord, text, what="vcuda-decision")
    if found.version != VERSION:
        raise ParseError(f"annotation vcuda-decision has version {found.version}; this vcuda reads {VERSION}")
    return found
