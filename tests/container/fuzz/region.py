"""A region as a hostile container left it: a ParseError or numbers within their bounds.

The first byte says for how many GPUs; the rest stands where the file stands, with and without this grant's beginning,
which no mutation would find, and filled up to a few slots.
"""

from tests.container.fuzz.harness import check_sentence, instrumented, run

with instrumented():
    from deviceplugin.container import region
    from deviceplugin.errors import ParseError
    from deviceplugin.ledger.grant import GrantId

GRANT = GrantId("5b1c7f02-fuzz")
HEAD = region.form(GRANT).head
FILLED = region.SLOTS_AT + 2 * region.SLOT_SIZE
MOST_PID = 1 << 31


def check(data: bytes) -> None:
    devices = data[0] % (region.MAX_DEVICES + 3) if data else 0
    content = HEAD + data[1:]
    filling = b"\xff" if data[:1] > b"\x80" else b"\0"
    for each in (data, content, content.ljust(FILLED, filling)):
        check_one(each, devices)


def check_one(data: bytes, devices: int) -> None:
    try:
        found = region.parse(data, grant=GRANT, devices=devices)
    except ParseError as refusal:
        check_sentence(refusal)
        check_refused_rightly(data)
        return
    assert len(found.counters) == min(devices, region.MAX_DEVICES)
    for counters in found.counters:
        assert all(abs(getattr(counters, name)) < region.MOST for name in region.Counters.__struct_fields__)
    indexes = [slot.index for slot in found.slots]
    assert indexes == sorted(set(indexes))
    assert all(0 <= index < region.SLOTS for index in indexes)
    for slot in found.slots:
        check_slot(slot, gpus=len(found.counters))


def check_refused_rightly(data: bytes) -> None:
    assert len(data) < region.SLOTS_AT or not data.startswith(HEAD)


def check_slot(slot: region.ProcessSlot, *, gpus: int) -> None:
    assert 0 <= slot.pid < MOST_PID
    assert slot.start_time is None or slot.start_time > 0
    assert len(slot.uses) == gpus
    for use in slot.uses:
        assert all(0 <= getattr(use, name) < region.MOST for name in region.Use._fields)


if __name__ == "__main__":
    run(check)
