"""The limits file of vcuda's library, compared with bytes by offset, and with everything that may be wrong."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deviceplugin.container.limits_file import (
    CHECKSUM_AT,
    DEVICE,
    HEADER,
    DeviceLimits,
    GrantLimits,
    checksum_of,
    encode,
    soft_limit,
    successor,
)
from deviceplugin.errors import ParseError
from deviceplugin.ledger.grant import GrantId
from deviceplugin.model.gpu import GpuUuid
from deviceplugin.structs import replace
from sandbox.limits_file import decode

UUID = GpuUuid("GPU-5a1c6f0e-0b8a-4a53-9e0c-2f1d6f7a9b10")
ONE = DeviceLimits(UUID, "00000000:3B:00.0", 2 << 30, 20, 60)
LIMITS = GrantLimits(GrantId("g-0011223344556677"), (ONE,), generation=3)


def test_the_bytes_are_those_of_the_header_file() -> None:
    expected = bytearray(256)
    for offset, value in {
        0: b"VCUDALIM",
        8: struct.pack("<IIIIQ", 1, 256, 1, 0, 3),
        32: b"g-0011223344556677",
        64: bytes.fromhex("7e7fd317d2e30c9f")[::-1],
        128: UUID.encode(),
        176: b"00000000:3B:00.0",
        208: struct.pack("<QII", 2 << 30, 20, 60),
    }.items():
        expected[offset : offset + len(value)] = value
    assert encode(LIMITS).hex() == expected.hex()


def test_the_checksum_is_fnv_1a() -> None:
    vectors = {b"": 0xCBF29CE484222325, b"a": 0xAF63DC4C8601EC8C, b"foobar": 0x85944171F73967E8}
    assert {data: checksum_of(data) for data in vectors} == vectors, "the published test vectors"


names = st.text(st.characters(codec="ascii", exclude_characters="\0"), max_size=31)
devices = st.builds(
    DeviceLimits,
    uuid=names.filter(bool),
    bus_id=names,
    memory_bytes=st.integers(0, 2**64 - 1),
    cores=st.integers(1, 2**32 - 1),
    soft_cores=st.integers(0, 2**32 - 1),
)
limits = st.builds(
    GrantLimits,
    grant=names,
    devices=st.lists(devices, min_size=1, max_size=16).map(tuple),
    generation=st.integers(0, 2**64 - 1),
)


@given(limits)
def test_what_was_encoded_is_read_back(written: GrantLimits) -> None:
    assert decode(encode(written)) == written


@given(limits, st.data())
def test_a_changed_byte_is_noticed(written: GrantLimits, data: st.DataObject) -> None:
    torn = bytearray(encode(written))
    at = data.draw(st.integers(0, len(torn) - 1))
    torn[at] ^= data.draw(st.integers(1, 255))
    with pytest.raises(ParseError):
        decode(bytes(torn))


@given(st.binary(max_size=600))
def test_garbage_is_refused_in_one_sentence(data: bytes) -> None:
    with pytest.raises(ParseError, match=r"^limits .*[^.]$"):
        decode(data)


def sealed(data: bytes) -> bytes:
    """With the right checksum."""
    zeroed = data[:CHECKSUM_AT] + bytes(8) + data[CHECKSUM_AT + 8 :]
    return data[:CHECKSUM_AT] + struct.pack("<Q", checksum_of(zeroed)) + data[CHECKSUM_AT + 8 :]


def test_each_fault_has_its_reason(subtests: pytest.Subtests) -> None:
    data = encode(LIMITS)
    faults = (
        (data[:-1], "says 256"),
        (data + b"\0", "says 256"),
        (data[:20], "fewer than its header"),
        (b"VCUDALIN" + data[8:], "begins with"),
        (data[:8] + b"\2" + data[9:], "version 2"),
        (data[:16] + b"\2" + data[17:], "with 2 GPUs"),
        (data[:20] + b"\1" + data[21:], "unknown flags 0x1"),
        (sealed(data[:128] + b"\xff" + data[129:]), "no text"),
        (sealed(data[:128] + b"x" * 48 + data[176:]), "without an end"),
        (sealed(data[:128] + bytes(48) + data[176:]), "no UUID or no cores"),
        (sealed(data[:216] + bytes(4) + data[220:]), "no UUID or no cores"),
        (sealed(data[:12] + b"\x80\0\0\0" + bytes(4) + data[20:128]), "0 GPUs"),
    )
    for wrong, reason in faults:
        with subtests.test(reason=reason), pytest.raises(ParseError, match=reason):
            decode(wrong)


def test_no_more_gpus_than_the_library_knows() -> None:
    with pytest.raises(ValueError, match="17 GPUs"):
        encode(replace(LIMITS, devices=(ONE,) * 17))
    assert len(encode(replace(LIMITS, devices=(ONE,) * 16))) == HEADER.size + 16 * DEVICE.size


def test_the_generation_counts_changes_and_nothing_else() -> None:
    first = successor(replace(LIMITS, generation=1), None)
    assert decode(first).generation == 1
    assert successor(replace(LIMITS, generation=1), first) == first, "nothing changed"
    harder = replace(LIMITS, devices=(replace(ONE, soft_cores=0),), generation=1)
    second = successor(harder, first)
    assert (decode(second).generation, decode(second).devices) == (2, harder.devices)
    assert decode(successor(harder, b"torn")).generation == 1
    assert decode(successor(harder, encode(replace(LIMITS, generation=2**64 - 1)))).generation == 0


def test_a_soft_limit_is_above_the_share_or_none() -> None:
    expected = {0: 0, 60: 60, 20: 0, 10: 0, 300: 100}
    assert {asked: soft_limit(20, asked) for asked in expected} == expected
