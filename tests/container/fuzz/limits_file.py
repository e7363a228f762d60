"""A limits file of any bytes: a ParseError or limits that survive being written again.

Each input is tried as it is and with its size and checksum mended, which no mutation would find.
"""

from deviceplugin.structs import replace
from tests.container.fuzz.harness import check_sentence, instrumented, run

with instrumented():
    from deviceplugin.container import limits_file
    from deviceplugin.errors import ParseError
    from sandbox.limits_file import decode

SIZE_AT = 12


def check(data: bytes) -> None:
    check_one(data)
    check_one(mended(data))


def mended(data: bytes) -> bytes:
    at = limits_file.CHECKSUM_AT
    sized = data[:SIZE_AT] + len(data).to_bytes(4, "little") + data[SIZE_AT + 4 :]
    checksum = limits_file.checksum_of(sized[:at] + bytes(8) + sized[at + 8 :])
    return sized[:at] + checksum.to_bytes(8, "little") + sized[at + 8 :]


def check_one(data: bytes) -> None:
    try:
        found = decode(data)
    except ParseError as refusal:
        check_sentence(refusal)
        return
    assert 1 <= len(found.devices) <= limits_file.MAX_DEVICES
    assert all(each.uuid and each.cores for each in found.devices)
    for text in (found.grant, *(name for each in found.devices for name in (each.uuid, each.bus_id))):
        assert "\0" not in text
    again = limits_file.encode(found)
    assert len(again) == len(data)
    assert limits_file.successor(found, again) == again
    other = replace(found, devices=(replace(found.devices[0], cores=found.devices[0].cores % 100 + 1),))
    changed = decode(limits_file.successor(other, data))
    assert changed.generation != found.generation


if __name__ == "__main__":
    run(check)
