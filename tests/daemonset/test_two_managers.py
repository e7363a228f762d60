"""What two managers apply by server-side apply is the same field by field, so neither conflicts with the other.

The API server compares some lists and structures as one field (`atomic`). It writes its defaults into what is stored,
and not into what is applied again: where the chart leaves out a default, its own next apply under another name of a
manager differs from what is stored. Tried on a real API server (1.36.2), which is where ATOMIC comes from.
"""

from collections.abc import Iterator, Mapping

import yaml

from tests.daemonset.chart import Chart, Object, Rendered
from tests.daemonset.test_foreign_kinds import SETS, foreign
from tests.daemonset.test_platforms import OF_OTHERS
from tests.daemonset.value_sets import VALUE_SETS
from tests.definitions.strict import Object as Schema

ATOMIC: Mapping[str, tuple[str, ...]] = {
    "fieldRef": ("apiVersion",),  # core/v1: SetDefaults_ObjectFieldSelector
    "resourceFieldRef": ("divisor",),  # core/v1: a zero quantity
    "serviceAccountToken": ("expirationSeconds",),  # core/v1: SetDefaults_ServiceAccountTokenProjection
    "matchConstraints": (
        "matchPolicy",
        "namespaceSelector",
        "objectSelector",
    ),  # admissionregistration/v1: MatchResources
    "matchResources": ("matchPolicy", "namespaceSelector", "objectSelector"),
    "rules[]": ("scope",),  # admissionregistration/v1: SetDefaults_Rule
    "resourceRules[]": ("scope",),
    "ingress[].ports[]": ("protocol",),  # networking/v1: SetDefaults_NetworkPolicyPort
}
"""What of a structure the API server would add, by how its path ends; `pkg/apis/*/defaults.go` of Kubernetes. An empty
list is left out of what is stored."""

_WEBHOOKS_AND_POLICIES = "admissionregistration.k8s.io/"


def _places(value: object, path: str = "") -> Iterator[tuple[str, Object]]:
    """Every structure and its path, in which a member of a list is `[]`."""
    if isinstance(value, dict):
        yield path, value
        for key, inner in value.items():
            yield from _places(inner, f"{path}.{key}")
    elif isinstance(value, list):
        for each in value:
            yield from _places(each, f"{path}[]")


def _left_out(found: Object) -> Iterator[str]:
    rules_are_atomic = found["apiVersion"].startswith(_WEBHOOKS_AND_POLICIES)
    for path, structure in _places(found):
        for end, fields in ATOMIC.items():
            if path.endswith(f".{end}") and (rules_are_atomic or end != "rules[]"):
                yield from (f"{path}.{field}" for field in fields if field not in structure)
        yield from (
            f"{path}.{key} is empty" for key, inner in structure.items() if inner == [] and not _is_foreign(found)
        )


def _is_foreign(found: Object) -> bool:
    """A CustomResource is stored as it was written."""
    return str(found["apiVersion"]).startswith(OF_OTHERS)


def _patch(rendered: Rendered) -> Iterator[Object]:
    """What the operator's kustomization adds to Volcano's own Deployment."""
    if "vcuda-volcano" in rendered.names("ConfigMap"):
        text = rendered.get("ConfigMap", "vcuda-volcano")["data"]["deployment-patch.yaml"]
        yield {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "patch"}, **yaml.safe_load(text)}


def test_the_chart_writes_what_the_api_server_would_add_to_an_atomic_field(chart: Chart) -> None:
    sets = chart.render_all(VALUE_SETS)
    objects = [(name, each) for name, rendered in sets.items() for each in (*rendered, *_patch(rendered))]
    found = {(name, each["kind"], each["metadata"]["name"], out) for name, each in objects for out in _left_out(each)}
    assert sorted(found) == []
    ends = {end for _, each in objects for path, _ in _places(each) for end in ATOMIC if path.endswith(f".{end}")}
    assert ends >= {"fieldRef", "matchConstraints", "rules[]", "resourceRules[]", "ingress[].ports[]"}


def test_what_a_definition_of_another_project_adds_to_a_list_is_written_too(
    chart: Chart, foreign_definitions: Mapping[str, Object]
) -> None:
    """Of what the chart writes: relabelings of an operator are their own words."""
    found = {
        (each["kind"], each["metadata"]["name"], out)
        for name, rendered in chart.render_all(SETS).items()
        if name != "what installations seldom change"
        for each in foreign(rendered, foreign_definitions)
        for out in _missing(each, _schema(each, foreign_definitions), "", inside=False)
    }
    assert sorted(found) == []


def _schema(found: Object, definitions: Mapping[str, Object]) -> Schema:
    version = found["apiVersion"].rpartition("/")[2]
    versions = definitions[found["kind"]]["spec"]["versions"]
    (schema,) = (each["schema"]["openAPIV3Schema"] for each in versions if each["name"] == version)
    known: Schema = schema
    return known


def _missing(value: object, schema: Schema, path: str, *, inside: bool) -> Iterator[str]:
    """Defaults that are left out below a list or structure that is one field."""
    if isinstance(value, list):
        atomic = inside or schema.get("x-kubernetes-list-type", "atomic") == "atomic"
        for each in value:
            yield from _missing(each, schema.get("items", {}), f"{path}[]", inside=atomic)
    elif isinstance(value, dict):
        atomic = inside or schema.get("x-kubernetes-map-type") == "atomic"
        for key, inner in schema.get("properties", {}).items():
            if key in value:
                yield from _missing(value[key], inner, f"{path}.{key}", inside=atomic)
            elif atomic and "default" in inner:
                yield f"{path}.{key}"
