"""The Dockerfile: its paths, its pins, its users. tests/e2e/test_image.py and test_newcomer.py run the image."""

import fnmatch
import re
import shlex
import subprocess
from pathlib import Path

import pytest

from deviceplugin.config.agent import AGENT
from tests.config.resolving import resolve

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
    own = [words for words in arguments if not words[0].startswith("--from=")]
    return [source for words in own for source in words[:-1] if not source.startswith("--chmod=")]


def test_what_is_copied_exists_and_is_let_in_by_dockerignore() -> None:
    copied = copied_from_the_repository()
    assert copied
    assert [source for source in copied if not (ROOT / source).exists()] == []
    allowed = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    assert [each for each in copied if not any(fnmatch.fnmatch(each, pattern) for pattern in allowed)] == []


def test_nothing_else_is_let_in() -> None:
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    assert lines[0] == "*"
    assert sorted(line[1:] for line in lines if line.startswith("!")) == sorted(set(copied_from_the_repository()))


def test_what_is_copied_from_another_stage_is_made_there() -> None:
    emulated = ("libnvidia-ml.so.1", "libcuda.so.1", "vcuda-emulator")
    made = {
        "emulator": {"/src/emulator/build/profiles", *(f"/src/emulator/build/{name}" for name in emulated)},
        "imported": {"/imported", "/opt/vcuda"},
        "packages": {"/opt/vcuda"},
        "modprobe": {"/packages/root"},
        "interposers": {"/usr/local/lib/vcuda"},
    }
    for keyword, rest in instructions():
        if keyword == "COPY" and rest.startswith("--from="):
            stage, *paths = shlex.split(rest)
            assert {path.rstrip("/") for path in paths[:-1]} <= made[stage.removeprefix("--from=")], rest
    makefile = (ROOT / "emulator/Makefile").read_text()
    assert all(f"$(BUILD)/{name}" in makefile for name in emulated)


def test_our_library_is_built_for_an_old_glibc_and_lies_where_the_agent_looks() -> None:
    (build,) = [rest for keyword, rest in stages()["interposers"] if keyword == "RUN" and "scripts/library" in rest]
    assert "linux-gnu.2.17" in (ROOT / "scripts/library").read_text()
    default = AGENT.settings
    (where,) = [setting.default_text for setting in default if setting.flag == "library-path"]
    assert f'cp "library/build/release/$(cat /machine)"/lib*.so.1 {where}/' in build
    assert ("COPY", f"--from=interposers {where} {where}") in stages()["agent-base"]


def test_the_compiler_of_our_library_is_locked_by_hash() -> None:
    runs = [rest for keyword, rest in stages()["compiler"] if keyword == "RUN"]
    (install,) = [rest for rest in runs if "--requirement ziglang.lock" in rest]
    assert "--require-hashes" in install
    (expression,) = re.findall(r"sed -n '([^']*)'", install)
    command = ["sed", "-n", expression, "requirements-dev.lock"]
    lines = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    assert lines[0].startswith("ziglang==")
    assert all(line.strip().startswith("--hash=sha256:") for line in lines[1:])
    assert [line.endswith("\\") for line in lines] == [True] * (len(lines) - 1) + [False]


def test_every_step_runs_on_the_machine_that_builds() -> None:
    for steps in stages().values():
        base = steps[0][1].split()
        while base[0] in stages():
            base = stages()[base[0]][0][1].split()
        is_run = any(keyword == "RUN" for keyword, _ in steps)
        assert base[0] == ("--platform=$BUILDPLATFORM" if is_run else "--platform=$TARGETPLATFORM")


@pytest.mark.parametrize("stage", ["imported", "packages"])
def test_packages_are_locked_by_hash_never_built_and_not_compiled_wholesale(stage: str) -> None:
    runs = [rest for keyword, rest in stages()[stage] if keyword == "RUN"]
    (install,) = [rest for rest in runs if "requirements.lock" in rest]
    for option in ("--require-hashes", "--only-binary :all:", "--no-compile", "--no-cache-dir"):
        assert option in install
    assert (ROOT / "requirements.lock").read_text().count("--hash=sha256:") > 100


def test_the_last_stage_is_the_agent_without_compiler_or_emulator() -> None:
    names = list(stages())
    assert names[-1] == "agent"
    text = " ".join(rest for name in ("agent-base", "agent") for _, rest in stages()[name])
    assert "gcc" not in text
    assert "library" not in text


def test_the_image_runs_unprivileged_by_default() -> None:
    users = [rest for keyword, rest in instructions() if keyword == "USER"]
    assert users == ["65532:65532"]
    assert ("USER", users[0]) in stages()["agent-base"]


def test_packages_of_the_system_leave_no_lists_behind_and_bring_nothing_unasked() -> None:
    runs = [rest for keyword, rest in instructions() if keyword == "RUN" and "apt-get" in rest]
    assert runs
    for run in runs:
        assert "--no-install-recommends" in run or " download " in run
        assert run.rstrip().endswith("rm -rf /var/lib/apt/lists/*")


def test_packages_that_are_taken_apart_have_a_fixed_version() -> None:
    (download,) = [rest for keyword, rest in instructions() if keyword == "RUN" and " download " in rest]
    packages = re.findall(r'"(\w+):\$\{TARGETARCH\}=(\S+)"', download)
    assert [name for name, _ in packages] == ["kmod", "libkmod2"]
    assert {version for _, version in packages} == {"30+20221128-1"}


def test_what_the_checkout_s_umask_decides_is_decided_again() -> None:
    """Files of the repository reach the image by way of a stage that sets their modes, or with --chmod."""
    for name, steps in stages().items():
        for keyword, rest in steps:
            words = shlex.split(rest) if keyword == "COPY" else []
            if words and not words[0].startswith("--from=") and name in ("agent-base", "emulated", "agent"):
                assert words[0].startswith("--chmod=")
    path = "site-packages/deviceplugin"
    assert any(re.search(rf"chmod -R u=rwX,go=rX \S*{path}(\s|$)", rest) for _, rest in stages()["packages"])


def test_the_base_is_named_once_with_tag_and_digest_and_without_a_registry() -> None:
    (base,) = [rest for keyword, rest in instructions() if keyword == "ARG" and rest.startswith("PYTHON_IMAGE=")]
    assert re.fullmatch(r"PYTHON_IMAGE=python:3\.11-slim-bookworm@sha256:[0-9a-f]{64}", base)
    for keyword, rest in instructions():
        if keyword == "FROM":
            image = rest.split(" AS ")[0].split()[-1]
            assert image in {"${PYTHON_IMAGE}", *stages()}


def test_the_python_of_the_image_is_the_one_that_is_supported() -> None:
    assert 'requires-python = ">=3.11"' in (ROOT / "pyproject.toml").read_text()
    assert "python3.11/site-packages/deviceplugin" in (ROOT / "Dockerfile").read_text()


def test_the_emulated_image_names_its_driver_by_the_agents_variables() -> None:
    (setting,) = [rest for keyword, rest in stages()["emulated"] if keyword == "ENV"]
    given = dict(word.split("=", 1) for word in setting.split())
    root = resolve(AGENT, flags={}, env=given).settings.driver.root
    copied = [shlex.split(rest)[-1] for keyword, rest in stages()["emulated"] if keyword == "COPY"]
    assert copied == [f"{root}/usr/lib64/", f"{root}/usr/bin/", f"{root}/profiles"]
    template = (ROOT / "daemonset/chart/templates/agent/_container.tpl").read_text()
    assert f"value: {root}/profiles/" in template
