"""Debian's package `prometheus`: in CI it must be there; elsewhere a test that lacks it is skipped and says so."""

import os

import pytest

from sandbox.prometheus import PrometheusMissingError, require_prometheus


def need_prometheus() -> None:
    try:
        require_prometheus()
    except PrometheusMissingError as error:
        if os.environ.get("CI") == "true":
            pytest.fail(f"CI must test the metrics. {error}", pytrace=False)
        pytest.skip(f"METRICS, ALERTS AND DASHBOARDS WERE NOT TESTED WITH PROMETHEUS. {error}")
