"""Describes the chart's values once: the comments of values.yaml are the schema's descriptions and the chart's README.

In: values.yaml and values.schema.json of daemonset/chart. Out: the texts of values.schema.json and README.md, which
scripts/docs writes. Invariant: only `description` changes in the schema; what a value may be is written by hand, and so
are the descriptions of what values.yaml does not show: members of lists, and of the types of Kubernetes.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

CHART = Path(__file__).resolve().parent.parent / "daemonset" / "chart"
VALUES, SCHEMA, ABOUT = CHART / "values.yaml", CHART / "values.schema.json", CHART / "Chart.yaml"
_FREE = ("nodeSelector", "resources", "labels")
"""Mappings that operators fill over a default; `hami.resources` has fixed keys."""


@dataclass(frozen=True, slots=True)
class Value:
    """A leaf or a group; the description is the comment right above it, empty if there is none."""

    path: tuple[str, ...]
    description: str
    default: object
    is_group: bool


def values() -> list[Value]:
    """All values in the order of values.yaml; a group comes before its members."""
    text = VALUES.read_text(encoding="utf-8")
    root = yaml.compose(text, yaml.SafeLoader)
    assert isinstance(root, yaml.MappingNode)
    return list(_members(root, (), text.splitlines()))


def _members(group: yaml.MappingNode, path: tuple[str, ...], lines: list[str]) -> Iterator[Value]:
    for key, node in group.value:
        inner, said = (*path, key.value), _comment(lines, key.start_mark.line)
        if isinstance(node, yaml.MappingNode) and node.value and not _is_free(inner):
            yield Value(inner, said, None, True)
            yield from _members(node, inner, lines)
        else:
            yield Value(inner, said, _plain(node), False)


def _comment(lines: list[str], line: int) -> str:
    first = line
    while first and lines[first - 1].lstrip().startswith("#"):
        first -= 1
    return " ".join(each.strip().removeprefix("#").strip() for each in lines[first:line])


def _is_free(path: tuple[str, ...]) -> bool:
    return path[-1] in _FREE and path[0] != "hami"


def _plain(node: yaml.Node) -> object:
    found: object = yaml.safe_load(yaml.serialize(node))
    return found


def schema() -> str:
    """values.schema.json with the descriptions of today."""
    document: dict[str, Any] = json.loads(SCHEMA.read_text(encoding="utf-8"))
    for value in values():
        place = document
        for key in value.path:
            place = place["properties"][key]
        place["description"] = value.description
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def readme() -> str:
    about = yaml.safe_load(ABOUT.read_text(encoding="utf-8"))
    return f"""# {about["name"]} {about["version"]}

<!-- made by scripts/docs from values.yaml; edit the comments there instead -->

{about["description"]}.

```
helm install vcuda daemonset/chart --namespace kube-system --set image.repository=$REGISTRY/vcuda
```

`$REGISTRY` is where you pushed the image: [installation](../../docs/install.md),
[platforms](../../docs/how-to/platforms.md), [upgrade and rollback](../../docs/how-to/upgrade.md).

## Values

Helm refuses a value that is not here. `--set a.b=c` sets the value `a.b`. A chart that contains this one may have it on
`condition: vcuda.enabled`, under an alias and with tags. `nameOverride` and `fullnameOverride` are refused: a cluster
has one vcuda, and policies, rights and commands refer to the names of its objects.
{"".join(_tables())}"""


def _tables() -> Iterator[str]:
    """One table for each group of the first level; the values outside groups come first."""
    found, document = values(), json.loads(SCHEMA.read_text(encoding="utf-8"))
    yield _table([each for each in found if len(each.path) == 1 and not each.is_group], document)
    for group in (each for each in found if len(each.path) == 1 and each.is_group):
        yield f"\n### {group.path[0]}\n\n{group.description}\n"
        yield _table([each for each in found if each.path[0] == group.path[0] and not each.is_group], document)


def _table(rows: list[Value], document: dict[str, Any]) -> str:
    lines = ["", "| value | type | default | |", "|---|---|---|---|"]
    for each in rows:
        default = json.dumps(each.default, ensure_ascii=False).replace("|", r"\|")
        told = each.description.replace("|", r"\|")
        lines.append(f"| `{'.'.join(each.path)}` | {_type(each.path, document)} | `{default}` | {told} |")
    return "\n".join([*lines, ""])


def _type(path: tuple[str, ...], document: dict[str, Any]) -> str:
    place = document
    for key in path:
        place = place["properties"][key]
    return ", ".join(dict.fromkeys(_types(place, document)))


def _types(place: dict[str, Any], document: dict[str, Any]) -> Iterator[str]:
    if "$ref" in place:
        yield from _types(document["definitions"][place["$ref"].rpartition("/")[2]], document)
    elif "enum" in place:
        yield from (f"`{json.dumps(each)}`" for each in place["enum"])
    else:
        for inner in place.get("oneOf") or place.get("anyOf") or ():
            yield from _types(inner, document)
        said = place.get("type", ())
        yield from [said] if isinstance(said, str) else said
