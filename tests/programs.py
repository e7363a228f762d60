"""Programs that Python, gcc and make do not give, such as Helm: every test asks for them here, through a fixture.

In: the script that builds or installs the program, which says on stderr what it does. Out: what it printed.
Invariant: in CI (`CI=true`) a program that cannot be had is a failure; elsewhere it is a skip that says why.
"""

import os
import subprocess
from pathlib import Path
from typing import NoReturn

import pytest

from sandbox.cluster.prerequisites import SCRIPTS
from sandbox.emulated_gpus import REPOSITORY


def built(request: pytest.FixtureRequest, what: str, *command: str | Path) -> list[str]:
    """The lines that the script prints. The first time it takes minutes, so it is run in plain sight."""
    capture = request.config.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled():
        done = subprocess.run([str(each) for each in command], stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        unavailable(f"{what} could not be had; the words of {command[0]} stand above.")
    return done.stdout.strip().splitlines()


def helm_program(request: pytest.FixtureRequest) -> str:
    """The path of Helm 3."""
    return built(request, "Helm", REPOSITORY / "scripts/helm/build")[-1]


def helm4_program(request: pytest.FixtureRequest) -> str:
    """The path of Helm 4."""
    return built(request, "Helm 4", REPOSITORY / "scripts/helm4/build")[-1]


def cosign_program(request: pytest.FixtureRequest) -> str:
    """The path of cosign."""
    return built(request, "cosign", REPOSITORY / "scripts/cosign/build")[-1]


def need_release_tools(request: pytest.FixtureRequest) -> None:
    """What scripts/release_files calls, but for buildah."""
    helm_program(request)
    built(request, "syft", REPOSITORY / "scripts/syft/build")
    installed("skopeo=skopeo", "jq=jq")


def need_prometheus() -> None:
    installed("prometheus=prometheus", "promtool=prometheus")


def need_chromium() -> None:
    installed("chromium=chromium")


def installed(*packages: str) -> None:
    """Debian's packages, as PROGRAM=PACKAGE, where they are missing."""
    if subprocess.run([SCRIPTS / "packages", *packages], check=False).returncode:
        names = ", ".join(dict.fromkeys(each.partition("=")[2] for each in packages))
        unavailable(f"Debian's {names} could not be installed; see above.")


def unavailable(cause: str) -> NoReturn:
    if os.environ.get("CI") == "true":
        pytest.fail(f"CI must run this. {cause}", pytrace=False)
    pytest.skip(cause)
