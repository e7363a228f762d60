"""A line of the journal reads back as what was written, and nothing else reads as a line."""

import zlib

from hypothesis import given
from hypothesis import strategies as st

from deviceplugin.ledger.grant import Grant, GrantId, Source
from deviceplugin.ledger.records import (
    JournalEntry,
    LedgerChange,
    apply,
    decode_line,
    encode_line,
    header,
    header_version,
)
from deviceplugin.model.allocation import Allocation, ContainerRef, ContainerRole, GpuShare, PodRef, PodUid
from deviceplugin.model.gpu import GpuUuid
from deviceplugin.model.pod import NO_LIMITS, PodLimits
from deviceplugin.model.request import Request
from deviceplugin.model.units import Resource
from deviceplugin.structs import replace
from tests.ledger.makers import grant

counts = st.integers(min_value=0, max_value=2**31)
grants = st.builds(
    Grant,
    id=st.text(min_size=1).map(GrantId),
    allocation=st.builds(
        Allocation,
        owner=st.builds(ContainerRef, st.builds(PodRef, st.text().map(PodUid), st.text(), st.text()), st.text()),
        role=st.sampled_from(ContainerRole),
        request=st.builds(Request, counts, counts, st.integers(1, 16)),
        shares=st.lists(st.builds(GpuShare, st.text().map(GpuUuid), counts, counts), max_size=3).map(tuple),
        index=counts,
    ),
    answered=st.frozensets(st.sampled_from(Resource)),
    source=st.sampled_from(Source),
    proved=st.booleans(),
    created=st.floats(allow_nan=False, allow_infinity=False),
    limits=st.builds(PodLimits, counts, counts),
)
entries = st.builds(
    JournalEntry,
    number=counts,
    written=st.floats(allow_nan=False, allow_infinity=False),
    change=st.builds(
        LedgerChange,
        kind=st.text(),
        put=st.lists(grants, max_size=3).map(tuple),
        removed=st.lists(st.text().map(GrantId), max_size=3).map(tuple),
        why=st.text(),
        limits=st.lists(st.tuples(st.text().map(GrantId), st.builds(PodLimits, counts, counts)), max_size=3).map(tuple),
    ),
)


@given(entries)
def test_a_line_reads_back_as_the_entry_it_was_made_of(entry: JournalEntry) -> None:
    line = encode_line(entry)
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    assert decode_line(line[:-1]) == entry


@given(entries, st.data())
def test_a_line_with_one_byte_changed_does_not_verify(entry: JournalEntry, data: st.DataObject) -> None:
    line = encode_line(entry)[:-1]
    place = data.draw(st.integers(0, len(line) - 1))
    other = data.draw(st.integers(0, 255).filter(lambda byte: byte != line[place]))
    assert decode_line(line[:place] + bytes([other]) + line[place + 1 :]) is None


@given(st.binary(max_size=200))
def test_bytes_that_are_no_line_answer_none(data: bytes) -> None:
    assert decode_line(data) is None


def line_of(body: bytes) -> bytes:
    return b"%08x %d %s" % (zlib.crc32(body), len(body), body)


def test_a_line_that_verifies_but_says_nothing_we_know_answers_none() -> None:
    bodies = (b"[]", b"{}", b'{"n":"1"}', b'{"n":1,"at":0,"change":"x","put":[{"id":"g"}]}', b"\xff")
    assert {body: decode_line(line_of(body)) for body in bodies} == dict.fromkeys(bodies)


def test_an_operator_can_read_a_line() -> None:
    entry = JournalEntry(7, 1000.0, LedgerChange("grant", put=(grant("train"),)))
    text = encode_line(entry).decode()
    assert '"change":"grant"' in text
    assert '"namespace":"default","name":"train"' in text
    assert '"gpus":[{"uuid":"GPU-0","cores":30,"blocks":8}]' in text


def test_a_line_of_a_later_agent_with_more_keys_is_still_read() -> None:
    entry = JournalEntry(1, 1000.0, LedgerChange("grant", put=(grant("train"),)))
    body = encode_line(entry).split(b" ", 2)[2][:-2] + b',"mood":"good"}'
    assert decode_line(line_of(body)) == entry


def test_what_an_earlier_agent_did_not_write_has_its_value() -> None:
    """No limits; the first place in the pod; parts of one GPU or of whole ones."""
    one = replace(grant("train", index=0), limits=NO_LIMITS)
    entry = JournalEntry(1, 1000.0, LedgerChange("grant", put=(one,)))
    whole = encode_line(entry).split(b" ", 2)[2][:-1]
    keys = (b',"soft_cores":0,"memory_mib":0', b',"index":0', b',"parts":1')
    assert [key for key in keys if key not in whole] == []
    found = {key: decode_line(line_of(whole.replace(key, b""))) for key in keys}
    assert found == dict.fromkeys(keys, entry)


def test_changed_limits_are_written_without_what_the_grants_hold() -> None:
    """A pod of 64 containers, whose author sets the pace."""
    limits = tuple((GrantId(f"g-{number:016x}"), PodLimits(90, 40960)) for number in range(64))
    line = encode_line(JournalEntry(1, 1000.0, LedgerChange("follow_limits", limits=limits)))
    assert len(line) < 100 + 64 * 80


def test_changed_limits_leave_the_rest_of_a_grant_and_make_none() -> None:
    one, gone = grant("train"), GrantId("g-gone")
    state = {one.id: one}
    apply(state, LedgerChange("follow_limits", limits=((one.id, PodLimits(50)), (gone, PodLimits(60)))))
    assert state == {one.id: replace(one, limits=PodLimits(50))}


def test_whole_grants_that_an_earlier_agent_wrote_for_changed_limits_are_read() -> None:
    one = replace(grant("train"), limits=PodLimits(50))
    body = encode_line(JournalEntry(1, 1000.0, LedgerChange("follow_limits", put=(one,)))).split(b" ", 2)[2][:-1]
    assert b'"limits"' not in body
    found, state = decode_line(line_of(body)), {one.id: grant("train")}
    assert found is not None
    apply(state, found.change)
    assert state == {one.id: one}


def test_the_header_names_its_version_and_a_damaged_one_names_none() -> None:
    line = header()[:-1]
    assert header_version(line) == 1
    for place in range(len(line)):
        assert header_version(line[:place] + b"~" + line[place + 1 :]) is None
    assert header_version(b"") is None
