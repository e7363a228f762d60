"""The loader's cache: what ldconfig writes is read as ldconfig itself reads it, and garbage is one sentence."""

import re
import shutil
import struct
import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from deviceplugin.container.driver_mirror.elf import CacheEntry, parse_cache
from deviceplugin.errors import ParseError
from sandbox.driver_root import DriverRoot
from tests.examples import examples

SOURCE = Path("/etc/ld.so.cache")
LDCONFIG = shutil.which("ldconfig", path="/usr/sbin:/sbin:/usr/bin") or "ldconfig"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> DriverRoot:
    """Of an x86_64 node with 32-bit libraries, whatever machine this is."""
    made = DriverRoot(tmp_path_factory.mktemp("root"), machine="x86_64")
    made.install()
    for form in ("new", "compat", "old"):
        made.make_cache("-c", form, "-C", f"/etc/{form}.cache")
    return made


def as_ldconfig_prints_it(cache: Path) -> set[CacheEntry]:
    printed = subprocess.run([LDCONFIG, "-p", "-C", cache], capture_output=True, text=True, check=True).stdout
    lines = re.findall(r"^\t(\S+) \(([^)]*)\) => (\S+)$", printed, re.MULTILINE)
    return {CacheEntry(name, path, 64 if "x86-64" in kind else 32) for name, kind, path in lines}


@pytest.mark.parametrize("form", ["new", "compat"])
def test_both_forms_of_todays_ldconfig_say_what_ldconfig_prints(root: DriverRoot, form: str) -> None:
    cache = root.path / f"etc/{form}.cache"
    entries = parse_cache(cache.read_bytes(), source=cache)
    assert set(entries) == as_ldconfig_prints_it(root.path / "etc/ld.so.cache")
    assert len([each for each in entries if each.bits == 32]) == len([each for each in entries if each.bits == 64]) > 20


def test_the_forms_are_what_their_names_say(root: DriverRoot) -> None:
    begins = {form: (root.path / f"etc/{form}.cache").read_bytes()[:20] for form in ("new", "compat", "old")}
    assert begins["new"] == b"glibc-ld.so.cache1.1"
    assert begins["compat"].startswith(b"ld.so-1.7.0")
    assert begins["old"].startswith(b"ld.so-1.7.0")
    assert b"glibc-ld.so.cache1.1" in (root.path / "etc/compat.cache").read_bytes()
    old = (root.path / "etc/old.cache").read_bytes()
    assert b"glibc-ld.so.cache1.1" not in old
    with pytest.raises(ParseError, match="it has the old form only; run ldconfig"):
        parse_cache(old, source=SOURCE)


def test_the_order_is_the_loaders(root: DriverRoot) -> None:
    """Newest SONAME first, as the loader's binary search wants it: reversed order of versions."""
    cache = root.path / "etc/new.cache"
    names = [each.name for each in parse_cache(cache.read_bytes(), source=cache)]
    assert names == [name for name, _ in re.findall(r"^\t(\S+) \(([^)]*)\)", printed(cache), re.MULTILINE)]


def printed(cache: Path) -> str:
    return subprocess.run([LDCONFIG, "-p", "-C", cache], capture_output=True, text=True, check=True).stdout


def test_the_flags_tell_the_word_size() -> None:
    """x86-64, aarch64, i386, ARM with hard and soft floats; x32 and PowerPC, for which there is no driver."""
    bits = {0x0303: 64, 0x0A03: 64, 0x0003: 32, 0x0903: 32, 0x0B03: 32, 0x0803: 0, 0x0503: 0}
    found = {flags: parse_cache(new_cache((flags, "a", "/lib/a")), source=SOURCE) for flags in bits}
    assert found == {flags: (CacheEntry("a", "/lib/a", each),) for flags, each in bits.items()}


def new_cache(*entries: tuple[int, str, str], order: int = 2) -> bytes:
    """A cache of the new form, written by hand from glibc's description of it."""
    start = 48 + 24 * len(entries)
    table, text = b"", b""
    for flags, name, path in entries:
        first = start + len(text)
        text += name.encode() + b"\0"
        second = start + len(text)
        text += path.encode() + b"\0"
        table += struct.pack("<iIIIQ", flags, first, second, 0, 0)
    head = struct.pack("<20sIIB3xIIII", b"glibc-ld.so.cache1.1", len(entries), len(text), order, 0, 0, 0, 0)
    return head + table + text


def test_behind_an_old_cache_the_new_one_counts_wherever_alignment_puts_it() -> None:
    found = {}
    for shift in range(4):
        old = struct.pack("<11sxI", b"ld.so-1.7.0", shift) + struct.pack("<iII", 3, 0, 0) * shift
        padded = old.ljust(-(-len(old) // 8) * 8, b"\0")
        found[shift] = parse_cache(padded + new_cache((0x0303, "libx.so.1", "/lib/libx.so.1")), source=SOURCE)
    assert found == dict.fromkeys(range(4), (CacheEntry("libx.so.1", "/lib/libx.so.1", 64),))


def test_what_is_wrong_is_said_in_one_sentence(subtests: pytest.Subtests) -> None:
    one = new_cache((0x0303, "a", "b"))
    for data, complaint in (
        (b"", "it begins like none"),
        (b"\x7fELF", "it begins like none"),
        (b"glibc-ld.so.cache1.1", "its header would need 48 bytes and it has 20"),
        (b"ld.so-1.7.0", "its header would need 16 bytes and it has 11"),
        (struct.pack("<11sxI", b"ld.so-1.7.0", 0xFFFFFFFF), "4294967295 entries would need"),
        (one[:60], "1 entries would need 72 bytes and it has 60"),
        (one[:-1], "the text at byte 74 has no end in it"),
        (new_cache((0x0303, "a", "b"), order=3), "it was written for a machine of another byte order"),
    ):
        with subtests.test(complaint=complaint):
            with pytest.raises(ParseError) as caught:
                parse_cache(data, source=SOURCE)
            message = caught.value.message
            assert message.startswith(f"{SOURCE} is no cache of the dynamic loader: {complaint}")
            assert message.endswith("; run ldconfig on the node")
            assert caught.value.__suppress_context__


def check_garbage(data: bytes) -> None:
    """Anything else that is raised fails the test by itself."""
    entries: tuple[CacheEntry, ...] = ()
    sentence = ""
    try:
        entries = parse_cache(data, source=SOURCE)
    except ParseError as error:
        sentence = error.message
    assert "\n" not in sentence
    assert all("\0" not in each.name + each.path for each in entries)


@given(st.sampled_from([b"", b"ld.so-1.7.0\0", b"glibc-ld.so.cache1.1"]), st.binary(max_size=300))
def test_garbage_is_a_sentence_or_entries(head: bytes, rest: bytes) -> None:
    check_garbage(head + rest)


@given(data=st.data(), form=st.sampled_from(["new", "compat", "old"]))
@examples(suppress=[HealthCheck.function_scoped_fixture])
def test_a_damaged_real_cache_is_a_sentence_or_entries(root: DriverRoot, data: st.DataObject, form: str) -> None:
    content = bytearray((root.path / f"etc/{form}.cache").read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        where = data.draw(st.integers(0, min(len(content), 400) - 1))
        content[where : where + 4] = data.draw(st.binary(min_size=4, max_size=4))
    check_garbage(bytes(content[: data.draw(st.integers(0, len(content)))]))


def test_names_that_are_no_text_come_back_as_the_file_system_has_them() -> None:
    data = new_cache((0x0303, "lib?.so", "/lib/lib?.so")).replace(b"?", b"\xff")
    (entry,) = parse_cache(data, source=SOURCE)
    assert entry.path == "/lib/lib\udcff.so"
