"""The plugin of kubectl, installed by the real krew from a release's files, with each Python of this machine."""

import asyncio
import io
import os
import platform
import shlex
import subprocess
import tarfile
from pathlib import Path

import pytest
import yaml
from elftools.elf.elffile import ELFFile

from tests.cli.command_runner import kubeconfig
from tests.cli.view_server import Cluster, node, pod, serving
from tests.commands import commands
from tests.downloads import PUBLIC, downloads
from tests.programs import built
from tests.pythons import pythons
from tests.scripts.released import ROOT, URL, VERSION, Release

INDEX = ROOT
"""Some repository in the place of krew's index, which is not asked for a plugin that its manifest names."""
MANIFEST = "vcuda.yaml"
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
PLATFORMS = [("linux", "amd64"), ("linux", "arm64"), ("darwin", "arm64")]
MACHINES = {"amd64": "EM_X86_64", "arm64": "EM_AARCH64"}
MACH_O_ARM64 = bytes.fromhex("cffaedfe0c000001")
MACH_O_FOR_SEVERAL = bytes.fromhex("cafebabe")
HERE = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), "")

pytestmark = [pytest.mark.thorough, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def installed(released: Release, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What krew put on PATH, by the command of docs/kubectl.md."""
    if not HERE:
        pytest.skip(f"there is no archive for {platform.machine()}")
    krew = built(request, "krew", ROOT / "scripts/krew/build")[-1]
    root = tmp_path_factory.mktemp("krew")
    lines = [line for each in commands(ROOT / "docs/kubectl.md") for line in each.commands]
    (line,) = [each for each in lines if each.startswith("kubectl krew ")]
    served = tmp_path_factory.mktemp("served")
    with downloads(served) as address:
        for path in released.files.glob("kubectl-vcuda-*"):
            (served / path.name).symlink_to(path)
        manifest = (released.files / MANIFEST).read_text()
        (served / MANIFEST).write_text(manifest.replace(URL, address))
        done = subprocess.run(
            [krew, *shlex.split(line.replace(PUBLIC, address))[2:]],
            env={**os.environ, "KREW_ROOT": str(root), "KREW_DEFAULT_INDEX_URI": str(INDEX)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    assert "It needs Python 3.11 to 3.14; on Linux glibc 2.28" in done.stderr
    return root / "bin" / "kubectl-vcuda"


async def said(program: Path, path: Path, *words: str, **environment: str) -> tuple[int, str, str]:
    """With nothing on PATH but the Pythons of `path`."""
    process = await asyncio.create_subprocess_exec(
        program,
        *words,
        env={"PATH": f"{path}", "HOME": os.devnull, **environment},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, errors = await process.communicate()
    assert process.returncode is not None
    return process.returncode, out.decode(), errors.decode()


@pytest.fixture
def only(tmp_path: Path) -> Path:
    """A PATH that has no Python yet, nor anything else."""
    folder = tmp_path / "path"
    folder.mkdir()
    return folder


def take(only: Path, python: Path) -> None:
    (only / "python3").unlink(missing_ok=True)
    (only / "python3").symlink_to(python)


async def test_the_commands_work_with_each_python(installed: Path, only: Path, tmp_path: Path) -> None:
    cluster = Cluster([node("node-a")], [pod("llm"), pod("big", node=None)])
    async with serving(cluster) as url:
        path = kubeconfig(tmp_path / "kubeconfig", url, namespace="research")
        for python in pythons(PYTHONS):
            take(only, python)
            for words, expected in (
                (("pods",), "insufficient vcuda-core on any one GPU"),
                (("top", "--once"), "node-a"),
                (("version",), "0.9.7"),
                (("bundle", "--file", str(tmp_path / f"{python.name}.tar.gz")), ""),
            ):
                status, out, errors = await said(installed, only, *words, KUBECONFIG=str(path))
                assert (status, expected in out) == (0, True), (python, words, out, errors)
            status, out, _ = await said(installed, only, "doctor", KUBECONFIG=str(path))
            assert status in (0, 1)
            assert "ok" in out
    status, out, _ = await said(installed, only, "pods", "--help")
    assert out.startswith("Usage: kubectl vcuda pods ")


async def test_a_machine_without_a_fitting_python_is_told(installed: Path, only: Path) -> None:
    (only / "python3").write_text("#!/bin/sh\nexit 1\n")
    (only / "python3").chmod(0o755)
    status, out, errors = await said(installed, only, "pods")
    assert (status, out) == (1, "")
    assert errors == "vcuda: it needs Python 3.11 to 3.14, and finds none on PATH; install one\n"


async def test_a_program_of_the_node_says_where_it_is(installed: Path, only: Path) -> None:
    take(only, pythons(PYTHONS)[0])
    status, _, errors = await said(installed, only, "doctor", "node")
    assert status == 1
    assert errors.startswith("vcuda: the Python package ")
    assert errors.endswith(" is not here: krew's plugin has only what operators need; use vcuda's image\n")


def test_the_manifest_names_an_archive_for_each_platform(released: Release) -> None:
    document = yaml.safe_load((released.files / MANIFEST).read_text())
    assert document["spec"]["version"] == f"v{VERSION}"
    assert document["spec"]["homepage"] == URL.partition("/releases/")[0]
    lines = (released.files / "SHA256SUMS").read_text().splitlines()
    sums = {name: digest for digest, name in (line.split("  ") for line in lines)}
    selectors = [each["selector"]["matchLabels"] for each in document["spec"]["platforms"]]
    assert [(each["os"], each["arch"]) for each in selectors] == PLATFORMS
    for platform_ in document["spec"]["platforms"]:
        url, _, name = platform_["uri"].rpartition("/")
        assert (url, platform_["sha256"]) == (URL, sums[name])
    assert MANIFEST in sums


def test_an_archive_has_modules_of_its_platform_for_each_python(released: Release) -> None:
    for system, arch in PLATFORMS:
        made: dict[str, set[str]] = {f"cpython-{series.replace('.', '')}": set() for series in PYTHONS}
        with tarfile.open(released.files / f"kubectl-vcuda-{VERSION}-{system}-{arch}.tar.gz") as archive:
            names = archive.getnames()
            for name in [each for each in names if each.endswith(".so")]:
                opened = archive.extractfile(name)
                assert opened is not None
                if system == "linux":
                    assert ELFFile(io.BytesIO(opened.read()))["e_machine"] == MACHINES[arch], name
                else:
                    assert opened.read(8).startswith((MACH_O_ARM64, MACH_O_FOR_SEVERAL)), name
                module, tag = name.rsplit("/", 1)[1].split(".")[:2]
                if tag != "abi3":
                    made["-".join(tag.split("-")[:2])].add(module)
        assert made == {key: {"_core", "_cffi_backend", "_pydantic_core", "parser", "url_parser"} for key in made}
        assert len([name for name in names if ".dist-info/licenses/" in name]) > 20
        assert "LICENSE" in names
