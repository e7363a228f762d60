"""Whether an object is what a CustomResourceDefinition permits, and has no field that it does not know.

In: an object of a kind that `published` has. Out: what is wrong, one line each. Not here: rules in CEL, which a real
API server evaluates (tests/e2e/test_foreign_kinds.py).
"""

from functools import cache
from typing import Any

from jsonschema import Draft202012Validator

from tests.definitions.published import definitions

Object = dict[str, Any]


def faults(found: Object) -> list[str]:
    return told(_validator(found["kind"], found["apiVersion"]), found)


def told(validator: Draft202012Validator, found: Object) -> list[str]:
    return sorted(f"{each.json_path}: {each.message}" for each in validator.iter_errors(found))


@cache
def _validator(kind: str, api_version: str) -> Draft202012Validator:
    group, _, version = api_version.rpartition("/")
    spec = definitions()[kind]["spec"]
    assert (group, kind) == (spec["group"], spec["names"]["kind"])
    (schema,) = (each["schema"]["openAPIV3Schema"] for each in spec["versions"] if each["name"] == version)
    return Draft202012Validator(_closed(schema))


def _closed(schema: dict[str, Any]) -> dict[str, Any]:
    """Every object that lists its fields has no others: these schemas are structural, so the lists are whole."""
    found = dict(schema)
    if "properties" in schema:
        found["properties"] = {name: _closed(each) for name, each in schema["properties"].items()}
        if not schema.get("x-kubernetes-preserve-unknown-fields"):
            found["additionalProperties"] = False
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), dict):
            found[key] = _closed(schema[key])
    return {"anyOf": [{"type": "null"}, found]} if schema.get("nullable") else found
