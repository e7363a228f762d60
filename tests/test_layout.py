"""What keeps the product readable, counted: sizes of modules, names of classes, docstrings, references."""

import ast
import re
import sys
from collections import defaultdict
from graphlib import TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PRODUCT = sorted(path for path in (ROOT / "deviceplugin").rglob("*.py") if "wire" not in path.parts)
MOST_LINES = 500
MOST_MODULES = 247
MOST_NAMES_TWICE = 14
_OUTSIDE = re.compile(r"\((?:design|research) \d|shared/(?:design|research)|findings-")


def classes() -> dict[str, list[Path]]:
    found: dict[str, list[Path]] = defaultdict(list)
    for path in PRODUCT:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                found[node.name].append(path)
    return found


def test_there_are_few_modules_and_none_is_long() -> None:
    assert len(PRODUCT) <= MOST_MODULES
    assert [path.name for path in PRODUCT if len(path.read_text().splitlines()) > MOST_LINES] == []


def imports(path: Path) -> set[str]:
    """The modules of the product that are imported with this one."""
    found: set[str] = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{each.name}" for each in node.names)}
    return found


def test_no_imports_go_round_in_a_circle() -> None:
    """Within a package too, where the layers of pyproject.toml say nothing: who reads one of them must read all."""
    modules = {".".join(path.relative_to(ROOT).with_suffix("").parts): path for path in PRODUCT}
    graph = {name: imports(path) & modules.keys() for name, path in modules.items()}
    assert len(graph) > 200
    TopologicalSorter(graph).prepare()


def test_every_module_says_what_it_is_for() -> None:
    assert [path for path in PRODUCT if ast.get_docstring(ast.parse(path.read_text())) is None] == []


def test_a_class_name_stands_once_in_a_package_and_rarely_twice_in_the_product() -> None:
    twice = {name: paths for name, paths in classes().items() if len(paths) > 1}
    assert len(twice) <= MOST_NAMES_TWICE, sorted(twice)
    packages = {
        name: [path.relative_to(ROOT / "deviceplugin").parts[0] for path in paths] for name, paths in twice.items()
    }
    assert {name: found for name, found in packages.items() if len(set(found)) < len(found)} == {}


def texts(*folders: str) -> list[Path]:
    """The source files below these folders, without what is built."""
    kinds = {".py", ".c", ".h", ".md", ".yaml", ".toml", ".proto", ".def", ""}
    found = (path for folder in folders for path in (ROOT / folder).rglob("*"))
    own = (path for path in found if not {"build", "__pycache__", "node_modules"} & set(path.parts))
    return [path for path in own if path.suffix in kinds and path.is_file()]


PARTS = ("deviceplugin", "sandbox", "library", "emulator", "scripts", "daemonset", "docs")


def test_nothing_refers_to_documents_outside_of_the_repository() -> None:
    found = texts(*PARTS, "benchmarks")
    assert [path for path in found if _OUTSIDE.search(path.read_text(errors="replace"))] == []


_REPLACED = re.compile(r"\b(ghosts?|wish(es)?|hurry|told of|whoever|anew|the lineage)\b", re.IGNORECASE)


def test_no_word_is_used_that_the_glossary_replaced() -> None:
    found = [path for path in texts(*PARTS, "proto", "tests") if path != Path(__file__)]
    assert [path for path in found if _REPLACED.search(path.read_text(errors="replace"))] == []


def test_every_rule_that_the_product_switches_off_has_its_reason_beside_it() -> None:
    bare = re.compile(r"# noqa: [A-Z0-9, ]+$", re.MULTILINE)
    assert [path for path in (ROOT / "deviceplugin").rglob("*.py") if bare.search(path.read_text())] == []


def test_nothing_is_raised_inside_except_star() -> None:
    """Before Python 3.11.4 it comes out in a group (cpython#103590); `errors.first_error` is the way."""
    stars = {
        path: node
        for path in PRODUCT
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.TryStar)
    }
    raising = [path for path, star in stars.items() if any(isinstance(node, ast.Raise) for node in ast.walk(star))]
    assert raising == []


def _is_run(path: Path) -> bool:
    return '__name__ == "__main__"' in path.read_text()


def test_what_lies_beside_a_file_that_is_run_has_no_name_of_the_standard_library() -> None:
    """Python looks into the file's own folder first, so `import operator` would find `operator.py` there."""
    folders = {
        path.parent
        for part in ("benchmarks", "scripts", "sandbox", "tests")
        for path in (ROOT / part).rglob("*.py")
        if _is_run(path)
    }
    assert {"benchmarks", "scripts"} <= {folder.name for folder in folders}
    beside = [path for folder in folders for path in folder.iterdir() if path.is_dir() or path.suffix == ".py"]
    assert [path for path in beside if path.stem in sys.stdlib_module_names] == []
