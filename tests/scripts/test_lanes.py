"""What `scripts/test` and `.ci/run` run: each test in one lane, each lane to its end, and what was left out is said."""

import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from itertools import chain, combinations
from pathlib import Path

import pytest
from _pytest.mark.expression import Expression

from scripts import lanes
from tests.lanes import KINDS
from tests.scripts.children import environment
from tests.waiting import eventually

REPOSITORY = Path(__file__).parents[2]
TOOLS = ("sh", "bash", "dirname", "git", "id", "env", "mktemp", "cat", "rm", "chmod", "cut", "grep", "printf", "touch")


class Clone:
    """A repository whose programs say what they were called with."""

    def __init__(self, root: Path) -> None:
        self.root = root / "clone"
        self.path = root / "bin"
        for folder in (self.path, self.root / ".ci", self.root / "scripts", self.root / "emulator"):
            folder.mkdir(parents=True)
        for tool in TOOLS:
            (self.path / tool).symlink_to(shutil.which(tool) or tool)
        for name in (".ci/run", ".ci/covered", "scripts/test"):
            shutil.copy(REPOSITORY / name, self.root / name)
        self.git("init", "--quiet")
        self.commit("emulator/timeline.c", "before")

    def program(self, path: Path, text: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)

    def git(self, *words: str) -> None:
        person = ["-c", "user.name=a", "-c", "user.email=a@b"]
        subprocess.run(["git", *person, *words], cwd=self.root, check=True, capture_output=True)

    def commit(self, name: str, text: str) -> None:
        (self.root / name).write_text(text)
        self.git("add", ".")
        self.git("commit", "--quiet", "-m", name)

    def run(self, *command: str, status: int = 0, **environment: str) -> list[str]:
        environment["PATH"] = str(self.path)
        done = subprocess.run(command, cwd=self.root, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == status, done.stdout + done.stderr
        return [line for line in map(str.strip, done.stdout.splitlines()) if line]


@pytest.fixture
def clone(tmp_path: Path) -> Clone:
    return Clone(tmp_path)


def of_ci(clone: Clone, status: int = 0, **environment: str) -> list[str]:
    return [line for line in clone.run(".ci/run", status=status, **environment) if line.startswith("test ")]


def test_ci_tries_what_is_thorough_only_where_it_changed_since_it_passed(clone: Clone) -> None:
    clone.program(clone.root / "scripts/test", 'echo "test $CI $*"')
    clone.program(clone.root / ".venv/bin/python", "")
    usual = ["test true", "test true --cluster"]
    of_all = "test true --thorough --group native --group release --group sandbox"
    assert of_ci(clone) == [*usual, of_all]
    clone.commit(".ci/passed", "\n".join(clone.run(".ci/covered")))
    assert of_ci(clone) == usual
    clone.commit("README.md", "new")
    assert of_ci(clone) == usual
    assert of_ci(clone, VCUDA_THOROUGH="1") == [*usual, of_all]
    clone.commit("emulator/timeline.c", "after")
    assert of_ci(clone) == [*usual, "test true --thorough --group native"]
    clone.commit(".ci/passed", "\n".join(clone.run(".ci/covered")))
    (clone.root / "emulator/timeline.c").write_text("not committed")
    assert of_ci(clone) == [*usual, "test true --thorough --group native"]


@pytest.mark.parametrize("failing", ["", "--cluster", "--thorough --group native --group release --group sandbox"])
def test_ci_runs_all_and_fails_if_one_does(clone: Clone, failing: str) -> None:
    clone.program(clone.root / "scripts/test", f'echo "test $*"; [ "$*" != "{failing}" ]')
    clone.program(clone.root / ".venv/bin/python", 'echo "test $*"')
    called = [line.removeprefix("test").split() for line in clone.run(".ci/run", status=1) if line.startswith("test")]
    assert [words[:1] for words in called] == [[], ["--cluster"], ["--thorough"], ["-m"]]


@pytest.mark.parametrize(
    ("arguments", "call"),
    [
        ("", "-m scripts.lanes"),
        ("--cluster", "-m scripts.lanes --cluster"),
        ("--thorough", "-m scripts.lanes --thorough"),
        ("--thorough --group native", "-m scripts.lanes --thorough --group native"),
        ("tests/model -x", "-m pytest --hypothesis-profile=ci tests/model -x"),
        ("--thorough tests/model", "-m pytest --hypothesis-profile=thorough tests/model"),
    ],
)
def test_arguments_that_are_no_lanes_go_to_pytest(clone: Clone, arguments: str, call: str) -> None:
    clone.program(clone.root / "scripts/setup", "")
    clone.program(clone.root / ".venv/bin/python", 'echo "$*"')
    assert clone.run("scripts/test", *arguments.split()) == [call]


def test_of_the_two_commands_without_thorough_tests_and_of_the_thorough_one_each_takes_every_test_once() -> None:
    def taking(command: tuple[lanes.Lane, ...], marks: tuple[str, ...]) -> int:
        def has(name: str, /, **_: object) -> bool:
            return name in marks

        return sum(Expression.compile(lane.chosen).evaluate(has) for lane in command)

    subsets = chain.from_iterable(combinations((*KINDS, "installed"), size) for size in range(len(KINDS) + 2))
    possible = [marks for marks in subsets if not {"e2e", "realtime"} <= set(marks)]
    both = (lanes.ORDINARY, lanes.CLUSTER, lanes.INSTALLED, lanes.MACHINE, lanes.REALTIME)
    assert {marks: taking(both, marks) for marks in possible} == {m: int("thorough" not in m) for m in possible}
    assert {marks: taking(lanes.ALL, marks) for marks in possible} == dict.fromkeys(possible, 1)


SUITE = """
import os, signal, sys, time
import pytest

@pytest.fixture(scope="session")
def helm():
    return "helm"

def test_ordinary(): pass
def test_that_fails(): assert not os.path.exists("FAIL")
def test_of_the_chart(helm): pass
@pytest.mark.root
def test_of_mounts(): pass
@pytest.mark.e2e
def test_of_pods(): pass
@pytest.mark.realtime
def test_of_time(): pass
@pytest.mark.thorough
def test_of_fuzzing(): pass
@pytest.mark.skipif(True, reason="no moon tonight")
def test_of_the_moon(): pass

@pytest.fixture
def tidied():
    yield
    open(f"tidied.{os.getpid()}", "w").close()

@pytest.mark.skipif(not os.path.exists("ENDLESS"), reason="only on demand")
@pytest.mark.parametrize("kind", [pytest.param(1), pytest.param(2, marks=pytest.mark.e2e)])
def test_without_an_end(kind, tidied):
    open(f"began.{os.getpid()}", "w").close()
    time.sleep(600)
"""


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    """A project with the real lanes and a test of each kind."""
    for name in ("tests/e2e", "scripts", ".ci"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("__init__", "lanes", "lane_table", "programs"):
        shutil.copy(REPOSITORY / f"scripts/{name}.py", tmp_path / "scripts")
    for name in ("tests/lanes.py", "tests/conftest.py", "tests/examples.py", "tests/__init__.py", "pyproject.toml"):
        shutil.copy(REPOSITORY / name, tmp_path / name)
    (tmp_path / "tests/test_suite.py").write_text(SUITE)
    for kind in ("e2e", "programs"):
        (tmp_path / "tests" / kind).mkdir(exist_ok=True)
        (tmp_path / "tests" / kind / "test_of_a_folder.py").write_text("def test_ordinary_too(): pass")
    (tmp_path / "scripts/check").write_text("#!/bin/sh\necho styled")
    (tmp_path / "scripts/check").chmod(0o755)
    return tmp_path


def counted(text: str) -> Mapping[str, list[str]]:
    """Lane: passed, failed, skipped."""
    rows = [line.split() for line in text[text.index("lane  ") :].splitlines()[1:]]
    return {row[0]: row[1:4] for row in rows[: rows.index([])]}


def run_lanes(suite: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "scripts.lanes"]
    return subprocess.run(command, cwd=suite, env=environment(), capture_output=True, text=True, check=False)


def test_a_run_that_a_test_starts_hears_nothing_of_the_run_that_tries_it(
    suite: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else its rows would be in the table of all lanes that CI shows."""
    rows = tmp_path / "rows"
    monkeypatch.setenv("VCUDA_LANES", str(rows))
    monkeypatch.setenv("PYTEST_ADDOPTS", "-k nothing_that_is_there")
    done = run_lanes(suite)
    assert counted(done.stdout)["ordinary"] == ["4", "0", "2"]
    assert not rows.exists()


def test_the_first_command_needs_nothing_and_says_what_it_left_out_and_which_command_does_not(suite: Path) -> None:
    done = run_lanes(suite)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("styled")
    assert counted(done.stdout) == {"style": ["0", "0", "0"], "ordinary": ["4", "0", "2"]}
    left_out = done.stdout[done.stdout.index("Not tested here:") :]
    assert [line.split()[0] for line in left_out.splitlines()[1:7]] == ["2", "1", "1", "1", "1", "1"]
    assert "real Kubernetes with kubelet, containerd, Helm and Volcano: scripts/test --cluster" in left_out
    assert "test equipment: scripts/test --thorough" in left_out
    assert "1 cases  skipped: no moon tonight" in left_out
    assert left_out.splitlines()[-1] == "4 passed, 0 failed, 2 skipped"


def test_a_test_that_fails_fails_the_command(suite: Path) -> None:
    (suite / "FAIL").touch()
    done = run_lanes(suite)
    assert (done.returncode, counted(done.stdout)["ordinary"]) == (1, ["3", "1", "2"])
    assert done.stdout.splitlines()[-1] == "3 passed, 1 failed, 2 skipped"


def test_where_style_fails_no_test_runs(suite: Path) -> None:
    (suite / "scripts/check").write_text("#!/bin/sh\nexit 1")
    done = run_lanes(suite)
    assert (done.returncode, counted(done.stdout)) == (1, {"style": ["0", "0", "0"]})


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_interrupts_every_lane_and_waits_until_it_has_tidied_up(suite: Path, how: signal.Signals) -> None:
    (suite / "ENDLESS").touch()
    side_by_side = "from scripts import lanes; lanes.STYLE = lanes.Lane('e2e', 'e2e'); lanes.run = RUN; lanes.main()"
    both = side_by_side.replace("RUN", "lambda of, *rest, run=lanes.run: run([lanes.ORDINARY, lanes.STYLE], *rest)")
    with subprocess.Popen([sys.executable, "-c", both], cwd=suite, env=environment(), stdout=subprocess.DEVNULL) as run:
        assert eventually(lambda: len(list(suite.glob("began.*"))) == 2)
        run.send_signal(how)
        assert run.wait(timeout=60) == 130
    began, tidied = ({path.suffix for path in suite.glob(f"{name}.*")} for name in ("began", "tidied"))
    assert began == tidied
    assert not any(Path(f"/proc/{pid[1:]}").exists() for pid in began)


def test_a_thorough_run_that_passed_records_the_state_of_what_it_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lanes, "ROOT", tmp_path)
    covered = tmp_path / ".ci/covered"
    covered.parent.mkdir()
    covered.write_text("#!/bin/sh\nprintf 'native 2\\nrelease 2\\nsandbox 2\\n'")
    covered.chmod(0o755)
    passed = tmp_path / ".ci/passed"
    passed.write_text("native 1\nrelease 1\n")
    status = 1
    monkeypatch.setattr(lanes, "run", lambda *_: [{"status": status}])
    lanes.chosen("thorough", ["release"], tmp_path)
    assert passed.read_text() == "native 1\nrelease 1\n"
    status = 0
    lanes.chosen("thorough", ["release"], tmp_path)
    assert passed.read_text() == "native 1\nrelease 2\n"
    lanes.chosen("thorough", [], tmp_path)
    assert passed.read_text() == "native 2\nrelease 2\nsandbox 2\n"
