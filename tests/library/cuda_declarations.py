"""What our CUDA header and function tables declare, read from their text.

In: library/include/cuda.h and cuda_functions.h, and the emulator's list of what it does not emulate. Out: rows,
constants, types and members by name. Not here: whether they are right (test_cuda_header.py). Invariant: nothing
declared is skipped silently; a line of another shape raises.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from tests.library.machine import EMULATOR, LIBRARY

OURS = LIBRARY / "include"

_ROW = re.compile(r"CUDA\((\w+),\s*(\w+),\s*(\d+),\s*([LT]),\s*(\([^()]*\)),\s*\([^()]*\)\)")
_UNSUPPORTED_ROW = re.compile(r"UNSUPPORTED\((\w+),\s*(\w+),\s*(\d+),\s*([LT])\)")
_OF_THE_THREAD = re.compile(r"_pt[sd][sz]$")


@dataclass(frozen=True, slots=True)
class Row:
    """One function of the table."""

    symbol: str
    base: str
    version: int
    stream: str
    parameters: str

    @property
    def thread(self) -> str:
        """`_ptsz` or `_ptds` where a null stream means the calling thread's own."""
        found = _OF_THE_THREAD.search(self.symbol)
        return found[0] if found else ""

    @property
    def typedef(self) -> str:
        """The name under which cudaTypedefs.h knows this version."""
        return f"PFN_{self.base}_v{self.version}{self.thread}"


def rows() -> list[Row]:
    text = _without_comments((OURS / "cuda_functions.h").read_text())
    found = [Row(symbol, base, int(version), *rest) for symbol, base, version, *rest in _ROW.findall(text)]
    assert not _ROW.sub("", text).strip(), "a row of another shape"
    return found


def unsupported() -> list[Row]:
    """What the emulator exports and does not emulate; its list has no signatures."""
    text = _without_comments((EMULATOR / "cuda/unsupported_functions.h").read_text())
    cells = _UNSUPPORTED_ROW.findall(text)
    assert not _UNSUPPORTED_ROW.sub("", text).strip(), "a row of another shape"
    return [Row(symbol, base, int(version), stream, "") for symbol, base, version, stream in cells]


def constants() -> list[str]:
    """Every enumerator and every number that our header defines."""
    text = _header()
    bodies = re.findall(r"enum \w+ \{(.*?)\}", text, flags=re.DOTALL)
    enumerators = [name for body in bodies for name in re.findall(r"\b(CU\w+) =", body)]
    assert len(enumerators) == sum(body.count(",") + 1 for body in bodies), "an enumerator without a number"
    return sorted({*enumerators, *re.findall(r"^#define (CU(?:DA)?_\w+) ", text, flags=re.MULTILINE)})


def types() -> list[str]:
    """Every type that our header completes; incomplete structs have no size."""
    text = _header()
    completed = [name for _, names in _bodies(text) for name in names]
    enums = re.findall(r"typedef enum \w+ \{[^}]*\} (\w+);", text)
    plain = re.findall(
        r"typedef (?:int|uint32_t|unsigned (?:int|long long)|struct \w+ \*|(?:void|CUresult) \(\*)\s*(\w+)\b", text
    )
    incomplete = re.findall(r"^typedef (?:struct|union) \w+ (\w+);", text, flags=re.MULTILINE)
    found = [*completed, *enums, *plain]
    assert len(found) + len(incomplete) == text.count("typedef ") + _second_names(text), "a typedef of another shape"
    return found


def members() -> list[tuple[str, str]]:
    """Type and member, `outer.inner` in a nested struct; what we call `unnamed` has no one name in the real headers."""
    return [
        (names[0], member) for body, names in _bodies(_header()) for member in _members(body) if member != "unnamed"
    ]


def _header() -> str:
    return _without_comments((OURS / "cuda.h").read_text())


def _without_comments(text: str) -> str:
    return re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)


def _bodies(text: str) -> list[tuple[str, list[str]]]:
    found = re.findall(r"typedef (?:struct|union) \w+ \{((?:[^{}]|\{[^{}]*\})*)\} ([\w, ]+);", text)
    return [(body, names.split(", ")) for body, names in found]


def _second_names(text: str) -> int:
    return sum(len(names) - 1 for _, names in _bodies(text))


def _members(body: str) -> Iterator[str]:
    body = re.sub(r"union \{([^{}]*)\};", r"\1", body)  # one without a name: its members are the outer type's
    nested = r"struct \{([^{}]*)\} ([\w, ]+);"
    for inner, names in re.findall(nested, body):
        for name in names.split(", "):
            yield name
            yield from (f"{name}.{member}" for member in _members(inner))
    for declaration in re.sub(nested, "", body).split(";"):
        for declarator in filter(None, map(str.strip, declaration.split(","))):
            found = re.search(r"(\w+)(?:\[[^\]]*\])?$", declarator)
            assert found, f"a member of another shape: {declarator}"
            yield found[1]
