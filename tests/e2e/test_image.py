"""The images of scripts/image for both architectures: what is in them, and that their programs run.

The one that is not this machine's runs under qemu's user emulation, which shows that packages, libraries and layouts
fit; how memory is ordered between processors of that architecture, it does not show.
"""

import json
import subprocess
from pathlib import Path

import pytest

from sandbox.emulated_gpus import REPOSITORY
from tests.e2e.installed.images import vcuda_archive
from tests.e2e.installed.published import released_files
from tests.e2e.installed.unpacked import MACHINES, Root, architectures, unpacked
from tests.library.interposed import GIB, Answer, Container, device, two_gpus

pytestmark = [pytest.mark.programs, pytest.mark.root, pytest.mark.timeout(600)]

OUT_OF_MEMORY = 2
KMOD = "30%2B20221128-1"
EMULATOR = "opt/vcuda/emulator/usr"
COMPILED = "import grpc._cython.cygrpc, aiohttp, cryptography.x509, msgspec, yaml, pydantic_core, watchdog.observers"

DISTRIBUTIONS = """
from importlib.metadata import distributions
print(*(f"{each.name}@{each.version}" for each in distributions()), sep=chr(10))
"""

IMPORTED = """
import deviceplugin.agent.run, kubernetes.client, sys
for module in list(sys.modules.values()):
    file = getattr(module, "__file__", None) or ""
    if file.startswith("/opt/vcuda") and file.endswith(".py"):
        print(module.__cached__)
"""


@pytest.fixture(scope="module")
def archive(request: pytest.FixtureRequest) -> Path:
    return vcuda_archive(request)


@pytest.fixture(scope="module", params=MACHINES)
def root(archive: Path, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Root:
    return unpacked(archive, request.param, tmp_path_factory.mktemp("root"))


def test_the_index_has_both_architectures_in_this_order(archive: Path) -> None:
    assert architectures(archive) == ["amd64", "arm64"]


def test_the_list_of_packages_has_those_that_the_image_has(root: Root, request: pytest.FixtureRequest) -> None:
    (path,) = released_files(request).glob(f"vcuda-image-*-{root.architecture}.cdx.json")
    everything = json.loads(path.read_text())["components"]
    assert {each["type"] for each in everything} <= {"application", "library", "operating-system"}, "no files"
    components = [each for each in everything if "purl" in each]
    listed = {each["purl"].partition("&")[0] for each in components}
    own = root.run("/opt/vcuda/bin/python", "-c", DISTRIBUTIONS).splitlines()
    assert len(own) > 30
    assert {f"pkg:pypi/{each.lower().replace('_', '-')}" for each in own} - listed == set()
    assert f"pkg:deb/debian/kmod@{KMOD}?arch={root.architecture}" in listed
    if not root.is_foreign:  # the base of the other architecture has only unpacked packages
        said = root.run("/usr/bin/dpkg-query", "--show", "--showformat=${Package} ${Version}\n")
        named = {f"{each['name']} {each['version']}" for each in components if each["purl"].startswith("pkg:deb/")}
        assert set(said.splitlines()) - named == set()


@pytest.fixture(scope="module")
def shipped(root: Root, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Root:
    """The image that is released, which has no emulated driver."""
    return unpacked(vcuda_archive(request, "agent"), root.architecture, tmp_path_factory.mktemp("shipped"))


def test_the_image_that_is_released_has_all_but_the_emulated_driver(root: Root, shipped: Root) -> None:
    emulator = "opt/vcuda/emulator"
    other = {name: mode for name, mode in root.files.items() if not name.startswith(emulator)}
    assert shipped.files == other
    told = {name: value for name, value in root.config.items() if name != "Env"}
    assert told == {name: value for name, value in shipped.config.items() if name != "Env"}
    assert set(root.config["Env"]) - set(shipped.config["Env"]) == {
        f"VCUDA_AGENT_DRIVER_ROOT=/{emulator}",
    }


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["version", "--client"], "Client Version: "),
        (["agent", "--help"], "Usage: vcuda agent"),
        (["scheduler", "--help"], "Usage: vcuda scheduler"),
        (["config", "print"], "driverRoot: /  "),
    ],
    ids=["version", "agent", "scheduler", "config"],
)
def test_the_programs_of_the_released_image_start(shipped: Root, words: list[str], expected: str) -> None:
    assert shipped.config["Entrypoint"] == ["vcuda"]
    said = shipped.run("/opt/vcuda/bin/python", "/opt/vcuda/bin/vcuda", *words)
    assert expected in said


def test_the_agent_of_the_released_image_looks_for_the_driver_of_its_node(shipped: Root) -> None:
    """Without a driver and without kubelet: every check ends with a sentence, and so does the agent."""
    vcuda = ("/opt/vcuda/bin/python", "/opt/vcuda/bin/vcuda")
    doctor = shipped.ran(*vcuda, "doctor", "node", "-o", "json", "--kubeconfig=/none")
    checks = {each["check"]: each for each in json.loads(doctor.stdout)["checks"]}
    assert (doctor.returncode, doctor.stderr) == (1, "")
    assert checks["nvml"]["outcome"] == "failed"
    assert checks["nvml"]["message"].startswith("no NVIDIA driver answers: "), checks["nvml"]
    agent = shipped.ran(*vcuda, "agent", "--kubeconfig=/none")
    assert agent.returncode == 1
    assert "Traceback" not in agent.stderr, agent.stderr


def test_the_command_and_the_compiled_packages_run(root: Root) -> None:
    assert root.run("/opt/vcuda/bin/python", "/opt/vcuda/bin/vcuda", "--version").startswith("vcuda ")
    script = f"{COMPILED}, deviceplugin.agent.run, platform; print(platform.machine())"
    said = root.run("/opt/vcuda/bin/python", "-c", script)
    assert said == f"{MACHINES[root.architecture]}\n"


def test_modprobe_runs_and_scanners_find_its_package(root: Root) -> None:
    assert root.run("/usr/sbin/modprobe", "--version").startswith("kmod version")
    for package in ("kmod", "libkmod2"):
        fields = (root.folder / "var/lib/dpkg/status.d" / package).read_text()
        assert f"Package: {package}\n" in fields
        assert f"Architecture: {root.architecture}\n" in fields


def test_the_modules_that_the_agent_imports_are_compiled_and_no_others(root: Root) -> None:
    imported = root.run("/opt/vcuda/bin/python", "-c", IMPORTED).split()
    assert len(imported) > 500
    missing = [name for name in imported if not (root.folder / name.lstrip("/")).exists()]
    assert missing == []
    sources = sum(1 for _ in (root.folder / "opt/vcuda").rglob("*.py"))
    assert sum(1 for _ in (root.folder / "opt/vcuda").rglob("*.pyc")) < sources


def test_times_are_those_of_a_commit_and_the_user_is_nobody(root: Root) -> None:
    """Not always of this one: the archive of an earlier one with the same sources is taken."""
    command = ["git", "log", "--format=%cd", "--date=format-local:%Y-%m-%dT%H:%M:%SZ"]
    done = subprocess.run(command, cwd=REPOSITORY, env={"TZ": "UTC"}, capture_output=True, text=True, check=True)
    assert root.created in done.stdout.split()
    assert root.config["User"] == "65532:65532"


@pytest.fixture
def container(root: Root, short_tmp: Path) -> Container:
    """With the image's libraries before the image's emulated driver, and half a share of the first GPU."""
    libraries = root.folder / EMULATOR / "lib64"
    made = Container(
        short_tmp,
        root.folder / "usr/local/lib/vcuda",
        libraries / "libcuda.so.1",
        libraries / "libnvidia-ml.so.1",
        two_gpus(short_tmp),
    )
    made.grant(device(0, memory=2 * GIB))
    return made


def asked(root: Root, container: Container, name: str, *args: object) -> Answer:
    """A function of tests.library.inside, in the image's Python."""
    words = (*root.on_this_machine("/usr/bin/python3.11"), "-m", "tests.library.inside", name, json.dumps(args))
    with container.start_program(*words) as process:
        out, errors = process.communicate("", timeout=120)
    assert process.returncode == 0, errors
    return json.loads(out.splitlines()[-1])


def test_the_image_s_library_limits_memory(root: Root, container: Container) -> None:
    assert asked(root, container, "shown")["total of device"] == 2 * GIB
    assert asked(root, container, "shown_by_nvml")["v2"] == [2 * GIB, 2 * GIB, 0]
    assert asked(root, container, "in_context", 0, "hold_memory", 3 * GIB) == OUT_OF_MEMORY
