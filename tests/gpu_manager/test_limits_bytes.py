"""The 8,240 bytes of `vcuda.config`, held against bytes put down by offset."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deviceplugin.gpu_manager.client_files import ContainerLimits, encode_limits
from tests.gpu_manager.client_reader import read_limits

UID = "3b0c3f0e-6b8a-4a53-9e0c-2f1d6f7a9b10"


def golden(**fields: tuple[int, bytes]) -> bytes:
    data = bytearray(8240)
    for offset, value in fields.values():
        data[offset : offset + len(value)] = value
    return bytes(data)


def i32(value: int) -> bytes:
    return value.to_bytes(4, "little", signed=True)


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        pytest.param(
            ContainerLimits(UID, "train", cores=20, memory_bytes=8 << 28, driver_version="550.54.15"),
            golden(
                uid=(0, UID.encode()),
                name=(4096, b"train"),
                memory=(8208, (2 << 30).to_bytes(8, "little")),
                cores=(8216, i32(20)),
                hard=(8220, i32(1)),
                major=(8224, i32(550)),
                minor=(8228, i32(54)),
                enable=(8232, i32(1)),
            ),
            id="hard-limit",
        ),
        pytest.param(
            ContainerLimits(UID, "c", cores=30, memory_bytes=1 << 28, soft_cores=60),
            golden(
                uid=(0, UID.encode()),
                limit=(48, i32(60)),
                name=(4096, b"c"),
                memory=(8208, (1 << 28).to_bytes(8, "little")),
                cores=(8216, i32(30)),
                enable=(8232, i32(1)),
            ),
            id="soft-limit",
        ),
        pytest.param(
            ContainerLimits(UID, "whole", cores=200, memory_bytes=0),
            golden(uid=(0, UID.encode()), name=(4096, b"whole"), cores=(8216, i32(200)), hard=(8220, i32(1))),
            id="whole-gpus-are-not-limited",
        ),
    ],
)
def test_the_bytes_are_those_that_gpu_managers_client_reads(limits: ContainerLimits, expected: bytes) -> None:
    assert len(expected) == 8240
    assert encode_limits(limits) == expected


@given(
    st.text(st.characters(codec="ascii", exclude_characters="\0"), max_size=47),
    st.integers(1, 1600),
    st.integers(0, 1 << 50),
    st.integers(0, 100),
)
def test_what_was_encoded_is_read_back(name: str, cores: int, memory: int, soft: int) -> None:
    limits = ContainerLimits(UID, name, cores=cores, memory_bytes=memory, soft_cores=soft, driver_version="535.1")
    assert read_limits(encode_limits(limits)) == limits


def test_names_that_are_too_long_leave_room_for_the_nul() -> None:
    data = encode_limits(ContainerLimits("u" * 60, "c" * 5000, cores=1, memory_bytes=1))
    assert data[:48] == b"u" * 47 + b"\0"
    assert data[4096:8192] == b"c" * 4095 + b"\0"
