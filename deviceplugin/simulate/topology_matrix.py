"""Reads the matrix of `nvidia-smi topo -m` into a topology.

In: its text, with or without the escapes of a terminal, network cards and a legend, as people paste it: with the
command before it, in a Markdown fence, quoted. Out: a `Topology` whose minors are the numbers of the GPU columns.
Network cards, affinity columns, the legend and what stands around the matrix are not read. Anything else is a
ParseError that names line, column and text.
"""

import re
from collections.abc import Iterator
from itertools import combinations, product, takewhile

import msgspec

from deviceplugin.errors import ParseError
from deviceplugin.model.topology import Level, Link, Topology

_ESCAPE = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_GPU = re.compile(r"GPU([0-9]{1,4})")
_NVLINK = re.compile(r"NV([0-9]{1,3})")
_SELF = "X"
# SOC is what drivers before 375 print; it names the level that NVML calls CPU, today NODE.
_LEVELS = {
    "PIX": Level.PIX,
    "PXB": Level.PXB,
    "PHB": Level.PHB,
    "NODE": Level.NODE,
    "SOC": Level.NODE,
    "SYS": Level.SYS,
}
_AFFINITY = {"CPU", "NUMA", "GPU"}  # first words of "CPU Affinity", "NUMA Affinity", "GPU NUMA ID"
_LEGEND = ("Legend:", "NIC Legend:")


class _MatrixRow(msgspec.Struct, frozen=True):
    """The words of one line that is not blank; `number` counts all lines from 1."""

    number: int
    words: tuple[str, ...]

    def cell(self, cards: tuple[str, ...], column: str) -> str:
        cells = self.words[1:]
        if len(cells) < len(cards):
            raise ParseError(
                f"line {self.number}, column {cards[len(cells)]}: the cell is missing; the row {self.words[0]} ends "
                f"after {len(cells)} of {len(cards)} cells"
            )
        return cells[cards.index(column)]


def parse_matrix(text: str, *, source: str = "topology") -> Topology:
    """`source` names the text in errors, for example its path."""
    try:
        return _parse(text)
    except ParseError as error:
        raise ParseError(f"{source}: {error.message}") from None


def _parse(text: str) -> Topology:
    lines = list(_lines(text))
    if not lines:
        raise ParseError("it is empty; expected the output of `nvidia-smi topo -m`")
    start = next((at for at, line in enumerate(lines) if any(map(_GPU.fullmatch, line.words))), 0)
    cards = _header(lines[start])
    rows: dict[str, _MatrixRow] = {}
    for line in lines[start + 1 :]:
        name = line.words[0]
        if rows.keys() >= _gpus(cards).keys() and not (name in cards or name.startswith("GPU")):
            break
        if name not in cards:
            raise ParseError(f"line {line.number}: {_shown(name)} is not a row of this matrix; it has {_some(cards)}")
        if name in rows:
            raise ParseError(f"line {line.number}: a second row for {name}")
        rows[name] = line
    return _topology(cards, rows)


def _lines(text: str) -> Iterator[_MatrixRow]:
    """The lines before the legend."""
    for number, line in enumerate(_ESCAPE.sub("", text).splitlines(), start=1):
        if line.strip().startswith(_LEGEND):
            return
        if words := tuple(line.lstrip("> \t").split()):
            yield _MatrixRow(number, words)


def _header(line: _MatrixRow) -> tuple[str, ...]:
    cards = tuple(takewhile(lambda word: word not in _AFFINITY, line.words))
    gpus = _gpus(cards)
    if not gpus:
        raise ParseError(f"line {line.number}: {_shown(' '.join(line.words))} is not a header with GPU0, GPU1, ...")
    for at, card in enumerate(cards):
        if card.startswith("GPU") and card not in gpus:
            raise ParseError(f"line {line.number}, column {at + 1}: {_shown(card)} is not the number of a GPU")
        if card in cards[:at]:
            raise ParseError(f"line {line.number}, column {at + 1}: {_shown(card)} is listed twice")
    if len(set(gpus.values())) < len(gpus):
        raise ParseError(f"line {line.number}: two columns have the same GPU number; it has {_some(tuple(gpus))}")
    return cards


def _gpus(cards: tuple[str, ...]) -> dict[str, int]:
    return {card: int(found[1]) for card in cards if (found := _GPU.fullmatch(card))}


def _topology(cards: tuple[str, ...], rows: dict[str, _MatrixRow]) -> Topology:
    gpus = _gpus(cards)
    for one in gpus:
        if one not in rows:
            raise ParseError(f"there is a column {one} but no row for it")
    cells = {(one, other): rows[one].cell(cards, other) for one, other in product(gpus, repeat=2)}
    found = {(one, other): _link(rows[one], other, text) for (one, other), text in cells.items()}
    for one, other in combinations(gpus, 2):
        if found[one, other] != found[other, one]:
            raise ParseError(
                f"line {rows[other].number}, column {one}: {_shown(cells[other, one])}, but line {rows[one].number}, "
                f"column {other} says {_shown(cells[one, other])} for the same pair"
            )
    links = {(gpus[one], gpus[other]): link for (one, other), link in found.items() if link is not None}
    return Topology(minors=tuple(sorted(gpus.values())), links=links)


def _link(row: _MatrixRow, column: str, text: str) -> Link | None:
    """None for a GPU with itself."""
    own = row.words[0] == column
    if own != (text.upper() == _SELF):
        must = f"only {_SELF}" if own else "the link of two different cards"
        raise ParseError(f"line {row.number}, column {column}: {_shown(text)} instead of {must}")
    if own:
        return None
    if text in _LEVELS:
        return Link(_LEVELS[text])
    if (found := _NVLINK.fullmatch(text)) and int(found[1]):
        return Link(level=None, nvlinks=int(found[1]))
    raise ParseError(
        f"line {row.number}, column {column}: {_shown(text)} is not a link; known: X, NV and a number, "
        f"{', '.join(_LEVELS)}"
    )


def _shown(text: str) -> str:
    return repr(text if len(text) <= 40 else f"{text[:40]}…")


def _some(cards: tuple[str, ...]) -> str:
    return ", ".join([*(card[:20] for card in cards[:8]), *(["..."] if len(cards) > 8 else [])])
