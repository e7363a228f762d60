"""Which tests `.ci/run` and `scripts/test` choose: thorough where a change needs it or a variable asks for it."""

import shutil
import subprocess
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
TOOLS = ("sh", "dirname", "git", "id", "nproc", "env")


class Clone:
    """A repository with one native file, whose scripts/test says what it was called with."""

    def __init__(self, root: Path) -> None:
        self.root = root / "clone"
        self.path = root / "bin"
        for folder in (self.path, self.root / ".ci", self.root / "scripts", self.root / "emulator"):
            folder.mkdir(parents=True)
        for tool in TOOLS:
            (self.path / tool).symlink_to(shutil.which(tool) or tool)
        shutil.copy(REPOSITORY / ".ci/run", self.root / ".ci/run")
        self.program(self.root / "scripts/test", 'echo "$CI $*"')
        self.git("init", "--quiet")
        self.commit("emulator/timeline.c", "before")

    def program(self, path: Path, text: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)

    def git(self, *words: str) -> None:
        person = ["-c", "user.name=a", "-c", "user.email=a@b"]
        subprocess.run(["git", *person, *words], cwd=self.root, check=True, capture_output=True)

    def commit(self, name: str, text: str) -> None:
        (self.root / name).write_text(text)
        self.git("add", ".")
        self.git("commit", "--quiet", "-m", name)

    def run(self, *command: str, **environment: str) -> list[str]:
        environment["PATH"] = str(self.path)
        done = subprocess.run(command, cwd=self.root, env=environment, capture_output=True, text=True, check=True)
        return [line.strip() for line in done.stdout.splitlines()]


@pytest.fixture
def clone(tmp_path: Path) -> Clone:
    return Clone(tmp_path)


def test_a_change_of_native_code_is_tested_thoroughly(clone: Clone) -> None:
    clone.commit("emulator/timeline.c", "after")
    assert clone.run(".ci/run", VCUDA_BASE="HEAD~1") == ["true --thorough"]


def test_a_change_elsewhere_is_not_unless_a_variable_asks_for_it(clone: Clone) -> None:
    clone.commit("README.md", "new")
    assert clone.run(".ci/run", VCUDA_BASE="HEAD~1") == ["true"]
    assert clone.run(".ci/run", VCUDA_BASE="HEAD~1", VCUDA_THOROUGH="1") == ["true --thorough"]


def test_a_clone_that_cannot_tell_what_changed_is_tested_thoroughly(clone: Clone) -> None:
    clone.commit("README.md", "new")
    assert clone.run(".ci/run") == ["true --thorough"]


@pytest.mark.parametrize(
    ("arguments", "calls"),
    [
        (
            "",
            [
                "--hypothesis-profile=ci -n 2 --dist worksteal -m not e2e and not realtime and not thorough",
                "--hypothesis-profile=ci -m realtime and not thorough",
                "--hypothesis-profile=ci -m e2e tests/e2e -p no:randomly",
            ],
        ),
        (
            "--thorough",
            [
                "--hypothesis-profile=thorough -n 2 --dist worksteal -m not e2e and not realtime",
                "--hypothesis-profile=thorough -m realtime",
                "--hypothesis-profile=thorough -m e2e tests/e2e -p no:randomly",
            ],
        ),
        ("tests/model -x", ["--hypothesis-profile=ci tests/model -x"]),
        ("--thorough tests/model", ["--hypothesis-profile=thorough tests/model"]),
    ],
)
def test_every_lane_takes_its_tests_once(clone: Clone, arguments: str, calls: list[str]) -> None:
    shutil.copy(REPOSITORY / "scripts/test", clone.root / "scripts/test")
    clone.program(clone.root / ".venv/bin/python", 'echo "called $*"')
    clone.program(clone.path / "nproc", "echo 2")
    for name in ("check", "setup"):
        clone.program(clone.root / "scripts" / name, "")
    called = [line for line in clone.run("scripts/test", *arguments.split()) if line.startswith("called")]
    assert [line.removeprefix("called -m pytest ").removeprefix("--quiet ") for line in called] == calls
