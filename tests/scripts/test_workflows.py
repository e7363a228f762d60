"""The workflows of GitHub: what they call is there, who may write, and the notes of a release."""

import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from sandbox.emulated_gpus import REPOSITORY

WORKFLOWS = sorted((REPOSITORY / ".github/workflows").glob("*.yml"))
RELEASE = REPOSITORY / ".github/workflows/release.yml"
Workflow = dict[str, Any]


def read(path: Path) -> Workflow:
    """YAML takes the key `on` for a truth value."""
    found: Workflow = yaml.safe_load(path.read_text())
    return found


def steps(workflow: Workflow) -> list[dict[str, Any]]:
    return [step for job in workflow["jobs"].values() for step in job.get("steps", ())]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_scripts_that_are_called_exist_and_are_valid_shell(path: Path) -> None:
    texts = [step["run"] for step in steps(read(path)) if "run" in step]
    assert texts
    for text in texts:
        checked = subprocess.run(["bash", "-n"], input=text, text=True, capture_output=True, check=False)
        assert checked.returncode == 0, checked.stderr
        for script in re.findall(r"(?:^|\s)((?:scripts|\.ci)/[\w/]+)", text):
            assert os.access(REPOSITORY / script, os.X_OK), script


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_only_the_jobs_that_publish_may_write(path: Path) -> None:
    workflow = read(path)
    assert workflow["permissions"] == {"contents": "read"}
    writers = {name for name, job in workflow["jobs"].items() if "write" in job.get("permissions", {}).values()}
    assert writers == ({"release", "pypi"} if path == RELEASE else set())


def test_a_release_is_tested_first_and_fails_with_any_of_its_commands() -> None:
    workflow = read(RELEASE)
    assert workflow["jobs"]["test"]["uses"] == "./.github/workflows/ci.yml"
    assert (workflow["jobs"]["release"]["needs"], workflow["jobs"]["pypi"]["needs"]) == ("test", "release")
    assert workflow["defaults"]["run"]["shell"] == "bash", "which GitHub runs with pipefail"


def test_the_notes_are_the_section_of_the_version(tmp_path: Path) -> None:
    (text,) = [step["run"] for step in steps(read(RELEASE)) if step.get("name") == "Publish the page"]
    (tmp_path / "CHANGELOG.md").write_text(
        "# Changelog\n\n## 1.2.0 (2026-01-01)\n\nnew\n\n## 1.2.0.1\n\n## 1.1.0\n\nold\n"
    )
    (tmp_path / "published.txt").write_text("registry.example.org/vcuda@sha256:0\n")
    (tmp_path / "gh").write_text('#!/bin/sh\nprintf "%s\\n" "$@" >called\n')
    (tmp_path / "gh").chmod(0o755)
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "GITHUB_REF_NAME": "v1.2.0"}
    subprocess.run(["bash", "-eo", "pipefail", "-c", text], cwd=tmp_path, env=environment, check=True)
    notes = (tmp_path / "notes.md").read_text()
    assert notes == "\nnew\n\n\n```\nregistry.example.org/vcuda@sha256:0\n```\n"
    assert (tmp_path / "called").read_text().split()[:4] == ["release", "create", "v1.2.0", "--verify-tag"]
