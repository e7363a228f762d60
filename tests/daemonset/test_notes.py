"""The notes after installation: every command can be typed as it is."""

import json
import re
from pathlib import Path

import pytest

from tests.daemonset.chart import NAMESPACE, Object
from tests.daemonset.notes import notes
from tests.daemonset.value_sets import VALUE_SETS


@pytest.mark.parametrize("values", VALUE_SETS.values(), ids=VALUE_SETS.keys())
def test_the_notes_are_tidy_whatever_is_chosen(helm: str, tmp_path: Path, values: Object) -> None:
    said = notes(helm, values, folder=tmp_path)
    assert not [line for line in said.splitlines() if line != line.rstrip()]
    assert "\n\n\n" not in said
    assert "<no value>" not in said
    for pod in re.findall(r"--overrides='(.*?)'", said):
        assert json.loads(pod)["spec"]["containers"][0]["resources"]["limits"]


SAID = {
    "where nothing is set": (
        {},
        [
            "image.repository is not set",
            "kubectl label node NODE nvidia-device-enable=enable",
            f"helm test vcuda --namespace {NAMESPACE}",
        ],
    ),
    "agents everywhere": (
        {"agent": {"nodeSelector": {"nvidia-device-enable": None}}},
        ["The agent runs on every node"],
    ),
    "updates by hand": (VALUE_SETS["agent alone"], ["updated when you delete them", "The scheduler is disabled"]),
    "no webhook": (VALUE_SETS["without webhook and policy"], ['"schedulerName":"vcuda-scheduler"']),
    "a webhook that is passed over": (
        {"webhook": {"failurePolicy": "Ignore"}},
        ["WARNING: webhook.failurePolicy is Ignore"],
    ),
    "a kube-scheduler elsewhere": (
        VALUE_SETS["a kube-scheduler elsewhere"],
        [
            f"https://vcuda-scheduler.{NAMESPACE}.svc",
            "the API server's address is not in it",
            "a replica that does not lead",
        ],
    ),
    "the nodes' network": (
        VALUE_SETS["the nodes' network"],
        ["every process of the node calls from loopback", "Secret kube-scheduler-client", "the ports 8443 and 10260"],
    ),
}


@pytest.mark.parametrize(("values", "expected"), SAID.values(), ids=SAID.keys())
def test_the_notes_explain_the_chosen_values_and_their_effects(
    helm: str, tmp_path: Path, values: Object, expected: list[str]
) -> None:
    said = notes(helm, values, folder=tmp_path)
    assert [each for each in expected if each not in said] == []


def test_an_image_of_ones_own_is_not_doubted(helm: str, tmp_path: Path) -> None:
    assert "is not set" not in notes(helm, {"image": {"repository": "r.example.org/vcuda"}}, folder=tmp_path)
