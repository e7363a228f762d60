"""`.ci/run` installs what is missing, with the packages of the clang that the machine has."""

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
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "bin").mkdir()
    for path, text in {
        **{f"bin/{name}": text for name, text in PROGRAMS.items()},
        "scripts/test": 'echo "scripts/test $CI"',
    }.items():
        place = tmp_path / path
        place.parent.mkdir(exist_ok=True)
        place.write_text(f"#!/bin/sh\n{text}\n")
        place.chmod(0o755)
    (tmp_path / ".ci").mkdir()
    (tmp_path / ".ci/run").write_text((REPOSITORY / ".ci/run").read_text())
    return tmp_path


def run(folder: Path, *, clang: str, installed: str) -> list[str]:
    environment = {"PATH": f"{folder / 'bin'}:{os.environ['PATH']}", "CLANG": clang, "INSTALLED": installed}
    command = ["/bin/sh", str(folder / ".ci/run")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


FIRST = (
    "gcc make etcd-server runc containernetworking-plugins busybox-static buildah mmdebstrap iptables "
    "prometheus chromium clang docker-registry skopeo qemu-user-static zsh fish"
)


@pytest.mark.parametrize(("clang", "library"), [("14.0.6", "libclang-rt-14-dev"), ("18.1.3", "libclang-rt-18-dev")])
def test_the_library_of_the_default_clang_is_installed(folder: Path, clang: str, library: str) -> None:
    install = "apt-get install -y -qq --no-install-recommends"
    said = run(folder, clang=clang, installed="make runc")
    wanted = " ".join(word for word in FIRST.split() if word not in ("make", "runc"))
    assert [line for line in said if "install" in line] == [f"{install} {wanted}", f"{install} {library}"]
    assert said[-1] == "scripts/test true"


def test_nothing_is_installed_where_all_is_there(folder: Path) -> None:
    assert run(folder, clang="14.0.6", installed=f"{FIRST} libclang-rt-14-dev") == ["scripts/test true"]
