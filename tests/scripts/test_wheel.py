"""The wheel as users install it: by pip and by uvx, with what it asks for itself, on a machine without a compiler.

Versions are those of requirements.lock, so that nothing that somebody publishes today breaks a test.
"""

import re
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from sandbox.emulated_gpus import REPOSITORY
from tests.scripts.released import VERSION, WHEEL, Release, sh

PROGRAMS = Path(sys.executable).parent
NOTHING = {"PATH": "/nowhere"}
TRACES = REPOSITORY / "benchmarks/traces"

pytestmark = [pytest.mark.thorough, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def wheel(released: Release) -> Path:
    return released.files / WHEEL


@pytest.fixture(scope="module")
def constraints(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The lock file without its hashes, with which pip would ask for one of the wheel itself."""
    path = tmp_path_factory.mktemp("constraints") / "constraints.txt"
    lines = re.findall(r"^[\w.-]+==[\w.]+", (REPOSITORY / "requirements.lock").read_text(), re.MULTILINE)
    path.write_text("\n".join(lines))
    return path


@pytest.fixture(scope="module")
def programs(wheel: Path, constraints: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `pip install` put on PATH."""
    folder = tmp_path_factory.mktemp("user")
    venv.create(folder / "venv", symlinks=True, with_pip=True)
    python = folder / "venv/bin/python"
    words = ("--quiet", "--no-compile", "--constraint", constraints, wheel)  # the commands compile what they import
    done = sh(python, "-m", "pip", "install", *words, at=folder, **NOTHING)
    assert done.returncode == 0, done.stderr
    return folder / "venv/bin"


def called(program: Path, *words: str | Path, at: Path) -> subprocess.CompletedProcess[str]:
    """In an environment that has nothing of the checkout."""
    command = [str(program), *map(str, words)]
    environment = {**NOTHING, "HOME": str(at)}
    return subprocess.run(command, cwd=at, env=environment, capture_output=True, text=True, check=False)


def test_the_commands_work_as_pip_installs_them(programs: Path, tmp_path: Path) -> None:
    traces = ("--nodes", TRACES / "example-nodes.csv", "--pods", TRACES / "example-pods.csv")
    machine = ("--topology", REPOSITORY / "emulator/profiles/hgx-a100.json", "--cores", "200")
    expected: dict[tuple[str | Path, ...], str] = {
        ("vcuda", "--help"): "Usage: vcuda",
        ("vcuda", "version", "--client"): f"Client Version: {VERSION}",
        ("vcuda", "completion", "bash"): "complete ",
        ("vcuda", "agent", "--help"): "Usage: vcuda agent",
        ("vcuda", "scheduler", "--help"): "Usage: vcuda scheduler",
        ("vcuda", "doctor", "node", "--help"): "Usage: vcuda doctor node",
        ("kubectl-vcuda", "top", "--help"): "Usage: kubectl vcuda top",
        ("vcuda", "simulate", *traces): "fragmentation",
        ("vcuda", "place", *machine): "GPU",
    }
    ended = {words: called(programs / words[0], *words[1:], at=tmp_path) for words in expected}
    wrong = [done for words, done in ended.items() if done.returncode or expected[words] not in done.stdout]
    assert wrong == []


def test_a_command_that_reads_a_kubeconfig_ends_with_a_sentence(programs: Path, tmp_path: Path) -> None:
    """The package of Kubernetes is among what pip installed, or this would be a failed import."""
    path = tmp_path / "kubeconfig"
    path.write_text(
        "{apiVersion: v1, kind: Config, current-context: a, contexts: [{name: a, context: {cluster: a, user: a}}],"
        " clusters: [{name: a, cluster: {server: 'http://127.0.0.1:9'}}], users: [{name: a, user: {token: t}}]}"
    )
    done = called(programs / "vcuda", "nodes", "--kubeconfig", path, at=tmp_path)
    assert (done.returncode, "127.0.0.1:9 cannot be reached" in done.stderr) == (1, True), done.stderr


def test_pip_installed_exactly_the_packages_of_the_lock_file(programs: Path, constraints: Path, tmp_path: Path) -> None:
    """No dependency is forgotten in pyproject.toml, and none is demanded for nothing."""
    done = sh(programs / "python", "-m", "pip", "list", "--format=freeze", at=tmp_path)
    found = {_normal(line) for line in done.stdout.split()} - {f"vcuda=={VERSION}"}
    assert {each for each in found if not each.startswith(("pip==", "setuptools=="))} == {
        _normal(line) for line in constraints.read_text().split()
    }
    source = sh(programs / "python", "-c", "import deviceplugin; print(deviceplugin.__file__)", at=tmp_path)
    assert source.stdout.startswith(str(programs.parent)), "it is the wheel's, not the checkout's"


def _normal(requirement: str) -> str:
    """The name as PyPI writes it."""
    name, _, version = requirement.partition("==")
    return f"{re.sub(r'[-_.]+', '-', name).lower()}=={version}"


def test_uvx_runs_it_without_an_installation(wheel: Path, constraints: Path, tmp_path: Path) -> None:
    """`uvx --from FILE vcuda`; that uv keeps packages from before is its own business."""
    for tool in ("dirname", "realpath"):  # uv's script for a program calls them
        (tmp_path / tool).symlink_to(shutil.which(tool) or "")
    words = ("--isolated", "--python", sys.executable, "--constraints", constraints, "--from", wheel)
    done = sh(PROGRAMS / "uvx", *words, "vcuda", "version", "--client", at=tmp_path, PATH=str(tmp_path))
    assert (done.returncode, done.stdout) == (0, f"Client Version: {VERSION}\n"), done.stderr
