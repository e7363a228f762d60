"""Each promise of docs/threat-model.md names tests, and these exist."""

import ast
import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/threat-model.md").read_text()
NAMED = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")


def _promises() -> list[str]:
    lists = re.findall(r"^Promised:\n\n(.+?)\n\n", PAGE, re.M | re.S)
    return [item for each in lists for item in re.split(r"^- ", each, flags=re.M) if item]


@cache
def _tests_of(path: str) -> frozenset[str]:
    tree = ast.parse((ROOT / path).read_text())
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, functions))


def test_every_attacker_is_promised_something() -> None:
    assert len(re.findall(r"^## ", PAGE, re.M)) == len(re.findall(r"^Promised:$", PAGE, re.M)) == 5
    assert len(_promises()) >= 20


def test_a_promise_names_tests_that_exist() -> None:
    named = {promise: NAMED.findall(promise) for promise in _promises()}
    assert [promise for promise, tests in named.items() if not tests] == []
    tests = dict.fromkeys(each for found in named.values() for each in found)
    assert [f"{path} has no {name}" for path, name in tests if name not in _tests_of(path)] == []
