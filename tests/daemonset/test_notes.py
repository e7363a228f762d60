"""The notes after installation: every command can be typed as it is."""

import json
import re

from tests.daemonset.chart import NAMESPACE, Chart, Object
from tests.daemonset.value_sets import VALUE_SETS


def test_the_notes_are_tidy_whatever_is_chosen(chart: Chart) -> None:
    for name, rendered in chart.render_all(VALUE_SETS).items():
        said = rendered.notes
        assert not [line for line in said.splitlines() if line != line.rstrip()], name
        assert "\n\n\n" not in said, name
        assert "<no value>" not in said, name
        for pod in re.findall(r"--overrides='(.*?)'", said):
            assert json.loads(pod)["spec"]["containers"][0]["resources"]["limits"], name


SAID: dict[str, tuple[Object, list[str]]] = {
    "where nothing is set": (
        {},
        [
            "image.repository is not set",
            "kubectl label node NODE nvidia-device-enable=enable",
            '"tencent.com/vcuda-core":"20","tencent.com/vcuda-memory-mib":"4096"',
            f"helm test vcuda --namespace {NAMESPACE}",
        ],
    ),
    "agents everywhere": (
        {"gpuNodes": []},
        ["The agent runs on every node"],
    ),
    "agents by labels of others": (
        {"gpuNodes": ["pool=gpu,team=vision", "nvidia.com/gpu.present"]},
        [
            "The agent runs on nodes with pool=gpu,team=vision or nvidia.com/gpu.present:",
            "kubectl label node NODE pool=gpu team=vision    # a GPU node without one of them",
        ],
    ),
    "agents by a label of any value": (
        {"gpuNodes": ["gpu,team=vision,free="]},
        ["kubectl label node NODE gpu= team=vision free=    # a GPU node without one of them"],
    ),
    "updates by hand": (VALUE_SETS["agent alone"], ["updated when you delete them", "The scheduler is disabled"]),
    "no webhook": (
        VALUE_SETS["without webhook and policy"],
        ['"schedulerName":"vcuda-scheduler"', '"tencent.com/vcuda-memory":"16"'],
    ),
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


def test_the_notes_explain_the_chosen_values_and_their_effects(chart: Chart) -> None:
    said = {name: chart.render(values).notes for name, (values, _) in SAID.items()}
    assert [(name, each) for name, (_, expected) in SAID.items() for each in expected if each not in said[name]] == []


def test_an_image_of_ones_own_is_not_doubted(chart: Chart) -> None:
    assert "is not set" not in chart.render({"image": {"repository": "r.example.org/vcuda"}}).notes
