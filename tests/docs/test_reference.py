"""The reference pages say what the code does."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import msgspec

from deviceplugin.config.agent import AgentSettings, read_volume_config
from deviceplugin.container.driver_mirror.components import SHARED, WHOLE, Components
from deviceplugin.container.driver_mirror.plan import FLAVOURS, SHARED_FLAVOUR, WHOLE_FLAVOUR
from deviceplugin.kube.events import EventReason
from deviceplugin.kube.node_publisher import gpu_labels
from deviceplugin.model.annotation_names import AnnotationNames
from deviceplugin.model.gpu import Driver, Gpu, GpuUuid, Inventory
from deviceplugin.model.topology import Topology
from deviceplugin.observe.usage import Usage
from tests.fenced import fenced

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"


def test_the_generated_pages_are_current() -> None:
    command = [sys.executable, "-m", "scripts.reference", "--check"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (0, "")


def test_every_annotation_and_label_is_explained_and_every_explained_one_exists() -> None:
    names = AnnotationNames()
    known = {value for value in vars(names).values() if isinstance(value, str)}
    known -= {names.domain, names.gpu_index_prefix}
    known.add(f"{names.gpu_index_prefix}<i>")
    labels = gpu_labels(
        Inventory((Gpu(GpuUuid("u"), 0, 0, "NVIDIA T4", 1),), Topology((0,)), Driver("1", (1, 0))),
        domain=names.domain,
        extra={},
    )
    page = (DOCS / "reference/annotations.md").read_text()
    explained = set(re.findall(r"^\| `((?:gaia\.)?tencent\.com/[^`]+)`", page, re.MULTILINE))
    assert explained == known | set(labels)


def test_every_reason_of_an_event_is_explained_with_its_type() -> None:
    page = (DOCS / "reference/events.md").read_text()
    explained = set(re.findall(r"^\| `(\w+)` \| (\w+) \|", page, re.MULTILINE))
    assert explained == {reason.value for reason in EventReason}


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


def test_the_list_of_driver_files_that_is_shown_is_the_default() -> None:
    (example,) = fenced(DOCS / "driver-mirror.md", "json")
    listed = {
        volume["name"]: Components(tuple(volume["components"]["binaries"]), tuple(volume["components"]["libraries"]))
        for volume in msgspec.json.decode(example)["volume"]
    }
    assert listed == {SHARED_FLAVOUR: SHARED, WHOLE_FLAVOUR: WHOLE}


def test_the_list_of_driver_files_that_is_shown_can_be_given_to_the_agent(tmp_path: Path) -> None:
    (example,) = fenced(DOCS / "driver-mirror.md", "json")
    (tmp_path / "volume.json").write_text(example)
    read = read_volume_config(str(tmp_path / "volume.json")).volumes
    assert [(volume.name, volume.base) for volume in read] == [
        (flavour, str(AgentSettings().driver.mirror_path)) for flavour in FLAVOURS
    ]


def test_the_example_of_usage_has_the_fields_of_the_document() -> None:
    (example,) = fenced(DOCS / "reference/http-api.md", "json")
    decoded = msgspec.json.decode(example)
    assert msgspec.json.decode(msgspec.json.encode(msgspec.convert(decoded, Usage))) == decoded


def test_the_lines_of_the_tree_that_are_shown_are_as_the_code_draws_them() -> None:
    shown = re.findall(r"```\n(gpu-7 .*?)```", (DOCS / "reference/http-api.md").read_text(), re.DOTALL)
    assert len(shown) == 1
    assert shown[0] in (ROOT / "tests/observe/approved/hgx.txt").read_text()
