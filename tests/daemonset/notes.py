"""The notes that Helm prints after installing the chart, without a cluster.

In: Helm and values. Out: the text of NOTES.txt. `helm template` leaves the notes out and `helm install --dry-run` wants
an API server, so a copy of the chart carries them in an object.
"""

import shutil
from pathlib import Path

import yaml

from scripts import manifests
from tests.daemonset.chart import NAMESPACE, Object

_CARRIER = """kind: ConfigMap
metadata: {name: notes}
data:
  notes: {{ include "notes" . | toJson }}
"""


def chart_with_notes(folder: Path) -> Path:
    """A copy of the chart that renders its notes too, as the ConfigMap `notes`."""
    copy = folder / "chart"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(manifests.CHART, copy)
    templates = copy / "templates"
    text = (templates / "NOTES.txt").read_text()
    (templates / "_notes.tpl").write_text('{{ define "notes" }}' + text + "{{ end }}")
    (templates / "notes.yaml").write_text(_CARRIER)
    return copy


def notes(helm: str, values: Object | None = None, *, folder: Path) -> str:
    chart, file = chart_with_notes(folder), folder / "values.yaml"
    file.write_text(yaml.safe_dump(values or {}))
    rendered = manifests.render(
        helm, f"--values={file}", "--show-only=templates/notes.yaml", namespace=NAMESPACE, chart=chart
    )
    return str(yaml.safe_load(rendered)["data"]["notes"])
