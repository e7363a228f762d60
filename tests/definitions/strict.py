"""Whether an object is what a CustomResourceDefinition permits, and has no field that it does not know.

In: an object, its definition. Out: what is wrong, one line each. Not here: rules in CEL, which a real API server
evaluates (tests/e2e/test_foreign_kinds.py).
"""

from typing import Any

import jsonschema

from tests.daemonset.chart import Object


def faults(found: Object, definition: Object) -> list[str]:
    group, _, version = found["apiVersion"].rpartition("/")
    spec = definition["spec"]
    assert (group, found["kind"]) == (spec["group"], spec["names"]["kind"])
    (schema,) = (each["schema"]["openAPIV3Schema"] for each in spec["versions"] if each["name"] == version)
    validator = jsonschema.Draft202012Validator(_closed(schema))
    return sorted(f"{each.json_path}: {each.message}" for each in validator.iter_errors(found))


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
