"""Which tests `.ci/run` and `scripts/test` choose: thorough where a change needs it or a variable asks for it."""

import shutil
import signal
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest

from tests.waiting import eventually

REPOSITORY = Path(__file__).parents[2]
TOOLS = ("sh", "bash", "dirname", "git", "id", "nproc", "env", "mktemp", "cat", "rm", "sleep", "touch")


class Clone:
    """A repository with one native file, whose scripts/test says what it was called with."""

    def __init__(self, root: Path) -> None:
        self.root = root / "clone"
        self.path = root / "bin"
        for folder in (self.path, self.root / ".ci", self.root / "scripts", self.root / "emulator"):
            folder.mkdir(parents=True)
        for tool in TOOLS:
            (self.path / tool).symlink_to(shutil.which(tool) or tool)
        for name in (".ci/run", ".ci/covered"):
            shutil.copy(REPOSITORY / name, self.root / name)
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


def test_ci_is_thorough_until_a_thorough_run_passed_and_again_after_a_change_of_native_code(clone: Clone) -> None:
    assert clone.run(".ci/run") == ["true --thorough"]
    clone.commit(".ci/passed", clone.run(".ci/covered")[0])
    assert clone.run(".ci/run") == ["true"]
    clone.commit("README.md", "new")
    assert clone.run(".ci/run") == ["true"]
    assert clone.run(".ci/run", VCUDA_THOROUGH="1") == ["true --thorough"]
    clone.commit("emulator/timeline.c", "after")
    assert clone.run(".ci/run") == ["true --thorough"]


def test_what_is_not_committed_counts_as_a_change(clone: Clone) -> None:
    clone.commit(".ci/passed", clone.run(".ci/covered")[0])
    (clone.root / "emulator/timeline.c").write_text("after")
    assert clone.run(".ci/run") == ["true --thorough"]


PARALLEL = "-n 2 --dist worksteal -m not e2e and not realtime"
REALTIME = "-m realtime"
E2E = "tests/e2e -p no:randomly"


def with_lanes(clone: Clone, python: str) -> Clone:
    """Its `scripts/test` is the real one; `python` is what a lane does with its arguments."""
    shutil.copy(REPOSITORY / "scripts/test", clone.root / "scripts/test")
    clone.program(clone.root / ".venv/bin/python", python)
    clone.program(clone.path / "nproc", "echo 2")
    for name in ("check", "setup"):
        clone.program(clone.root / "scripts" / name, "")
    return clone


@pytest.mark.parametrize(
    ("arguments", "profile", "calls"),
    [
        ("", "ci", [f"{PARALLEL} and not thorough", f"-m e2e and not thorough {E2E}", f"{REALTIME} and not thorough"]),
        ("--thorough", "thorough", [PARALLEL, f"-m e2e {E2E}", REALTIME]),
        ("tests/model -x", "ci", ["tests/model -x"]),
        ("--thorough tests/model", "thorough", ["tests/model"]),
    ],
)
@pytest.mark.parametrize("priority", ["real-time priority", ""])
def test_every_lane_takes_its_tests_once(
    clone: Clone, arguments: str, profile: str, calls: list[str], priority: str
) -> None:
    with_lanes(clone, 'echo "called $*"')
    if priority:
        clone.program(clone.path / "chrt", "")
    called = [line for line in clone.run("scripts/test", *arguments.split()) if line.startswith("called")]
    words = [line.removeprefix("called -m pytest ").removeprefix("--quiet ") for line in called]
    assert words == [f"--hypothesis-profile={profile} {each}" for each in calls]


@pytest.mark.parametrize("failing", ["worksteal", "-m realtime", "tests/e2e"])
def test_a_lane_that_fails_fails_the_run_once_all_have_ended(clone: Clone, failing: str) -> None:
    with_lanes(clone, f'case "$*" in *"{failing}"*) exit 1;; esac; echo "passed $*"')
    with pytest.raises(subprocess.CalledProcessError) as error:
        clone.run("scripts/test")
    passed = [line for line in error.value.stdout.splitlines() if line.startswith("passed")]
    assert len(passed) == 2
    assert not any(failing in line for line in passed)


def processes(clone: Clone) -> list[int]:
    return [int(word) for file in clone.root.glob("child.*") for word in file.read_text().split()]


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_interrupts_every_lane_and_waits_for_it(clone: Clone, how: signal.Signals) -> None:
    """An interrupted lane tidies up before it ends, as pytest does."""
    with_lanes(clone, 'trap "touch ended.$$; exit" INT; echo $$ >child.$$; while :; do sleep 0.1; done')
    environment = {"PATH": str(clone.path)}
    with subprocess.Popen(["scripts/test"], cwd=clone.root, env=environment, stdout=subprocess.DEVNULL) as run:
        assert eventually(lambda: len(processes(clone)) == 2)
        children = processes(clone)
        run.send_signal(how)
        assert run.wait(timeout=60) == 130
    assert len(list(clone.root.glob("ended.*"))) == 2
    assert not any(Path(f"/proc/{child}").exists() for child in children)


@pytest.mark.parametrize(
    ("arguments", "python", "recorded"), [("", "", 0), ("--thorough", "", 1), ("--thorough", "exit 1", 0)]
)
def test_only_a_thorough_run_that_passed_records_the_state(
    clone: Clone, arguments: str, python: str, recorded: int
) -> None:
    with_lanes(clone, python)
    with suppress(subprocess.CalledProcessError):
        clone.run("scripts/test", *arguments.split())
    passed = clone.root / ".ci/passed"
    assert passed.exists() == bool(recorded)
    assert not recorded or [passed.read_text().strip()] == clone.run(".ci/covered")
