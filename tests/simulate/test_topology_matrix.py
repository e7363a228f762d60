"""`nvidia-smi topo -m` as drivers print it, and what is said of text that is something else."""

from contextlib import suppress
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deviceplugin.errors import ParseError
from deviceplugin.model.topology import Level, Link, Topology
from deviceplugin.simulate.topology_matrix import parse_matrix
from tests.refusals import refusal

TODAY = (
    "\t\x1b[4mGPU0\tGPU1\tGPU2\tGPU3\tNIC0\tNIC1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m\n"
    "GPU0\t X \tNV12\tSYS\tSYS\tPXB\tSYS\t0-15,32-47\t0\t\tN/A\n"
    "GPU1\tNV12\t X \tSYS\tSYS\tPHB\tSYS\t0-15,32-47\t0\t\tN/A\n"
    "GPU2\tSYS\tSYS\t X \tPIX\tSYS\tNODE\t16-31,48-63\t1\t\tN/A\n"
    "GPU3\tSYS\tSYS\tPIX\t X \tSYS\tNODE\t16-31,48-63\t1\t\tN/A\n"
    "NIC0\tPXB\tPHB\tSYS\tSYS\t X \tSYS\t\t\t\t\n"
    "NIC1\tSYS\tSYS\tNODE\tNODE\tSYS\t X \t\t\t\t\n"
    "\n"
    "Legend:\n"
    "\n"
    "  X    = Self\n"
    "  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes (e.g., QPI/UPI)\n"
    "\n"
    "NIC Legend:\n"
    "\n"
    "  NIC0: mlx5_0\n"
)
OLD = """
        GPU0    GPU1    GPU2    mlx5_0  CPU Affinity
GPU0     X      PIX     SOC     PHB     0-7,16-23
GPU1    PIX      X      SOC     PHB     0-7,16-23
GPU2    SOC     SOC      X      SOC     8-15,24-31
mlx5_0  PHB     PHB     SOC      X

Legend:
  X   = Self
  SOC = Path traverses a socket-level link (e.g. QPI)
"""
NV12, PIX, NODE, SYS = Link(None, nvlinks=12), Link(Level.PIX), Link(Level.NODE), Link(Level.SYS)


def test_a_matrix_is_read() -> None:
    cases: dict[str, tuple[str, tuple[int, ...], dict[tuple[int, int], Link]]] = {
        "today's, with network cards, affinities, legends and a header underlined for a terminal": (
            TODAY,
            (0, 1, 2, 3),
            {**dict.fromkeys(combinations(range(4), 2), SYS), (0, 1): NV12, (2, 3): PIX},
        ),
        "one of 2016, aligned with spaces": (OLD, (0, 1, 2), {(0, 1): PIX, (0, 2): NODE, (1, 2): NODE}),
        "a single GPU": ("\tGPU0\tCPU Affinity\nGPU0\t X \t0-11\n", (0,), {}),
        "nothing but the matrix": ("GPU0\nGPU0 X", (0,), {}),
        "in lower case, as in gpu-manager's tests": ("GPU0\nGPU0 x", (0,), {}),
        "gaps, in any order": ("GPU5 GPU2\nGPU5 X NV1\nGPU2 NV1 X", (2, 5), {(2, 5): Link(None, 1)}),
        "rows in another order, CRLF": ("GPU0 GPU1\r\nGPU1 PIX X\r\nGPU0 X PIX\r\n", (0, 1), {(0, 1): PIX}),
    }
    expected = {name: Topology(minors, links) for name, (_, minors, links) in cases.items()}
    assert {name: parse_matrix(text) for name, (text, *_) in cases.items()} == expected


def test_an_error_names_line_column_and_text() -> None:
    cases = {
        "": ["it is empty"],
        " \n\n": ["it is empty"],
        "Legend:\n X = Self": ["it is empty"],
        "nvidia-smi: command not found": ["line 1", "'nvidia-smi: command not found'", "not a header"],
        "NIC0\nNIC0 X": ["line 1", "not a header"],
        "GPU0 GPU1\nGPU0 X FOO\nGPU1 PIX X": ["line 2, column GPU1", "'FOO'", "NODE"],
        "\n\nGPU0 GPU1\nGPU0 X PIX\n\nGPU1 NVX X": ["line 6, column GPU0", "'NVX'"],
        "GPU0 GPU1\nGPU0 X NV0\nGPU1 NV0 X": ["line 2, column GPU1", "'NV0'"],
        "GPU0 GPU1\nGPU0 X X\nGPU1 PIX X": ["line 2, column GPU1", "'X'", "two different cards"],
        "GPU0 GPU1\nGPU0 PIX PIX\nGPU1 PIX X": ["line 2, column GPU0", "'PIX'", "only X"],
        "GPU0 GPU1\nGPU0 X PIX\nGPU1 PXB X": ["line 3, column GPU0", "'PXB'", "line 2, column GPU1", "'PIX'"],
        "GPU0 GPU1\nGPU0 X PIX": ["column GPU1", "no row"],
        "GPU0 GPU1\nGPU0 X PIX\nGPU1 PIX": ["line 3, column GPU1", "the cell is missing", "after 1 of 2"],
        "GPU0 GPU1\nGPU0 X PIX\nGPU0 X PIX": ["line 3", "second row for GPU0"],
        "GPU0\nGPU0 X\nGPU7 X": ["line 3", "'GPU7'", "not a row of this matrix"],
        "GPU0 GPU0\nGPU0 X PIX": ["line 1, column 2", "'GPU0'", "twice"],
        "GPU0 GPU1.0\nGPU0 X PIX": ["line 1, column 2", "'GPU1.0'", "not the number of a GPU"],
        "GPU0 GPU00\nGPU0 X PIX\nGPU00 PIX X": ["line 1", "same GPU number"],
        "GPU0\nGPU0 " + "Y" * 5000: ["line 2, column GPU0", "'" + "Y" * 40 + "…'"],
    }
    said = {text: refusal(ParseError, parse_matrix, text, source="topo.txt") for text in cases}
    assert [each for each in said.values() if not (each.startswith("topo.txt: ") and len(each) < 250)] == []
    assert [each for each in said.values() if "\n" in each] == []
    assert [said[text] for text, words in cases.items() if not all(word in said[text] for word in words)] == []


@st.composite
def matrices(draw: st.DrawFn) -> tuple[str, Topology]:
    """What nvidia-smi would print of a topology, some columns of network cards included."""
    minors = sorted(draw(st.sets(st.integers(0, 999), min_size=1, max_size=8)))
    cards = [f"GPU{minor}" for minor in minors] + [f"NIC{at}" for at in range(draw(st.integers(0, 2)))]
    words = st.sampled_from(["PIX", "PXB", "PHB", "NODE", "SYS"]) | st.integers(1, 18).map("NV{}".format)
    texts = {pair: draw(words) for pair in combinations(range(len(cards)), 2)}
    separator = draw(st.sampled_from(["\t", "   "]))
    lines = [separator.join(["", *cards, "CPU Affinity", "NUMA Affinity"])]
    for row, card in enumerate(cards):
        cells = [" X " if row == at else texts[min(row, at), max(row, at)] for at in range(len(cards))]
        lines.append(separator.join([card, *cells, *(["0-7", "0"] if card.startswith("GPU") else [])]))
    links = {
        (minors[a], minors[b]): Link(None, int(text[2:])) if text.startswith("NV") else Link(Level[text])
        for (a, b), text in texts.items()
        if b < len(minors)
    }
    return "\n".join(lines), Topology(tuple(minors), links)


PASTED = " \tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \tPHB\t0-7\nGPU1\tPHB\t X \t0-7\n"


def test_what_stands_around_a_pasted_matrix_is_not_read(subtests: pytest.Subtests) -> None:
    around = {
        "a prompt": f"root@node2:~# nvidia-smi topo -m\n{PASTED}root@node2:~# \n",
        "a fence": f"```text\n{PASTED}```\n",
        "a fence of tildes, and a sentence": f"On the node it says:\n~~~\n{PASTED}~~~\nSo what now?\n",
        "a quotation": "".join(f"> {line}\n" for line in PASTED.splitlines()),
        "a quotation of a quotation": "".join(f">> {line}\n" for line in PASTED.splitlines()),
        "kubectl's words": f'Defaulted container "a" out of: a, b\n{PASTED}',
    }
    for name, text in around.items():
        with subtests.test(around=name):
            assert parse_matrix(text) == parse_matrix(PASTED)


@given(drawn=matrices())
def test_what_is_printed_of_a_topology_is_read_back(drawn: tuple[str, Topology]) -> None:
    text, topology = drawn
    assert parse_matrix(text) == topology


PIECES = st.sampled_from(
    ["GPU0", "GPU1", "GPU999999", "NIC0", "X", "PIX", "NV", "NV4", "NV9999", "\t", "\n", "Legend:", "\x1b[4m", "CPU"]
)


@given(text=st.lists(PIECES, max_size=30).map(" ".join) | st.text(max_size=60))
def test_any_text_is_a_matrix_or_a_parse_error_of_one_line(text: str) -> None:
    assert refusal(ParseError, parse_matrix, text).isprintable()


@given(drawn=matrices(), data=st.data())
def test_a_matrix_with_a_word_changed_is_refused_or_still_has_its_gpus(
    drawn: tuple[str, Topology], data: st.DataObject
) -> None:
    text, topology = drawn
    at = data.draw(st.integers(0, len(text) - 1))
    with suppress(ParseError):
        found = parse_matrix(text[:at] + data.draw(st.sampled_from("XGN 0\t\n~")) + text[at + 1 :])
        assert len(found.minors) <= len(topology.minors) + 1
