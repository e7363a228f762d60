"""The workflows of GitHub: actionlint's word, what they call, who may write, how a release is signed, and its notes.

GitHub alone runs them; the steps that decide what is signed and published run here, with stand-ins of what they call.
"""

import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from sandbox.emulated_gpus import REPOSITORY
from scripts.signatures import attest_in_registry, sign_file, sign_in_registry
from tests.programs import built

WORKFLOWS = sorted((REPOSITORY / ".github/workflows").glob("*.yml"))
RELEASE = REPOSITORY / ".github/workflows/release.yml"
Workflow = dict[str, Any]


def read(path: Path) -> Workflow:
    found: dict[object, Any] = yaml.safe_load(path.read_text())
    return {"on" if key is True else str(key): value for key, value in found.items()}  # what `on` means in YAML


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


@pytest.fixture(scope="session")
def actionlint(request: pytest.FixtureRequest) -> str:
    return built(request, "actionlint", REPOSITORY / "scripts/actionlint/build")[-1]


@pytest.mark.timeout(600)
def test_actionlint_finds_nothing_and_would_find_a_mistake(actionlint: str, tmp_path: Path) -> None:
    command = [actionlint, "-shellcheck=", "-pyflakes=", "-no-color"]
    done = subprocess.run([*command, *WORKFLOWS], cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    wrong = tmp_path / "release.yml"
    wrong.write_text(RELEASE.read_text().replace("needs: release", "needs: releases"))
    done = subprocess.run([*command, wrong], cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert (done.returncode, "releases" in done.stdout) == (1, True)


PERMISSIONS = {
    "ci.yml": {"test": None},
    "release.yml": {
        "test": None,
        "release": {"contents": "write", "packages": "write", "id-token": "write"},
        "pypi": {"id-token": "write"},
    },
}
"""Of each job; none for those of the workflow, which only reads."""


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_only_the_jobs_that_publish_may_write(path: Path) -> None:
    workflow = read(path)
    assert workflow["permissions"] == {"contents": "read"}
    assert {name: job.get("permissions") for name, job in workflow["jobs"].items()} == PERMISSIONS[path.name]


OF_CHECKS = {"push", "pull_request", "workflow_dispatch", "workflow_call", "schedule"}
"""Without pull_request_target, which would give the rights of the repository to a change from outside."""


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_a_change_from_outside_gets_no_rights_and_every_job_ends(path: Path) -> None:
    workflow = read(path)
    events = set(workflow["on"])
    assert events == ({"push"} if path == RELEASE else OF_CHECKS)
    for job in workflow["jobs"].values():
        assert "timeout-minutes" in job or "uses" in job
    for step in steps(workflow):
        if step.get("uses", "").startswith("actions/checkout@"):
            assert step["with"]["persist-credentials"] is False, "no other step needs the token"


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_no_secret_is_given_to_a_shell(path: Path) -> None:
    """Registry and page take the token of the run, signature and PyPI the identity of the workflow."""
    text = path.read_text()
    assert "secrets." not in text
    for step in steps(read(path)):
        assert "${{" not in step.get("run", ""), "what GitHub puts in would be run"
        assert not re.search(r"set -\w*x|--verbose|printenv", step.get("run", ""))
    users = [step["name"] for step in steps(read(path)) if "github.token" in str(step)]
    expected = ["Log in to the registry, for skopeo, Helm and cosign", "Publish the page"] if path == RELEASE else []
    assert users == expected


def test_only_tags_of_a_version_are_released() -> None:
    assert read(RELEASE)["on"] == {"push": {"tags": ["v[0-9]*"]}}


def called(name: str, folder: Path, **stand_ins: str) -> subprocess.CompletedProcess[str]:
    """A step as GitHub runs it, for the tag v1.2.0, among scripts that say their arguments, or do what is given."""
    (text,) = [step["run"] for step in steps(read(RELEASE)) if step.get("name") == name]
    for script in ("release", "publish"):
        path = folder / "scripts" / script
        path.parent.mkdir(exist_ok=True)
        path.write_text("\n".join(("#!/bin/sh", stand_ins.get(script, f'echo {script} "$@"'), "")))
        path.chmod(0o755)
    github = {
        "GITHUB_SERVER_URL": "https://github.example.org",
        "GITHUB_REPOSITORY": "Some-Owner/vcuda",
        "GITHUB_REPOSITORY_OWNER": "Some-Owner",
        "GITHUB_REF_NAME": "v1.2.0",
    }
    command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", text]
    environment = {"PATH": os.environ["PATH"], **github}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def test_files_are_signed_by_the_identity_of_the_workflow(tmp_path: Path) -> None:
    url = "https://github.example.org/Some-Owner/vcuda/releases/download/v1.2.0"
    assert called("Make the files", tmp_path).stdout == f"release --keyless --url {url} dist\n"


def test_image_and_chart_are_published_and_signed_without_a_key(tmp_path: Path) -> None:
    done = called("Publish image and chart", tmp_path)
    assert (done.returncode, done.stdout) == (0, "publish dist ghcr.io/some-owner\n"), "--key would name one"
    assert (tmp_path / "published.txt").read_text() == done.stdout
    assert called("Publish image and chart", tmp_path, publish="exit 1").returncode == 1, "also before a pipe"


def test_without_a_key_cosign_is_asked_to_sign_by_identity(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cosign, said = tmp_path / "cosign", tmp_path / "said"
    cosign.write_text(f'#!/bin/sh\nprintf "%s\\n" "$*" >>{said}\n')
    cosign.chmod(0o755)
    monkeypatch.setenv("VCUDA_COSIGN", str(cosign))
    sign_file(tmp_path / "SHA256SUMS", None)
    sign_in_registry("ghcr.io/o/vcuda@sha256:0", None, plain_http=False)
    attest_in_registry("ghcr.io/o/vcuda@sha256:0", tmp_path / "packages", None, plain_http=False)
    lines = said.read_text().splitlines()
    assert [line.split()[0] for line in lines] == ["sign-blob", "sign", "attest"]
    for line in lines:
        assert "--key" not in line
        assert "--tlog-upload=false" not in line
        assert "--yes" in line, "nobody can be asked"


def test_actions_are_of_few_and_known_owners() -> None:
    """By their tags: see docs/development.md."""
    used = {step["uses"] for path in WORKFLOWS for step in steps(read(path)) if "uses" in step}
    assert {name.partition("/")[0] for name in used} == {"actions", "docker", "pypa"}
    assert all(re.fullmatch(r"[\w-]+/[\w-]+@(v\d+|release/v\d+|[0-9a-f]{40})", name) for name in used)


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
