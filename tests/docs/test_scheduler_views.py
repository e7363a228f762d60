"""docs/reference/http-api.md names every path, parameter and field of the view, and no others."""

import re

import msgspec
from msgspec.structs import fields

from deviceplugin.cluster.view import query
from deviceplugin.model import cluster_view
from scripts.manifests import ROOT

PAGE = (ROOT / "docs/reference/http-api.md").read_text()
ROWS: dict[str, type[msgspec.Struct]] = {
    "`/view/cluster`": cluster_view.ClusterView,
    "`/view/nodes/NAME`": cluster_view.OneNodeView,
    "`/view/pods/NAMESPACE/NAME`": cluster_view.OnePodView,
    "pages": cluster_view.NodesView,
    "namespace": cluster_view.NamespaceRow,
    "sample": cluster_view.UseSample,
    "event": cluster_view.ClusterEventRow,
    "node": cluster_view.NodeRow,
    "GPU": cluster_view.GpuRow,
    "holder": cluster_view.HolderRow,
    "pod": cluster_view.PodRow,
    "container": cluster_view.ContainerRow,
    "share": cluster_view.ShareRow,
    "live use of a GPU, or of all GPUs of a node": cluster_view.GpuLive,
    "live use of a share": cluster_view.ShareLive,
}
HEAD = {field.name for field in fields(cluster_view.Head)}


def table(heading: str) -> dict[str, str]:
    part = PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    rows = [line.strip("| ").split(" | ") for line in part.splitlines() if line.startswith("| ")]
    return {row[0]: row[-1] for row in rows[1:] if not row[0].startswith("-")}


def names_of(document: type[msgspec.Struct]) -> set[str]:
    names = {field.name for field in fields(document)}
    return names - HEAD if issubclass(document, cluster_view.Head) else names


def test_every_field_of_a_document_is_named() -> None:
    texts = table("Documents")
    named = {row: set(re.findall(r"`(\w+)`", texts[row])) - {"usage"} for row in ROWS}
    assert named == {row: names_of(document) for row, document in ROWS.items()}


def test_what_each_document_begins_with_is_named() -> None:
    (sentence,) = re.findall(r"Every document begins with (.*?)\. Fields", PAGE, re.DOTALL)
    assert set(re.findall(r"`(\w+)`", sentence)) == HEAD


def test_every_order_is_named() -> None:
    part = PAGE.partition("\n## Parameters\n")[2].partition("\n## ")[0]
    named = set(re.findall(r"`([\w-]+)`", part))
    assert [each for each in (*query.NodeSort, *query.PodSort, *query.NamespaceSort) if each.value not in named] == []
