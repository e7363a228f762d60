"""docs/image.md lists what the Dockerfile adds to its base, every locked package, and who asks for each."""

import re
import tomllib
from importlib.metadata import requires

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from sandbox.emulated_gpus import REPOSITORY

PAGE = (REPOSITORY / "docs/image.md").read_text()
OTHERS, PACKAGES = PAGE.split("## Python packages")
DOCKERFILE = (REPOSITORY / "Dockerfile").read_text()
SHIPPED = DOCKERFILE[DOCKERFILE.index(" AS agent-base") :]


def locked() -> set[str]:
    return set(re.findall(r"^([\w.-]+)==", (REPOSITORY / "requirements.lock").read_text(), re.MULTILINE))


def table() -> dict[str, set[str]]:
    rows = re.findall(r"^\| ([\w.-]+) \| ([\w., -]+) \| .+ \|$", PACKAGES, re.MULTILINE)
    return {name: set(askers.split(", ")) for name, askers in rows if name != "package"}


def asked(name: str) -> set[str]:
    """The packages that `name` demands with the Python of the image without any extra."""
    (series,) = re.findall(r"^ARG PYTHON_IMAGE=python:([\d.]+)-", DOCKERFILE, re.MULTILINE)
    there = {"extra": "", "python_version": series, "python_full_version": f"{series}.0"}
    found = map(Requirement, requires(name) or [])
    return {canonicalize_name(one.name) for one in found if one.marker is None or one.marker.evaluate(there)}


def own() -> set[str]:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    return {canonicalize_name(Requirement(one).name) for one in project["dependencies"]}


def test_the_table_lists_every_locked_package_and_no_other() -> None:
    assert set(table()) == locked()


def test_the_table_says_who_asks_for_each_package() -> None:
    demands = {name: asked(name) for name in locked()} | {"vcuda": own()}
    expected = {name: {asker for asker, names in demands.items() if name in names} for name in locked()}
    assert table() == expected


def test_the_page_names_the_base_and_each_thing_that_the_dockerfile_adds() -> None:
    base = re.search(r"^ARG PYTHON_IMAGE=(\S+?)@(\S+)$", DOCKERFILE, re.MULTILINE)
    installed = set(re.findall(r'"(\w+):\$\{TARGETARCH\}=\S+"', DOCKERFILE))
    copied = re.findall(r"^(?:COPY .*|  .*) (/\S+?)/?$", SHIPPED, re.MULTILINE)
    assert base
    assert installed
    assert copied
    named = set(re.findall(r"^\| `(\S+)` \|", OTHERS, re.MULTILINE))
    added = {base[1], *installed}
    assert added <= named
    assert all(any(path == one or path.startswith(f"{one}/") for one in named) for path in copied)
    assert all(one in added or any(path == one or path.startswith(f"{one}/") for path in copied) for one in named)
