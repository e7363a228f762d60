"""`scripts/setup` in its own folder, with stand-ins for Python and the tools that it calls."""

import os
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SETUP = ROOT / "scripts/setup"
TOOLS = (
    "sh",
    "dirname",
    "cat",
    "date",
    "cut",
    "sha256sum",
    "rm",
    "mkdir",
    "cp",
    "chmod",
    "echo",
    "flock",
    "nproc",
    "grep",
)
LOCKS = ("requirements-dev.lock", "requirements-demo.lock")
PYTHON = """#!/bin/sh
case "$*" in
    -c*) exit 0 ;;
    "-m venv"*) rm -rf .venv; mkdir -p .venv/bin; cp "$0" .venv/bin/python; cp "$0" .venv/bin/uv; echo venv >>calls ;;
    "-m pip --version") [ ! -e no-pip ] && echo pip 25 ;;
    "-m pip install"*) [ ! -e no-network ] || exit 1; echo pip >>calls ;;
    "pip sync"*) [ ! -e no-network ] || exit 1; echo sync >>calls; echo "$*" >>synced ;;
    "pip install"*) echo vcuda >>calls ;;
esac
"""


class Checkout:
    """A clone with nothing in it but what set-up reads."""

    def __init__(self, root: Path) -> None:
        self.root = root / "a clone"
        self.path = root / "bin"
        for folder in (self.root / "scripts", self.root / "library", self.path):
            folder.mkdir(parents=True)
        (self.root / "scripts/setup").write_text(SETUP.read_text())
        (self.root / "scripts/setup").chmod(0o755)
        for name in (*LOCKS, "pyproject.toml", "scripts/uv.lock", "library/Makefile"):
            (self.root / name).write_text(f"{name}\n")
        for tool in TOOLS:
            self.link(tool)
        self.program("python3", PYTHON)
        self.program("make", "#!/bin/sh\nexit 0\n")
        self.program("gcc", "#!/bin/sh\nexit 0\n")

    def link(self, tool: str) -> None:
        for folder in os.environ["PATH"].split(":"):
            if os.access(Path(folder) / tool, os.X_OK):  # a folder of PATH may be unreadable
                (self.path / tool).symlink_to(Path(folder) / tool)
                return

    def program(self, name: str, text: str) -> None:
        (self.path / name).write_text(text)
        (self.path / name).chmod(0o755)

    def run(self, command: str = "scripts/setup", *, at: str = ".", **more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["/bin/sh", "-c", f"exec {command}"],
            cwd=self.root / at,
            env={"PATH": str(self.path), **more},
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )

    def calls(self) -> list[str]:
        """What was installed since the last look."""
        found = self.root / "calls"
        lines = found.read_text().split() if found.exists() else []
        found.unlink(missing_ok=True)
        return lines


EVERYTHING = ["venv", "pip", "sync", "vcuda"]


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path)


def test_the_second_time_nothing_is_installed_from_wherever_it_is_called(checkout: Checkout) -> None:
    assert checkout.run().returncode == 0
    assert checkout.calls() == EVERYTHING
    for command, at in (("scripts/setup", "."), ("./setup", "scripts"), ("../scripts/setup", "library")):
        done = checkout.run(command, at=at)
        assert (done.returncode, done.stdout, done.stderr, checkout.calls()) == (0, "", "", []), command


@pytest.mark.parametrize("name", ["requirements-dev.lock", "pyproject.toml", "scripts/uv.lock"])
def test_what_changed_is_installed_into_the_environment_that_is_there(checkout: Checkout, name: str) -> None:
    checkout.run()
    checkout.calls()
    (checkout.root / name).write_text("changed\n")
    assert checkout.run().returncode == 0
    assert checkout.calls() == EVERYTHING[1:]


def test_the_demo_installs_little_and_takes_nothing_away(checkout: Checkout) -> None:
    synced = checkout.root / "synced"
    assert checkout.run("scripts/setup --demo").returncode == 0
    assert " requirements-demo.lock " in synced.read_text()
    checkout.run("scripts/setup --demo")
    assert checkout.calls() == EVERYTHING, "nothing the second time"
    assert checkout.run().returncode == 0
    assert (checkout.calls(), " requirements-dev.lock " in synced.read_text()) == (EVERYTHING[1:], True)
    (checkout.root / "requirements-demo.lock").write_text("changed\n")
    assert (checkout.run("scripts/setup --demo").returncode, checkout.calls()) == (0, [])
    (checkout.root / "requirements-dev.lock").write_text("changed\n")
    assert (checkout.run("scripts/setup --demo").returncode, checkout.calls()) == (0, EVERYTHING[1:])
    assert "demo.lock" not in synced.read_text().splitlines()[-1]


def test_an_unfinished_environment_is_created_again(checkout: Checkout) -> None:
    (checkout.root / "no-network").touch()
    failed = checkout.run()
    assert (failed.returncode, failed.stderr.count("\n")) == (1, 1)
    assert failed.stderr.startswith("setup: cannot install uv; check that PyPI")
    (checkout.root / "no-network").unlink()
    checkout.calls()
    assert checkout.run().returncode == 0
    assert checkout.calls() == EVERYTHING


def test_an_environment_of_another_checkout_is_not_emptied(checkout: Checkout, tmp_path: Path) -> None:
    """A link to it, as one makes for a second worktree."""
    other = tmp_path / "other"
    (other / "bin").mkdir(parents=True)
    (checkout.root / ".venv").symlink_to(other)
    done = checkout.run()
    assert (done.returncode, "setup: .venv is a link" in done.stderr) == (1, True)
    assert (other / "bin").is_dir()


def test_an_environment_without_pip_is_created_again(checkout: Checkout) -> None:
    checkout.run()
    checkout.calls()
    (checkout.root / "pyproject.toml").write_text("changed\n")
    (checkout.root / "no-pip").touch()
    assert checkout.run().returncode == 0
    assert checkout.calls() == EVERYTHING


def test_a_clone_that_was_moved_gets_an_environment_of_its_own(checkout: Checkout) -> None:
    checkout.run()
    checkout.calls()
    checkout.root = checkout.root.rename(checkout.root.with_name("moved"))
    assert checkout.run().returncode == 0
    assert checkout.calls() == EVERYTHING


@pytest.mark.parametrize(
    ("missing", "said"),
    [
        ("python3", "setup: Python 3.11 or newer is needed; set PYTHON=/path/to/python3.11\n"),
        (
            "make",
            "setup: make is needed to build library/ and emulator/; on Debian: apt-get install gcc make libc6-dev\n",
        ),
        ("gcc", "setup: gcc with the C library's headers is needed to build library/ and emulator/; on Debian: "),
    ],
)
def test_what_is_missing_is_one_sentence(checkout: Checkout, missing: str, said: str) -> None:
    (checkout.path / missing).unlink()
    done = checkout.run()
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert done.stderr.startswith(said)
    assert not (checkout.root / ".venv").exists()


def test_a_python_that_is_named_is_the_one_that_counts(checkout: Checkout) -> None:
    done = checkout.run(PYTHON="/no python here")
    assert done.stderr == (
        "setup: Python 3.11 or newer is needed, and /no python here is not that; set PYTHON=/path/to/python3.11\n"
    )
    checkout.program("my python", PYTHON)
    (checkout.path / "python3").unlink()
    assert checkout.run(PYTHON=str(checkout.path / "my python")).returncode == 0


def test_a_native_build_that_fails_is_said_last(checkout: Checkout) -> None:
    checkout.program("make", "#!/bin/sh\nexit 2\n")
    done = checkout.run()
    assert (done.returncode, done.stderr) == (1, "setup: emulator/ did not build\n")


def test_the_demo_has_the_packages_that_the_tests_have() -> None:
    demo, everything = (set(re.findall(r"^\S+==\S+", (ROOT / lock).read_text(), re.MULTILINE)) for lock in LOCKS[::-1])
    assert demo < everything
    assert len(demo) < len(everything) / 2
