"""What is read from ELF files of any linker, and the errors for broken ones."""

import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from deviceplugin.container.driver_mirror.elf import Elf, Machine, is_elf, read_elf
from deviceplugin.errors import ParseError
from sandbox.elf_file import MACHINES, elf_object
from tests.examples import examples

ENDLESS = Path(__file__).parents[1] / "fuzz/corpus/elf/endless-segments"
NAMES = {
    ("x86_64", 64): "EM_X86_64",
    ("x86_64", 32): "EM_386",
    ("aarch64", 64): "EM_AARCH64",
    ("aarch64", 32): "EM_ARM",
}


@pytest.mark.parametrize(("machine", "bits"), sorted(MACHINES))
def test_objects_of_every_machine_and_word_size_are_read(tmp_path: Path, machine: str, bits: int) -> None:
    path = tmp_path / "lib.so"
    path.write_bytes(elf_object("libx.so.1", needed=("liba.so.2", "b"), bits=bits, machine=machine, abi=(2, 3, 99)))
    elf = read_elf(path)
    assert elf == Elf(bits, NAMES[machine, bits], "libx.so.1", ("liba.so.2", "b"), (2, 3, 99))
    usable = {each: elf.bits_on(each) for each in Machine}
    assert usable == {each: bits if each.value == machine else 0 for each in Machine}


def test_an_object_that_says_little(tmp_path: Path) -> None:
    path = tmp_path / "lib.so"
    path.write_bytes(elf_object())
    assert read_elf(path) == Elf(64, "EM_X86_64")


def test_an_object_of_the_compiler(tmp_path: Path) -> None:
    made = tmp_path / "libmade.so"
    flags = ["-shared", "-fPIC", "-Wl,-soname,libmade.so.7", "-Wl,--no-as-needed", "-x", "c", "/dev/null", "-lm"]
    subprocess.run(["gcc", "-o", made, *flags], check=True, timeout=60)
    elf = read_elf(made)
    assert (elf.soname, elf.bits, elf.bits_on(Machine.here())) == ("libmade.so.7", 64, 64)
    assert elf.needed[0] == "libm.so.6"


def test_x32_is_no_32_bit_that_a_driver_is_for(tmp_path: Path) -> None:
    path = tmp_path / "lib.so"
    data = bytearray(elf_object("libx.so.1", bits=32))
    data[18:20] = MACHINES["x86_64", 64].to_bytes(2, "little")
    path.write_bytes(data)
    assert read_elf(path).bits_on(Machine.X86_64) == 0


def test_a_soname_that_leads_elsewhere_is_damage(tmp_path: Path) -> None:
    path = tmp_path / "lib.so"
    for soname in ("../../etc/passwd", "..", "."):
        path.write_bytes(elf_object(soname))
        with pytest.raises(ParseError, match=r"lib\.so is damaged \(ValueError where its ELF headers are read\)"):
            read_elf(path)


def test_four_thousand_million_segments_in_one_place_are_damage(tmp_path: Path) -> None:
    path = tmp_path / "lib.so"
    path.write_bytes(ENDLESS.read_bytes())
    with pytest.raises(ParseError, match="is damaged"):
        read_elf(path)


def test_a_file_that_cannot_be_read_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(ParseError, match=r"none\.so cannot be read: No such file or directory; look at the driver's"):
        read_elf(tmp_path / "none.so")
    assert not is_elf(tmp_path / "none.so")
    assert not is_elf(tmp_path)


def check_garbage(path: Path, data: bytes) -> None:
    """Anything else that is raised fails the test by itself."""
    path.write_bytes(data)
    try:
        found: Elf | str = read_elf(path)
    except ParseError as error:
        found = error.message
    if isinstance(found, Elf):
        assert found.bits in (32, 64)
        assert "/" not in found.soname
    else:
        assert "\n" not in found
        assert str(path) in found


@given(st.binary(max_size=400), st.booleans())
@examples(suppress=[HealthCheck.function_scoped_fixture])
def test_garbage_is_a_sentence(tmp_path: Path, data: bytes, marked: bool) -> None:
    check_garbage(tmp_path / "x", b"\x7fELF\x02\x01\x01" + data if marked else data)


@given(data=st.data(), bits=st.sampled_from([32, 64]))
@examples(300, suppress=[HealthCheck.function_scoped_fixture])
def test_a_damaged_object_is_a_sentence_or_an_object(tmp_path: Path, data: st.DataObject, bits: int) -> None:
    content = bytearray(elf_object("libx.so.1", needed=("liba.so.2",), bits=bits, abi=(2, 3, 99)))
    for _ in range(data.draw(st.integers(1, 5))):
        where = data.draw(st.integers(0, len(content) - 1))
        content[where] = data.draw(st.integers(0, 255))
    check_garbage(tmp_path / "x", bytes(content[: data.draw(st.integers(1, len(content)))]))
