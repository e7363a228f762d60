"""What a new contributor meets first is consistent: license, security, hooks, workflow, templates."""

import os
import re
import stat
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[1]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
SCRIPT = re.compile(r"(?<![\w/.])((?:scripts|\.ci)/\w+)\b(?![/.])")
PAGES = [ROOT / name for name in ("SECURITY.md", "CODE_OF_CONDUCT.md")]
FORMS = [ROOT / ".github/ISSUE_TEMPLATE" / f"{name}.yml" for name in ("bug_report", "feature_request")]


def loaded(path: str) -> Any:
    return yaml.safe_load((ROOT / path).read_text())


def test_the_license_is_the_same_everywhere() -> None:
    text = (ROOT / "LICENSE").read_text()
    assert re.search(r"Apache License\s+Version 2.0, January 2004", text)
    assert "END OF TERMS AND CONDITIONS" in text
    assert PROJECT["license"] == "Apache-2.0"
    assert loaded("daemonset/chart/Chart.yaml")["annotations"]["artifacthub.io/license"] == PROJECT["license"]
    assert f'licenses="{PROJECT["license"]}"' in (ROOT / "Dockerfile").read_text()


def test_every_file_that_the_package_names_exists() -> None:
    assert PROJECT["license-files"] == ["LICENSE", "NOTICE"]
    for name in [PROJECT["readme"], *PROJECT["license-files"], "deviceplugin/py.typed"]:
        assert (ROOT / name).is_file(), name


def test_the_image_carries_the_license() -> None:
    copies = r"^COPY (?:--chmod=0644 )?(.+) /usr/share/doc/vcuda/$"
    shipped = re.search(copies, (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    assert shipped
    assert shipped[1].split() == PROJECT["license-files"]
    assert {f"!{name}" for name in PROJECT["license-files"]} <= set((ROOT / ".dockerignore").read_text().split())


def test_the_versions_are_one() -> None:
    chart = loaded("daemonset/chart/Chart.yaml")
    assert chart["version"] == chart["appVersion"] == PROJECT["version"]


def test_the_workflow_runs_what_ci_runs() -> None:
    workflow = loaded(".github/workflows/ci.yml")
    (job,) = workflow["jobs"].values()
    runs = [step["run"] for step in job["steps"] if "run" in step]
    assert sum(run.split()[-1] == ".ci/run" for run in runs) == 1
    assert os.access(ROOT / ".ci/run", os.X_OK)
    (python,) = [step["with"] for step in job["steps"] if step.get("uses", "").startswith("actions/setup-python")]
    assert PROJECT["requires-python"] == f">={python['python-version']}"
    assert job["timeout-minutes"] <= 90
    asked = (ROOT / ".ci/run").read_text()
    assert {name for name in job["env"] if name not in asked} == set()
    for path in re.findall(r"'([^']+)'", job["steps"][2]["with"]["key"]):
        assert list(ROOT.glob(path)), path


def test_the_hooks_are_the_style_steps_of_the_check() -> None:
    (source,) = loaded(".pre-commit-config.yaml")["repos"]
    assert source["repo"] == "local", "nothing is downloaded"
    check = (ROOT / "scripts/check").read_text()
    for hook in source["hooks"]:
        program, *words = hook["entry"].split()
        assert hook["language"] == "system"
        assert " ".join([program, *(word for word in words if not word.startswith("-"))]) in check, hook["id"]


def test_the_forms_ask_for_something() -> None:
    assert FORMS
    for form in FORMS:
        found = yaml.safe_load(form.read_text())
        assert {"name", "description", "body"} <= set(found), form
        fields = [field for field in found["body"] if field["type"] != "markdown"]
        assert len({field["id"] for field in fields}) == len(fields) > 1, form
        assert any(field.get("validations", {}).get("required") for field in fields), form


def test_the_scripts_that_a_page_names_are_programs() -> None:
    """Its links: tests/docs/test_links.py."""
    named = {(page.name, name) for page in PAGES for name in SCRIPT.findall(page.read_text())}
    assert [each for each in named if not stat.S_IXUSR & (ROOT / each[1]).stat().st_mode] == []


def test_the_editor_agrees_with_the_formatter() -> None:
    lines = (ROOT / ".editorconfig").read_text()
    width = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["ruff"]["line-length"]
    assert f"max_line_length = {width}" in lines


def test_the_hooks_are_valid_to_pre_commit_itself() -> None:
    command = [".venv/bin/pre-commit", "validate-config", ".pre-commit-config.yaml"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_the_sandbox_says_what_each_of_its_rooms_is() -> None:
    text = (ROOT / "sandbox/README.md").read_text()
    rooms = [
        f"{path.name}{'/' * path.is_dir()}" for path in (ROOT / "sandbox").iterdir() if not path.name.startswith("_")
    ]
    assert [room for room in rooms if room != "README.md" and f"`{room}`" not in text] == []
