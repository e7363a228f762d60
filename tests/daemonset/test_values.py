"""The chart's values: all are described, wrong ones are refused."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import yaml

from scripts import chart_values, manifests
from tests.daemonset.chart import Chart, Object, Rendered
from tests.daemonset.together import Refused, together
from tests.daemonset.value_sets import VALUE_SETS

VALUES = manifests.CHART / "values.yaml"

WRONG: dict[str, tuple[Object, str]] = {
    "a value that does not exist": ({"agent": {"replicas": 2}}, "replicas"),
    "a group that does not exist": ({"devicePlugin": {}}, "devicePlugin"),
    "nodes by a selector of their own": ({"gpuNodes": {"pool": "gpu"}}, "gpuNodes"),
    "nodes by what labels cannot say": ({"gpuNodes": ["pool!=gpu"]}, "gpuNodes"),
    "nodes by labels of the past": ({"agent": {"nodeSelector": {"pool": "gpu"}}}, "nodeSelector"),
    "a domain that is none": ({"resourceDomain": "Tencent"}, "resourceDomain"),
    "an unknown node policy": ({"scheduler": {"nodePolicy": "random"}}, "nodePolicy"),
    "an unknown GPU policy": ({"scheduler": {"gpuPolicy": "mutex"}}, "gpuPolicy"),
    "an unknown choice of nodes": ({"scheduler": {"nodeChoice": "both"}}, "nodeChoice"),
    "a Grafana that is no address": ({"monitoring": {"grafanaUrl": "javascript:alert(1)"}}, "grafanaUrl"),
    "a scrape without unit": ({"monitoring": {"scrapeTimeout": "10"}}, "scrapeTimeout"),
    "a relabeling in Prometheus' own words": ({"monitoring": {"relabelings": [{"target_label": "a"}]}}, "target_label"),
    "no replica": ({"scheduler": {"replicas": 0}}, "replicas"),
    "replicas in words": ({"scheduler": {"replicas": "2"}}, "replicas"),
    "a port that needs privilege": ({"scheduler": {"port": 443}}, "port"),
    "a duration without unit": ({"scheduler": {"reservationTime": "60"}}, "reservationTime"),
    "a duration as a number": ({"scheduler": {"httpTimeout": 10}}, "httpTimeout"),
    "a failure policy that is none": ({"webhook": {"failurePolicy": "fail"}}, "failurePolicy"),
    "a webhook that waits too long": ({"webhook": {"timeoutSeconds": 60}}, "timeoutSeconds"),
    "memory of a share in other words": ({"webhook": {"shareMemory": "half"}}, "shareMemory"),
    "a whole GPU by default": ({"webhook": {"defaultCores": 100}}, "defaultCores"),
    "a resource without domain": ({"hami": {"resources": {"count": "gpu"}}}, "count"),
    "certificates from nowhere": ({"webhook": {"certificates": {"from": "certgen"}}}, "from"),
    "a Secret without its CA": ({"webhook": {"certificates": {"from": "secret"}}}, "caBundle"),
    "an issuer without a name": ({"webhook": {"certificates": {"issuerRef": {"kind": "Issuer"}}}}, "issuerRef"),
    "a driver from elsewhere": ({"agent": {"driver": {"from": "container"}}}, "from"),
    "a relative path": ({"agent": {"kubelet": {"root": "var/lib/kubelet"}}}, "root"),
    "a path that climbs into a flag": ({"agent": {"containerRuntime": {"socket": "/run/a --b"}}}, "socket"),
    "a flag with dashes": ({"agent": {"flags": {"--cdi": True}}}, "--cdi"),
    "a digest that is none": ({"image": {"digest": "latest"}}, "digest"),
    "a quantity that is none": ({"agent": {"resources": {"limits": {"memory": "lots"}}}}, "memory"),
    "a toleration with a wrong word": ({"agent": {"tolerations": [{"operator": "Any"}]}}, "operator"),
    "a feature gate in words": ({"scheduler": {"kubeScheduler": {"featureGates": {"A": "yes"}}}}, "featureGates"),
    "a rule for everything": (
        {"scheduler": {"kubeScheduler": {"rules": [{"apiGroups": [""], "resources": ["*"], "verbs": ["get"]}]}}},
        "rules",
    ),
    "the nodes' network without a certificate": ({"scheduler": {"hostNetwork": True}}, "ca/name"),
    "a kube-scheduler elsewhere that shows nothing": ({"scheduler": {"leaderElection": "own"}}, "ca/name"),
    "a CA, and nothing to show it": (
        {"scheduler": {"callers": {"ca": {"name": "ca"}}}},
        "certificateSecret",
    ),
    "a certificate that nobody asks for": ({"scheduler": {"callers": {"certificateSecret": "c"}}}, "certificateSecret"),
    "callers without a name": ({"scheduler": {"callers": {"names": []}}}, "names"),
    "callers in one word": ({"scheduler": {"callers": {"names": ["a,b"]}}}, "names"),
    "an election that the chart does not make": ({"scheduler": {"leaderElection": "none"}}, "leaderElection"),
    "a policy that lets nobody through, or all": ({"scheduler": {"networkPolicy": {"enabled": True}}}, "from"),
    "a policy for the nodes' network": (
        {
            "scheduler": {
                "hostNetwork": True,
                "callers": {"ca": {"name": "ca"}, "certificateSecret": "c"},
                "networkPolicy": {"enabled": True, "from": [{"ipBlock": {"cidr": "10.0.0.0/24"}}]},
            }
        },
        "networkPolicy/enabled",
    ),
    "a spread over nothing": ({"scheduler": {"topologySpreadConstraints": [{"maxSkew": 1}]}}, "topologyKey"),
    "an update strategy that is none": ({"agent": {"updateStrategy": "Recreate"}}, "updateStrategy"),
    "nothing where a name is needed": ({"image": {"repository": ""}}, "repository"),
    "a repository that ends with a slash": ({"image": {"repository": "registry.example.org/"}}, "repository"),
    "a repository with a tag": (
        {"scheduler": {"kubeScheduler": {"image": {"repository": "mirror:5000/kube-scheduler:v1.36.2"}}}},
        "repository",
    ),
    "a socket whose directory is the whole node": (
        {"agent": {"containerRuntime": {"socket": "/containerd.sock"}}},
        "socket",
    ),
}


def test_a_wrong_value_is_refused_by_its_name(chart: Chart) -> None:
    found = together(chart, [values for values, _ in WRONG.values()])
    said = {name: each.by_schema if isinstance(each, Refused) else "" for name, each in zip(WRONG, found, strict=True)}
    assert {name: said[name] for name, (_, named) in WRONG.items() if named not in said[name]} == {}


def test_a_chart_that_stands_alone_refuses_it_too(chart: Chart) -> None:
    said = chart.refusal({"agent": {"replicas": 2}})
    assert "values don't meet the specifications of the schema" in said
    assert "replicas" in said


def test_the_defaults_meet_the_schema(chart: Chart) -> None:
    assert chart.render(yaml.safe_load(VALUES.read_text())).names("DaemonSet") == {"vcuda-agent"}


def _keys(value: object, path: str = "") -> set[str]:
    """Every group and leaf; what a user fills in himself (an empty mapping, a list) counts as a leaf."""
    if not isinstance(value, dict):
        return {path}
    return {path}.union(*(_keys(inner, f"{path}.{key}".lstrip(".")) for key, inner in value.items()))


def _allowed(schema: Object, root: Object, path: str = "") -> set[str]:
    while "$ref" in schema:
        schema = root["definitions"][schema["$ref"].rpartition("/")[2]]
    inner = schema.get("properties", {})
    return {path}.union(*(_allowed(each, root, f"{path}.{key}".lstrip(".")) for key, each in inner.items()))


OF_OUTER_CHARTS = {"enabled", "nameOverride", "fullnameOverride"}
"""Not values of this chart; a template answers them (test_umbrella.py). A default of `enabled` would win over tags."""


def test_values_and_schema_name_the_same() -> None:
    schema = yaml.safe_load((manifests.CHART / "values.schema.json").read_text())
    written = _keys(yaml.safe_load(VALUES.read_text()))
    allowed = _allowed(schema, schema)
    assert not written - allowed - _inside(written, ("nodeSelector", "resources", "labels"))
    free = {path for path in allowed - written if any(path.startswith(f"{leaf}.") for leaf in written if leaf)}
    assert allowed - written - free == OF_OUTER_CHARTS


def _inside(paths: set[str], free: tuple[str, ...]) -> set[str]:
    return {path for path in paths if any(f".{name}." in f".{path}" for name in free)}


def test_every_value_is_described_by_a_comment_of_its_own() -> None:
    assert [".".join(each.path) for each in chart_values.values() if not each.description] == []


def test_every_property_of_the_schema_is_described_at_every_depth() -> None:
    document = json.loads(chart_values.SCHEMA.read_text())
    described = dict(_properties(document, ""))
    assert len(described) > 200
    assert [path for path, description in described.items() if not description] == []


def _properties(place: object, path: str) -> Iterator[tuple[str, str]]:
    """The path and the description of each, also of members of lists and of the definitions; conditions have none."""
    if not isinstance(place, dict):
        return
    for key, inner in place.items():
        if key == "properties":
            yield from ((f"{path}/{name}", each.get("description", "")) for name, each in inner.items())
        if key not in ("if", "then", "else", "not"):
            yield from _properties(inner, f"{path}/{key}")


def test_the_schema_and_the_readme_say_what_the_comments_say() -> None:
    """Whether both are current: tests/docs/test_reference.py."""
    schema = yaml.safe_load((manifests.CHART / "values.schema.json").read_text())
    root = schema["properties"]["agent"]["properties"]["driver"]["properties"]["root"]
    assert root["description"].startswith("For `from: host`: the directory on the node")
    assert root["pattern"]
    row = next(line for line in chart_values.readme().splitlines() if line.startswith("| `agent.driver.root` |"))
    assert row == f'| `agent.driver.root` | string | `""` | {root["description"]} |'


def test_helm_shows_the_readme(helm: str) -> None:
    command = [helm, "show", "readme", str(manifests.CHART)]
    said = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    assert said.strip() == chart_values.readme().strip()


_FREE = ("nodeSelector", "resources")
"""Mappings that users fill over a default; only `hami.resources` has fixed keys."""


def _leaves(value: object, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    is_free = path[-1:] in [(each,) for each in _FREE] and path[0] != "hami"
    if not isinstance(value, dict) or not value or is_free:
        yield path
        return
    for key, inner in value.items():
        yield from _leaves(inner, (*path, key))


def _without(values: Object, path: tuple[str, ...]) -> Object | None:
    """The same with the default at this place; None where nothing is said of it."""
    key, *rest = path
    if key not in values:
        return None
    if not rest:
        return {other: value for other, value in values.items() if other != key}
    inner = _without(values[key], tuple(rest))
    return None if inner is None else {**values, key: inner}


WITH_CERTIFICATES = {"Secret", "MutatingWebhookConfiguration"}
"""Kinds of objects in which Helm writes a certificate, which it makes again in each rendering."""


def without_certificates(rendered: Rendered) -> Rendered:
    """What two renderings have in common."""
    kept = {key: each for key, each in rendered.objects.items() if key[0] not in WITH_CERTIFICATES}
    return Rendered(kept, rendered.notes)


def test_sets_that_are_rendered_by_one_process_are_as_each_alone(helm: str, chart: Chart, tmp_path: Path) -> None:
    rendered, alone = chart.render_all(VALUE_SETS), Chart(helm, tmp_path)
    for name in ("everything else", "volcano", "what installations seldom change"):
        expected = alone.render(VALUE_SETS[name])
        assert without_certificates(rendered[name]) == without_certificates(expected), name


def test_every_value_changes_something(chart: Chart) -> None:
    """A value is left out of each set that gives it; a set that is refused without it is another one too."""
    leaves = list(_leaves(yaml.safe_load(VALUES.read_text())))
    without = [
        (path, name, other)
        for path in leaves
        for name, values in VALUE_SETS.items()
        if (other := _without(values, path)) is not None
    ]
    assert set(leaves) == {path for path, _, _ in without}, "a set of tests/daemonset/value_sets.py must give each"
    given = dict(zip(VALUE_SETS, together(chart, list(VALUE_SETS.values())), strict=True))
    others = together(chart, [other for _, _, other in without])
    changes = {path for (path, name, _), other in zip(without, others, strict=True) if other != given[name]}
    assert set(leaves) - changes == set(), "values that do nothing"
