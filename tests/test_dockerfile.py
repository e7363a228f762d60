"""The Dockerfile, as far as it can be checked without an engine: its paths, its pins, its users."""

import fnmatch
import re
import shlex
from pathlib import Path

import pytest

from deviceplugin.config.setting import ENV_PREFIX

ROOT = Path(__file__).resolve().parents[1]


def instructions() -> list[tuple[str, str]]:
    """Keyword and rest, comments dropped and continued lines joined."""
    lines = [line for line in (ROOT / "Dockerfile").read_text().splitlines() if line and not line.startswith("#")]
    joined = re.sub(r"\\\n\s*", " ", "\n".join(lines))
    return [(line.split(None, 1)[0], line.split(None, 1)[1]) for line in joined.splitlines()]


def stages() -> dict[str, list[tuple[str, str]]]:
    found: dict[str, list[tuple[str, str]]] = {}
    current: list[tuple[str, str]] = []
    for keyword, rest in instructions():
        if keyword == "FROM":
            current = found.setdefault(rest.rpartition(" AS ")[2], [])
        current.append((keyword, rest))
    return found


def copied_from_the_repository() -> list[str]:
    arguments = [shlex.split(rest) for keyword, rest in instructions() if keyword == "COPY"]
    return [source for words in arguments if not words[0].startswith("--from=") for source in words[:-1]]


@pytest.mark.parametrize("source", copied_from_the_repository())
def test_what_is_copied_exists_and_is_let_in_by_dockerignore(source: str) -> None:
    assert (ROOT / source).exists()
    allowed = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    assert any(fnmatch.fnmatch(source, pattern) for pattern in allowed)


def test_nothing_else_is_let_in() -> None:
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    assert lines[0] == "*"
    assert sorted(line[1:] for line in lines if line.startswith("!")) == sorted(copied_from_the_repository())


def test_what_is_copied_from_another_stage_is_made_there() -> None:
    made = {"library": ["library/build/emulator"], "packages": ["/opt/vcuda"]}
    for keyword, rest in instructions():
        if keyword == "COPY" and rest.startswith("--from="):
            stage, source = shlex.split(rest)[0].removeprefix("--from="), shlex.split(rest)[1]
            assert any(source.endswith(path) for path in made[stage]), rest
    assert "$(BUILD)/emulator/libnvidia-ml.so.1" in (ROOT / "library/Makefile").read_text()


def test_packages_are_locked_by_hash_never_built_and_not_compiled_wholesale() -> None:
    (install,) = [rest for keyword, rest in stages()["packages"] if keyword == "RUN" and "install" in rest]
    for option in ("--require-hashes", "--only-binary :all:", "--no-compile", "--no-cache-dir"):
        assert option in install
    assert (ROOT / "requirements.lock").read_text().count("--hash=sha256:") > 100


def test_the_last_stage_is_the_agent_without_compiler_or_emulator() -> None:
    names = list(stages())
    assert names[-1] == "agent"
    text = " ".join(rest for name in ("agent-base", "agent") for _, rest in stages()[name])
    assert "gcc" not in text
    assert "library" not in text


def test_the_image_runs_as_nobody_unless_told_otherwise() -> None:
    users = [rest for keyword, rest in instructions() if keyword == "USER"]
    assert users == ["65532:65532"]
    assert ("USER", users[0]) in stages()["agent-base"]


def test_packages_of_the_system_leave_no_lists_behind_and_bring_nothing_unasked() -> None:
    runs = [rest for keyword, rest in instructions() if keyword == "RUN" and "apt-get" in rest]
    assert runs
    for run in runs:
        assert "--no-install-recommends" in run
        assert run.rstrip().endswith("rm -rf /var/lib/apt/lists/*")


def test_no_image_is_taken_from_a_named_registry_or_without_a_tag() -> None:
    assert ("ARG", "PYTHON_IMAGE=python:3.11-slim-bookworm") in instructions()
    for keyword, rest in instructions():
        if keyword == "FROM":
            image = rest.split()[0]
            assert image in {"${PYTHON_IMAGE}", *stages()}


def test_the_python_of_the_image_is_the_one_that_is_supported() -> None:
    assert 'requires-python = ">=3.11"' in (ROOT / "pyproject.toml").read_text()
    assert "python3.11/site-packages/deviceplugin" in (ROOT / "Dockerfile").read_text()


def test_the_emulated_image_names_its_library_by_the_agents_variable() -> None:
    (setting,) = [rest for keyword, rest in stages()["emulated"] if keyword == "ENV"]
    assert setting == f"{ENV_PREFIX}NVML_LIBRARY=/opt/vcuda/emulator/libnvidia-ml.so.1"
