"""The profile's JSON reader accepts what JSON is, refuses everything else with a place, and reads what Python reads."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from tests.examples import examples

pytestmark = pytest.mark.thorough

Json = Any  # whatever a document may hold

_MAX_DEPTH = 16
_WHOLE = range(-(1 << 63), 1 << 63)
_RELAXED = examples(300, suppress=[HealthCheck.function_scoped_fixture])


class Reader:
    """The reader at the end of a pipe; its answer for one document after another."""

    def __init__(self, program: Path) -> None:
        self.process = subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def read(self, document: bytes) -> str:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(b"%d\n" % len(document) + document)
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        assert line.endswith(b"\n"), f"the reader died of {document!r}"
        return line[:-1].decode()


@pytest.fixture
def reader(json_dump: Path) -> Iterator[Reader]:
    one = Reader(json_dump)
    yield one
    assert one.process.stdin is not None
    assert one.process.stdout is not None
    one.process.stdin.close()
    one.process.stdout.close()
    assert one.process.wait(timeout=10) == 0


class Number(str):
    """A number as it was written."""


class RefusalError(Exception):
    """Python's reader with the same limits says no."""


def _members(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    if len(dict(pairs)) != len(pairs):
        raise RefusalError("twice")
    return dict(pairs)


def _constant(name: str) -> None:
    raise RefusalError(name)


def _text(value: str) -> str:
    if "\0" in value or any("\ud800" <= character <= "\udfff" for character in value):
        raise RefusalError("text")
    return '"' + value.encode().hex()


def _canonical(value: Json, depth: int = 0) -> str:
    if value is None:
        return "n"
    if isinstance(value, bool):
        return "t" if value else "f"
    if isinstance(value, Number):
        whole = value.lstrip("-").isdigit() and int(value) in _WHOLE
        return str(int(value)) if whole else "r"
    if isinstance(value, str):
        return _text(value)
    if value and depth == _MAX_DEPTH:
        raise RefusalError("deep")
    if isinstance(value, list):
        return "[" + "".join(_canonical(one, depth + 1) + "," for one in value) + "]"
    return "{" + "".join(f"{_text(key)}:{_canonical(one, depth + 1)}," for key, one in value.items()) + "}"


def _python(document: bytes) -> str | None:
    """What Python makes of it; None where it is not JSON."""
    try:
        value = json.loads(
            document.decode("utf-8"),
            object_pairs_hook=_members,
            parse_constant=_constant,
            parse_int=Number,
            parse_float=Number,
        )
        return _canonical(value)
    except (ValueError, RefusalError, RecursionError):
        return None


def _agree(reader: Reader, document: bytes) -> None:
    ours, theirs = reader.read(document), _python(document)
    if theirs is None:
        place, _, cause = ours[1:].partition(": ")
        assert ours.startswith("!"), f"accepted {document!r}"
        line, column = (int(part) for part in place.split(":"))
        assert 1 <= line <= document.count(b"\n") + 1
        assert 1 <= column <= len(document) + 1
        assert cause
    else:
        assert ours == theirs


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=20),
    lambda children: st.lists(children, max_size=5) | st.dictionaries(st.text(max_size=8), children, max_size=5),
    max_leaves=20,
)


@_RELAXED
@given(value=_VALUES, indent=st.sampled_from([None, 0, 2]), ascii_only=st.booleans())
def test_what_python_writes_is_read_as_python_reads_it(
    reader: Reader, value: Json, indent: int | None, ascii_only: bool
) -> None:
    text = json.dumps(value, indent=indent, ensure_ascii=ascii_only)
    _agree(reader, text.encode("utf-8", "surrogatepass"))


@_RELAXED
@given(value=_VALUES, data=st.data())
def test_a_document_with_a_wound_is_refused_or_still_the_same_json(
    reader: Reader, value: Json, data: st.DataObject
) -> None:
    document = bytearray(json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass"))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(document)))
        end = data.draw(st.integers(at, min(at + 3, len(document))))
        document[at:end] = data.draw(
            st.binary(max_size=3) | st.sampled_from([b'"', b"\\", b"{", b"]", b",", b"-", b"1e"])
        )
    _agree(reader, bytes(document))


@_RELAXED
@given(document=st.binary(max_size=60) | st.text('{}[]",:\\u0dD8eE+-.truefalsn \n1', max_size=60).map(str.encode))
def test_noise_is_refused_with_a_place(reader: Reader, document: bytes) -> None:
    _agree(reader, document)


def test_each_fault_says_where_and_what(reader: Reader) -> None:
    faults = {
        "": "1:1: the text ends where a value should stand",
        '{"a": 1, "a": 2}': '1:10: the key "a" stands here twice (first in line 1)',
        '{\n "a" 1}': "2:6: expected ':' after the key",
        "[1,\n2": "2:2: expected ',' or ']'",
        "[1] 2": "1:5: something follows the document",
        "[01]": "1:2: a number must not start with 0",
        "[1.]": "1:4: expected a digit after the point",
        "[1e]": "1:4: expected a digit in the exponent",
        "[-]": "1:3: expected a digit",
        "nul": "1:1: expected a value",
        '"\\ud800"': "1:8: half a surrogate pair",
        '"\\u0000"': "1:8: a NUL character is not allowed",
        '"\\x"': "1:3: unknown escape",
        '"a\tb"': "1:3: a control character must be escaped",
        '"abc': "1:5: the string has no end",
    }
    told = {document: reader.read(document.encode()) for document in faults}
    assert told == {document: "!" + fault for document, fault in faults.items()}


def test_the_bounds_hold_exactly(reader: Reader) -> None:
    assert reader.read(b"[" * 17 + b"]" * 17).startswith("[")
    assert "nested too deep" in reader.read(b"[" * 18 + b"]" * 18)
    assert "nested too deep" in reader.read(b"[" * 100_000)
    members = ",".join(f'"{i}":1' for i in range(257))
    assert "too many members" in reader.read(b"{" + members.encode() + b"}")
    assert not reader.read(b"[" + b"1," * 65534 + b"1]").startswith("!")
    assert "too many values" in reader.read(b"[" + b"1," * 65535 + b"1]")
    assert not reader.read(b" " * ((1 << 20) - 1) + b"1").startswith("!")
    assert "larger than" in reader.read(b" " * (1 << 20) + b"1")
