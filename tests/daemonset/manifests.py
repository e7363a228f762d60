"""The manifests as data, and the one piece of kustomize that their components need."""

import copy
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2] / "daemonset"
Object = dict[str, Any]


def documents(path: str) -> list[Object]:
    return list(yaml.load_all((ROOT / path).read_text(), yaml.CSafeLoader))


def base() -> dict[str, Object]:
    """What `base` applies, by kind; `confinement` has its policies."""
    files = yaml.safe_load((ROOT / "base/kustomization.yaml").read_text())["resources"]
    files.remove("confined.yaml")
    return {document["kind"]: document for file in files for document in documents(f"base/{file}")}


def confinement() -> list[Object]:
    """The policies of `base` that hold the agent to its node."""
    return documents("base/confined.yaml")


def with_component(name: str, objects: dict[str, Object]) -> dict[str, Object]:
    """`objects` with a component's JSON patches applied."""
    changed = copy.deepcopy(objects)
    for patch in documents(f"components/{name}/kustomization.yaml")[0].get("patches", []):
        target = changed[patch["target"]["kind"]]
        assert target["metadata"]["name"] == patch["target"]["name"]
        for operation in yaml.safe_load(patch["patch"]):
            _apply(target, operation)
    return changed


def _apply(document: Object, operation: Object) -> None:
    *path, last = operation["path"].lstrip("/").split("/")
    place: Any = document
    for step in path:
        place = place[int(step) if isinstance(place, list) else step]
    key: Any = int(last) if isinstance(place, list) and last != "-" else last
    match operation["op"]:
        case "add" if last == "-":
            place.append(operation["value"])
        case "add":
            assert key not in place
            place[key] = operation["value"]
        case "replace":
            assert place[key] is not None
            place[key] = operation["value"]
        case "remove":
            del place[key]
        case "test":
            assert place[key] == operation["value"], operation
        case other:
            raise AssertionError(f"unknown operation {other}")
