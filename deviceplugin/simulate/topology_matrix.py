"""The matrix that `nvidia-smi topo -m` prints, read back into a topology.

In: its text, with the escapes of a terminal, with columns and rows of network cards, with a legend, or without. Out: a
`Topology` whose minors are the numbers of the GPU columns. Network cards are checked and left out; affinity columns
and the legend are not read. Anything else is a ParseError that names line, column and text.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations, takewhile

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


@dataclass(frozen=True, slots=True)
class _Line:
    """One line that is not blank, cut into words; `number` counts from 1, blank ones included."""

    number: int
    words: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Cell:
    """What the matrix says of one pair, in one direction; the link is None where a card meets itself."""

    line: int
    text: str
    link: Link | None


def parse_matrix(text: str, *, source: str = "topology") -> Topology:
    """`source` names the text in errors, by its path where it has one."""
    try:
        return _parse(text)
    except ParseError as error:
        raise ParseError(f"{source}: {error.message}") from None


def _parse(text: str) -> Topology:
    lines = list(_lines(text))
    if not lines:
        raise ParseError("it is empty, not what `nvidia-smi topo -m` prints")
    cards = _header(lines[0])
    cells: dict[tuple[str, str], _Cell] = {}
    for line in lines[1:]:
        row = _row(line, cards)
        if any((line.words[0], card) in cells for card in cards):
            raise ParseError(f"line {line.number}: a second row for {line.words[0]}")
        cells |= {(line.words[0], card): cell for card, cell in zip(cards, row, strict=True)}
    return _topology(cards, cells)


def _lines(text: str) -> Iterator[_Line]:
    """Up to the legend."""
    for number, line in enumerate(_ESCAPE.sub("", text).splitlines(), start=1):
        if line.strip().startswith(_LEGEND):
            return
        if words := tuple(line.split()):
            yield _Line(number, words)


def _header(line: _Line) -> tuple[str, ...]:
    cards = tuple(takewhile(lambda word: word not in _AFFINITY, line.words))
    gpus = _gpus(cards)
    if not gpus:
        raise ParseError(f"line {line.number}: {_shown(' '.join(line.words))} is no header that names GPU0, GPU1, ...")
    for at, card in enumerate(cards):
        if card.startswith("GPU") and card not in gpus:
            raise ParseError(f"line {line.number}, column {at + 1}: {_shown(card)} is no GPU's number")
        if card in cards[:at]:
            raise ParseError(f"line {line.number}, column {at + 1}: {_shown(card)} stands here twice")
    if len(set(gpus.values())) < len(gpus):
        raise ParseError(f"line {line.number}: two columns have the same GPU number; it has {_some(tuple(gpus))}")
    return cards


def _gpus(cards: tuple[str, ...]) -> dict[str, int]:
    return {card: int(found[1]) for card in cards if (found := _GPU.fullmatch(card))}


def _row(line: _Line, cards: tuple[str, ...]) -> list[_Cell]:
    name, *texts = line.words
    if name not in cards:
        raise ParseError(f"line {line.number}: {_shown(name)} is no row of this matrix; it has {_some(cards)}")
    if len(texts) < len(cards):
        raise ParseError(
            f"line {line.number}, column {cards[len(texts)]}: nothing stands here; the row {name} ends after "
            f"{len(texts)} of {len(cards)} cells"
        )
    return [_cell(line.number, name, card, text) for card, text in zip(cards, texts, strict=False)]


def _cell(line: int, row: str, column: str, text: str) -> _Cell:
    if (row == column) != (text == _SELF):
        must = f"only {_SELF}" if row == column else "the link of two different cards"
        raise ParseError(f"line {line}, column {column}: {_shown(text)} where {must} can stand")
    if text == _SELF:
        return _Cell(line, text, None)
    if text in _LEVELS:
        return _Cell(line, text, Link(_LEVELS[text]))
    if (found := _NVLINK.fullmatch(text)) and int(found[1]):
        return _Cell(line, text, Link(level=None, nvlinks=int(found[1])))
    raise ParseError(
        f"line {line}, column {column}: {_shown(text)} is no link; known are X, NV and a number, {', '.join(_LEVELS)}"
    )


def _topology(cards: tuple[str, ...], cells: dict[tuple[str, str], _Cell]) -> Topology:
    gpus = _gpus(cards)
    links: dict[tuple[int, int], Link] = {}
    for one in gpus:
        if (one, one) not in cells:
            raise ParseError(f"there is a column {one} but no row for it")
    for one, other in combinations(gpus, 2):
        there, back = cells[one, other], cells[other, one]
        if there.link is None or there.link != back.link:
            raise ParseError(
                f"line {back.line}, column {one}: {_shown(back.text)}, but line {there.line}, column {other} says "
                f"{_shown(there.text)} of the same two"
            )
        links[gpus[one], gpus[other]] = there.link
    return Topology(minors=tuple(sorted(gpus.values())), links=links)


def _shown(text: str) -> str:
    return repr(text if len(text) <= 40 else f"{text[:40]}…")


def _some(cards: tuple[str, ...]) -> str:
    return ", ".join([*(card[:20] for card in cards[:8]), *(["..."] if len(cards) > 8 else [])])
