"""Each promise of docs/threat-model.md names tests that exist; its table has all that vcuda reads.

Its cells are tried in tests/e2e/admission/test_written_fields.py, which takes the table from here.
"""

import ast
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from deviceplugin.model.annotation_names import AnnotationNames
from deviceplugin.model.preferences import FOREIGN

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/threat-model.md").read_text()
NAMED = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")
ATTACKERS = ["Who creates pods", "Who owns a running container", "Who is on the network", "Root on one node"]
WRITERS = ("tenant", "its kubelet", "other kubelet", "its agent", "other agent", "scheduler")


@dataclass(frozen=True, slots=True)
class WrittenField:
    """`writers` may write it when vcuda has read it once."""

    of: str
    name: str
    writers: frozenset[str]
    believed: str


def written_fields() -> list[WrittenField]:
    """The table, one for each name; a cell that is neither yes nor no is an error."""
    section = PAGE.partition("## Who may write what vcuda reads")[2]
    heading, _, *lines = [line for line in section.splitlines() if line.startswith("|")]
    titles = [cell.strip() for cell in heading.strip("|").split("|")]
    assert tuple(titles[2:8]) == WRITERS
    found = []
    for line in lines:
        of, names, *cells, believed = (cell.strip() for cell in line.strip("|").split("|"))
        assert set(cells) <= {"yes", "no"}, line
        writers = frozenset(title for title, cell in zip(WRITERS, cells, strict=True) if cell == "yes")
        found += [WrittenField(of, name, writers, believed) for name in re.findall(r"`([^`]+)`", names)]
    return found


def _promises() -> list[str]:
    lists = re.findall(r"^Promised:\n\n(.+?)\n\n", PAGE, re.M | re.S)
    return [item for each in lists for item in re.split(r"^- ", each, flags=re.M) if item]


@cache
def _tests_of(path: str) -> frozenset[str]:
    tree = ast.parse((ROOT / path).read_text())
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, functions))


def test_every_attacker_is_promised_something() -> None:
    *attackers, table = re.findall(r"^## (.+)", PAGE, re.M)
    assert (attackers, table) == (ATTACKERS, "Who may write what vcuda reads")
    assert len(re.findall(r"^Promised:$", PAGE, re.M)) == len(re.findall(r"^Not promised:$", PAGE, re.M)) == 4
    assert len(_promises()) >= 20


def test_a_promise_names_tests_that_exist() -> None:
    named = {promise: NAMED.findall(promise) for promise in _promises()}
    assert [promise for promise, tests in named.items() if not tests] == []
    tests = dict.fromkeys(each for found in named.values() for each in found)
    assert [f"{path} has no {name}" for path, name in tests if name not in _tests_of(path)] == []


def test_every_annotation_that_vcuda_reads_has_its_row() -> None:
    names = AnnotationNames("")
    ours = {each for value in vars(names).values() for each in ([value] if isinstance(value, str) else value)}
    ours = {each.lstrip("/") for each in ours if each} - {names.gpu_index_prefix.lstrip("/")}
    read = ours | {names.gpu_indices(0).lstrip("/")} | FOREIGN | {"clusterName", "hami.io/device-cordon"}
    listed = [each.name for each in written_fields() if each.of in ("pod", "node", "container")]
    others = [name for name in listed if name.startswith(("label ", "limits ", "status.", "kubernetes.io/"))]
    assert len(listed) == len(set(listed))
    assert set(listed) - set(others) == read


def test_what_decides_who_holds_a_gpu_is_written_by_no_tenant_and_from_no_other_node() -> None:
    names = AnnotationNames("")
    machine_written = {each.lstrip("/") for each in (*names.machine_written, names.gpu_indices(0))}
    for each in written_fields():
        assert not {"other kubelet", "other agent"} & each.writers, each
        assert each.name not in machine_written or "tenant" not in each.writers, each
        assert each.believed
