"""Helm for the tests of the chart, and when they may be skipped.

Invariant: in CI (`CI=true`) a Helm that cannot be had is a failure; elsewhere it is a skip that says why.
"""

import os
import subprocess

import pytest

from scripts import manifests


@pytest.fixture(scope="session")
def helm(request: pytest.FixtureRequest) -> str:
    """The path of Helm; the first time it is built, in plain sight, for it takes minutes."""
    capture = request.config.pluginmanager.getplugin("capturemanager")
    try:
        with capture.global_and_fixture_disabled():
            return manifests.helm()
    except subprocess.CalledProcessError:
        cause = "tests/daemonset/helm/build could not build Helm; its words stand above."
    if os.environ.get("CI") == "true":
        pytest.fail(f"CI must test the chart. {cause}", pytrace=False)
    pytest.skip(f"THE CHART WAS NOT TESTED. {cause}")
