"""As root `.ci/run` installs what is missing, and runs README's second command as a stranger does."""

import os
import subprocess
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
PROGRAMS = {
    "id": "echo 0",
    "dpkg": 'case " $INSTALLED " in *" $2 "*) exit 0 ;; *) exit 1 ;; esac',
    "apt-get": 'echo "apt-get $*"',
    "clang": 'echo "$CLANG"',
    "git": 'while [ $# -gt 1 ]; do shift; done; mkdir "$1"',
    "chown": 'echo "chown $1 $2"',
    "setpriv": 'echo "$HOME $PWD $PYTHON setpriv $*"',
}
FIRST = "gcc make libc6-dev python3 python3-venv git util-linux"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    scripts = {"scripts/test": 'echo "scripts/test $*"', ".ci/covered": "echo native 1", ".venv/bin/python": ""}
    for path, text in ({f"bin/{name}": text for name, text in PROGRAMS.items()} | scripts).items():
        place = tmp_path / path
        place.parent.mkdir(exist_ok=True, parents=True)
        place.write_text(f"#!/bin/sh\n{text}\n")
        place.chmod(0o755)
    (tmp_path / ".ci/run").write_text((REPOSITORY / ".ci/run").read_text())
    return tmp_path


def run(folder: Path, *, clang: str, installed: str) -> list[str]:
    environment = {"PATH": f"{folder / 'bin'}:{os.environ['PATH']}", "CLANG": clang, "INSTALLED": installed}
    command = ["/bin/sh", str(folder / ".ci/run")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def test_what_is_missing_is_installed_with_the_library_of_the_default_clang(folder: Path) -> None:
    install = "apt-get install -y -qq --no-install-recommends"
    for clang, library in {"14.0.6": "libclang-rt-14-dev", "18.1.3": "libclang-rt-18-dev"}.items():
        said = run(folder, clang=clang, installed="gcc make git clang")
        wanted = [f"{install} libc6-dev python3 python3-venv util-linux", f"{install} {library}"]
        assert [line for line in said if "install " in line] == wanted
    said = run(folder, clang="14.0.6", installed=f"{FIRST} clang libclang-rt-14-dev")
    assert [line for line in said if "apt-get" in line] == []


def test_the_first_command_runs_as_an_ordinary_user_with_debians_python_in_an_empty_folder(folder: Path) -> None:
    said = run(folder, clang="14.0.6", installed=f"{FIRST} clang libclang-rt-14-dev")
    owned, called, *others = [line for line in said if line]
    home, place, python, *words = called.split()
    assert owned == "chown -R 65534:65534"
    assert (place, python) == (f"{home}/vcuda", "/usr/bin/python3")
    assert words == ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", "scripts/test"]
    assert others == ["scripts/test --cluster", "scripts/test --thorough --group native", "== all lanes"]
    assert not Path(home).exists()
