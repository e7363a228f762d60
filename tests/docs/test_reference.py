"""The reference pages say what the code does."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from deviceplugin.model.annotations import AnnotationNames

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"


def test_the_generated_pages_are_current() -> None:
    command = [sys.executable, "scripts/reference.py", "--check"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (0, "")


def test_every_annotation_is_explained_and_every_explained_one_exists() -> None:
    names = AnnotationNames()
    properties = [name for name in vars(AnnotationNames) if isinstance(vars(AnnotationNames)[name], property)]
    known = {getattr(names, name) for name in properties} | {f"{names.domain}/predicate-gpu-idx-<i>"}
    explained = set(
        re.findall(r"^\| `(tencent\.com/[^`]+)`", (DOCS / "reference/annotations.md").read_text(), re.MULTILINE)
    )
    assert explained == known


@pytest.mark.parametrize("page", sorted(DOCS.rglob("*.md")), ids=lambda page: str(page.relative_to(DOCS)))
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text()):
        assert (page.parent / target).exists(), target


def texts_of_the_code() -> list[str]:
    """Every string of the package, with … where an f-string puts something in."""
    found = []
    for path in (ROOT / "deviceplugin").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.JoinedStr):
                found.append(
                    "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values)
                )
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(node.value)
    return found


def test_every_message_that_is_explained_is_one_that_the_code_can_say() -> None:
    headings = re.findall(r"^### `(.*)`$", (DOCS / "troubleshooting.md").read_text(), re.MULTILINE)
    assert len(headings) > 30
    texts = texts_of_the_code()
    assert [heading for heading in headings if not any(heading in text for text in texts)] == []
