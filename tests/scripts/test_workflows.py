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
    wrong.write_text(RELEASE.read_text().replace("needs: publish", "needs: publishes"))
    done = subprocess.run([*command, wrong], cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert (done.returncode, "publishes" in done.stdout) == (1, True)


USES = {
    "contents: read": ("actions/checkout@", "./.github/workflows/"),
    "contents: write": ("gh release create",),
    "packages: write": ("scripts/publish ",),
    "id-token: write": ("scripts/publish ", "pypa/gh-action-pypi-publish@"),
}
"""What of a job needs the right."""


JOBS = {f"{path.name} {name}": job for path in WORKFLOWS for name, job in read(path)["jobs"].items()}


def _called(job: dict[str, Any]) -> list[str]:
    """Actions, scripts and workflows."""
    return [job.get("uses", ""), *(step.get("uses", "") + step.get("run", "") for step in job.get("steps", ()))]


def _needed(job: dict[str, Any]) -> dict[str, str]:
    """A right to write contains the one to read."""
    found = [
        right for right, uses in USES.items() for called in _called(job) if any(each in f"{called} " for each in uses)
    ]
    return dict(right.split(": ") for right in sorted(found))


@pytest.mark.parametrize("job", JOBS.values(), ids=JOBS)
def test_a_job_has_the_rights_that_it_uses_and_no_more(job: dict[str, Any]) -> None:
    assert job.get("permissions") == _needed(job)


@pytest.mark.parametrize("job", JOBS.values(), ids=JOBS)
def test_what_is_built_is_built_where_nothing_may_be_written(job: dict[str, Any]) -> None:
    """A package of the build, and what it starts, finds no right to publish something else."""
    builds = [text for text in _called(job) if re.search(r"[.]ci/run|scripts/release|plugin/kubectl", text)]
    assert not builds or set(job["permissions"].values()) == {"read"}, builds
    if "write" in job.get("permissions", {}).values():
        assert "actions/cache@" not in str(job), "what another run left is not published"
        gets_go = [step for step in job["steps"] if "actions/setup-go@" in step.get("uses", "")]
        assert all(step["with"]["cache"] is False for step in gets_go)


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_a_job_that_says_nothing_would_have_no_rights(path: Path) -> None:
    assert read(path)["permissions"] == {}


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


def test_files_are_made_for_the_address_where_the_page_has_them(tmp_path: Path) -> None:
    url = "https://github.example.org/Some-Owner/vcuda/releases/download/v1.2.0"
    assert called("Make the files", tmp_path).stdout == f"release --url {url} dist\n"


def test_image_and_chart_are_published_and_signed_without_a_key(tmp_path: Path) -> None:
    (tmp_path / "dist").mkdir()
    done = called("Sign and publish", tmp_path)
    assert (done.returncode, done.stdout) == (0, "publish dist ghcr.io/some-owner\n"), "--key would name one"
    assert (tmp_path / "dist/published.txt").read_text() == done.stdout
    assert called("Sign and publish", tmp_path, publish="exit 1").returncode == 1, "also before a pipe"


def test_actions_are_of_few_and_known_owners_and_named_by_commit() -> None:
    """A tag and a branch can be moved to another commit; the comment says the version for people and for bots."""
    lines = [line.strip() for path in WORKFLOWS for line in path.read_text().splitlines() if "uses:" in line]
    used = [line for line in lines if "./.github/workflows/" not in line]
    assert len(used) > 10
    for line in used:
        pinned = r"(- )?uses: (actions|docker|pypa)/[\w-]+@[0-9a-f]{40} # v\d+[.]\d+[.]\d+"
        assert re.fullmatch(pinned, line), line
    commits = {tuple(line.removeprefix("- ").removeprefix("uses: ").split("@", 1)) for line in used}
    assert len(commits) == len({name for name, _ in commits}), "one version of each"


def test_a_release_is_tested_first_and_fails_with_any_of_its_commands() -> None:
    workflow = read(RELEASE)
    assert workflow["jobs"]["test"]["uses"] == "./.github/workflows/ci.yml"
    order = {name: job.get("needs") for name, job in workflow["jobs"].items()}
    assert order == {"test": None, "files": "test", "publish": "files", "page": "publish", "pypi": "page"}
    assert workflow["defaults"]["run"]["shell"] == "bash", "which GitHub runs with pipefail"


def test_the_notes_are_the_section_of_the_version(tmp_path: Path) -> None:
    (text,) = [step["run"] for step in steps(read(RELEASE)) if step.get("name") == "Publish the page"]
    (tmp_path / "CHANGELOG.md").write_text(
        "# Changelog\n\n## 1.2.0 (2026-01-01)\n\nnew\n\n## 1.2.0.1\n\n## 1.1.0\n\nold\n"
    )
    (tmp_path / "dist").mkdir()
    (tmp_path / "dist/published.txt").write_text("registry.example.org/vcuda@sha256:0\n")
    (tmp_path / "dist/SHA256SUMS").write_text("")
    (tmp_path / "gh").write_text('#!/bin/sh\nprintf "%s\\n" "$@" >called\n')
    (tmp_path / "gh").chmod(0o755)
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "GITHUB_REF_NAME": "v1.2.0"}
    subprocess.run(["bash", "-eo", "pipefail", "-c", text], cwd=tmp_path, env=environment, check=True)
    notes = (tmp_path / "notes.md").read_text()
    assert notes == "\nnew\n\n\n```\nregistry.example.org/vcuda@sha256:0\n```\n"
    words = (tmp_path / "called").read_text().split()
    assert words[:4] == ["release", "create", "v1.2.0", "--verify-tag"]
    assert words[-1:] == ["dist/SHA256SUMS"], "the notes have the other one"
