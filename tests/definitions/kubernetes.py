"""What is wrong with an object of Kubernetes itself, strictly by the schemas of one version.

In: an object, a version (`1.36`). Out: what is wrong, one line each. The same as kubernetes_validate.validate, which
reads all schemas of the version again for each object.
"""

import re
from functools import cache
from typing import Any

from jsonschema import Draft202012Validator
from kubernetes_validate.utils import schema_contents  # type: ignore[import-untyped]
from referencing import Registry, Resource

from tests.definitions.strict import Object, told


def faults(found: Object, version: str) -> list[str]:
    return told(_validator(version, found["kind"], found["apiVersion"]), found)


@cache
def _validator(version: str, kind: str, api_version: str) -> Draft202012Validator:
    group = re.sub(r"^([^./]*)(?:\.[^/]*)?/", r"\1-", api_version)
    schema = _schema(version, f"{kind.lower()}-{group}")
    registry: Registry[Any] = _schema(version, "_definitions") @ (schema @ Registry())
    return Draft202012Validator(schema.contents, registry=registry)


@cache
def _schema(version: str, name: str) -> Resource[Any]:
    file = f"kubernetes-json-schema/v{version}.0-local-strict/{name}.json"
    return Resource.from_contents(schema_contents(file, version))
