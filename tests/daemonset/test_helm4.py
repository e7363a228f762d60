"""Helm 4 makes of the chart what Helm 3 makes of it: the same objects and notes, and the same values are refused."""

import json
import subprocess
from pathlib import Path

import pytest

from tests.daemonset.chart import Chart, lint
from tests.daemonset.test_values import WRONG, without_certificates
from tests.daemonset.together import Refused, together
from tests.daemonset.value_sets import PLATFORMS, VALUE_SETS


@pytest.fixture
def by_helm4(helm4: str, tmp_path: Path) -> Chart:
    return Chart(helm4, tmp_path)


def test_the_program_is_helm_4(helm4: str) -> None:
    said = subprocess.run([helm4, "version", "--template", "{{.Version}}"], capture_output=True, text=True, check=True)
    assert said.stdout.startswith("v4.")


def test_every_set_of_values_gives_the_same_objects_and_notes(chart: Chart, by_helm4: Chart) -> None:
    sets = {**VALUE_SETS, **{name: {"platform": name} for name in PLATFORMS}}
    by_helm3, found = chart.render_all(sets), by_helm4.render_all(sets)
    assert [name for name in sets if without_certificates(found[name]) != without_certificates(by_helm3[name])] == []


def test_every_wrong_value_is_refused_by_its_name(by_helm4: Chart) -> None:
    found = together(by_helm4, [values for values, _ in WRONG.values()])
    said = {name: each.by_schema if isinstance(each, Refused) else "" for name, each in zip(WRONG, found, strict=True)}
    assert {name: said[name] for name, (_, named) in WRONG.items() if named not in said[name]} == {}


def test_it_finds_nothing_wrong_with_the_chart(helm4: str) -> None:
    lint(helm4)
    lint(helm4, f"--set-json=operators={json.dumps({'subjects': [{'kind': 'User', 'name': 'ann'}]})}")
