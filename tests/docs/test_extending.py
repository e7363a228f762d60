"""docs/extending.md, followed literally: its blocks of code are put where it says, and the tests that it names pass.

In: the page; a clone of the tree under test. What the page leaves to the reader ("in the order of the code") is done
here.
"""

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent, indent

import pytest

from tests.programs import helm_program
from tests.scripts.released import ROOT, clone

pytestmark = pytest.mark.timeout(900)

PAGE = ROOT / "docs/extending.md"
_BLOCK = re.compile(r"^( *)```(?:python|c|diff|yaml|json)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class Recipe:
    """A section of the page: its blocks in their order, and a tree that may be changed."""

    blocks: tuple[str, ...]
    tree: Path

    def put(self, block: int, file: str, anchor: str, *, before: bool = False, depth: int = 0) -> None:
        """Beside the first line that begins so, as deep as that, or so many blanks less or more."""
        path = self.tree / file
        lines = path.read_text().splitlines(keepends=True)
        at = next(number for number, line in enumerate(lines) if line.lstrip().startswith(anchor))
        blanks = len(lines[at]) - len(lines[at].lstrip()) + depth
        lines.insert(at + (not before), indent(self.blocks[block], " " * blanks))
        path.write_text("".join(lines))

    def run(self, *words: str) -> None:
        """A module of Python in the tree, which is imported from there."""
        environment = {**os.environ, "PYTHONPATH": str(self.tree)}
        environment = {name: value for name, value in environment.items() if not name.startswith("PYTEST_")}
        done = subprocess.run(
            [sys.executable, "-m", *words], cwd=self.tree, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, (done.stdout + done.stderr)[-6000:]

    def test(self, *words: str) -> None:
        self.run("pytest", "-q", "-x", "-n0", "-p", "no:cacheprovider", "-m", "not (e2e or programs or root)", *words)


def recipe(heading: str, tmp_path: Path) -> Recipe:
    _, _, rest = PAGE.read_text().partition(f"## {heading}\n")
    section = rest.partition("\n## ")[0]
    tree = clone(tmp_path / "tree")
    for built in ("library/build", "emulator/build"):
        (tree / built).symlink_to(ROOT / built)
    return Recipe(tuple(dedent(text).removeprefix("+") for _, text in _BLOCK.findall(section)), tree)


def test_a_node_policy(tmp_path: Path) -> None:
    found = recipe("A node policy", tmp_path)
    found.put(0, "deviceplugin/model/preferences.py", 'FRAGMENTATION = "fragmentation"')
    nodes = "deviceplugin/placement/nodes.py"
    found.put(1, nodes, "def _parts(", before=True)
    found.put(2, nodes, "case NodePolicy.FRAGMENTATION:", before=True)
    found.put(3, "tests/placement/test_nodes.py", "NodePolicy.FRAGMENTATION: (")
    _to_the_schema(found.tree)
    _to_the_page(found.tree)
    found.run("scripts.reference")
    found.run("scripts.pictures")
    docs = ("test_policies.py", "test_pictures.py", "test_reference.py")
    found.test(
        "tests/placement/test_nodes.py",
        "tests/config",
        "tests/simulate/test_other_pods.py",
        *(f"tests/docs/{name}" for name in docs),
    )


def _to_the_schema(tree: Path) -> None:
    path = tree / "daemonset/chart/values.schema.json"
    schema = json.loads(path.read_text())
    schema["properties"]["scheduler"]["properties"]["nodePolicy"]["enum"].append("smallest")
    path.write_text(json.dumps(schema, indent=2, ensure_ascii=False) + "\n")


def _to_the_page(tree: Path) -> None:
    path = tree / "docs/policies.md"
    row = "| `smallest` | the node with the fewest GPUs; then the fewest free cores | large nodes stay free | - |\n"
    text = path.read_text()
    last = re.search(r"^\| `fragmentation` \(default\) \|.*\n", text, re.MULTILINE)
    assert last is not None
    path.write_text(text[: last.end()] + row + text[last.end() :])


def test_the_same_policy_by_single_gpus(tmp_path: Path) -> None:
    found = recipe("A node policy", tmp_path)
    found.put(0, "deviceplugin/model/preferences.py", 'FRAGMENTATION = "fragmentation"')
    nodes = "deviceplugin/placement/nodes.py"
    path = found.tree / nodes
    path.write_text(
        path.read_text().replace(
            "case NodePolicy.FRAGMENTATION:", "case NodePolicy.FRAGMENTATION | NodePolicy.SMALLEST:"
        )
    )
    (last,) = re.findall(r"def _on_gpus.*?\n(        return [^\n]*\n)\n", path.read_text(), re.DOTALL)
    found.put(4, nodes, last.strip(), before=True)
    found.put(3, "tests/placement/test_nodes.py", "NodePolicy.FRAGMENTATION: (")
    found.test("tests/placement/test_nodes.py", "-k", "prefers")


def test_a_health_rule(tmp_path: Path) -> None:
    found = recipe("A health rule", tmp_path)
    health, device = "deviceplugin/hardware/health.py", "deviceplugin/hardware/device.py"
    found.put(0, health, "locked: bool | None = None")
    found.put(1, health, "return self.fabric.reason if", before=True)
    found.put(2, device, "_corrected, _uncorrected, pending, failed")
    found.put(3, device, "fabric=self.fabric(),")
    found.put(4, "tests/hardware/stub/driver.c", "int nvmlDeviceGetGpuFabricInfoV(", before=True)
    conditions = "tests/hardware/test_condition.py"
    found.put(5, conditions, '"nvmlDeviceGetRemappedRows.0": (')
    orders, text = '(("remapped.0", "0 1"), ', (found.tree / conditions).read_text()
    assert text.count(orders) == 1
    (found.tree / conditions).write_text(text.replace(orders, f"{orders}{found.blocks[6].strip()}, "))
    found.put(7, conditions, "Condition(locked=True): LOCKED,")
    found.test(conditions, "tests/hardware/test_health.py", "tests/hardware/test_xid.py")


@pytest.mark.programs
def test_a_flag_and_its_value_in_the_chart(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    helm_program(request)
    found = recipe("A flag and its value in the chart", tmp_path)
    found.put(0, "deviceplugin/config/scheduler.py", 'node_policy: NodePolicy = setting("node-policy"')
    chart = "daemonset/chart"
    found.put(1, f"{chart}/values.yaml", "nodePolicy: fragmentation")
    found.put(2, f"{chart}/values.schema.json", '"nodePolicy": {', before=True)
    found.put(3, f"{chart}/templates/scheduler/_extender.tpl", "- --node-policy=")
    found.put(4, f"{chart}/templates/scheduler/_extender.tpl", "node-policy: scheduler.nodePolicy")
    found.put(5, "tests/daemonset/test_chart_scheduler.py", "assert parsed.placement.node_policy.value ==")
    found.run("scripts.reference")
    found.run("scripts.manifests")
    found.test(
        "tests/config",
        "tests/daemonset/test_chart_scheduler.py::test_the_extender_gets_the_values_by_flags_that_exist",
        "tests/daemonset/test_values.py",
        "tests/daemonset/test_manifests.py",
        "tests/docs/test_reference.py",
    )


def test_an_annotation(tmp_path: Path) -> None:
    found = recipe("An annotation", tmp_path)
    names = "deviceplugin/model/annotation_names.py"
    found.put(0, names, "self.numa: Final")
    path = found.tree / names
    path.write_text(
        path.read_text().replace("self.avoid_gpus, self.numa)", "self.avoid_gpus, self.numa, self.one_switch)")
    )
    found.put(1, "deviceplugin/model/preferences.py", "one_numa: bool = False")
    found.put(2, "deviceplugin/model/preferences.py", "one_numa=_one_numa(annotations, names),")
    found.put(3, "tests/model/test_preferences.py", '({"nvidia.com/numa-bind": "TRUE"}', before=True)
    found.put(4, "tests/model/test_preferences.py", '(NAMES.numa, "1", "true or false"),')
    found.test("tests/model/test_preferences.py", "tests/model/test_annotations.py", "tests/cluster/webhook")


def test_a_check_of_doctor(tmp_path: Path) -> None:
    found = recipe("A check of doctor", tmp_path)
    control, tests = "deviceplugin/cli/doctor/control.py", "tests/cli/test_doctor.py"
    found.put(0, control, "CHECKS = (", before=True)
    found.put(1, control, 'Check("pending-pods", pending),')
    found.put(2, tests, "ROUNDS: tuple[", before=True)
    found.put(3, tests, '(_ends_soon, "webhook", "warning",')
    path = found.tree / tests
    before = '"other-plugins", "pending-pods")'
    path.write_text(path.read_text().replace(before, f'{before[:-1]}, "known-gpus")'))
    page = found.tree / "docs/how-to/doctor.md"
    last = "| `pending-pods` | how many GPU pods are Pending, by reason | get services/proxy |\n"
    row = "| `known-gpus` | whether any GPU is known | get services/proxy |\n"
    page.write_text(page.read_text().replace(last, last + row))
    found.test(tests)
