"""The chart where an API server has the definitions of cert-manager, OpenShift and the Prometheus operator.

In: their definitions as they publish them (tests/definitions). Their controllers do not run: what the API server takes
is tried, not what they make of it.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sandbox.cluster.client import Client
from sandbox.cluster.cluster import Cluster
from sandbox.cluster.waiting import wait_until
from tests.daemonset.chart import NAMESPACE, Object, render
from tests.daemonset.value_sets import VALUE_SETS, WITH_FOREIGN_KINDS
from tests.definitions.published import definitions
from tests.e2e.released import namespaces, release
from tests.programs import helm_program

pytestmark = pytest.mark.e2e

DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


@contextmanager
def defined(admin: Client) -> Iterator[None]:
    """For other tests the API server has none of them."""
    names = [each["metadata"]["name"] for each in definitions().values()]
    try:
        for each in definitions().values():
            admin.post(DEFINITIONS, each)
        wait_until(lambda: all(_is_served(admin, name) for name in names), "the definitions are served")
        yield
    finally:
        for name in _present(admin).intersection(names):
            admin.delete(f"{DEFINITIONS}/{name}")
        wait_until(lambda: not _present(admin).intersection(names), "the definitions are gone")


def _present(admin: Client) -> set[str]:
    return {each["metadata"]["name"] for each in admin.get(DEFINITIONS)["items"]}


def _is_served(admin: Client, name: str) -> bool:
    """Also to those who ask what there is, as Helm does."""
    found = admin.get(f"{DEFINITIONS}/{name}")
    if not any(each["type"] == "Established" and each["status"] == "True" for each in found["status"]["conditions"]):
        return False
    groups = {each["name"] for each in admin.get("/apis")["groups"]}
    return found["spec"]["group"] in groups


@pytest.fixture(scope="module")
def admin(cluster: Cluster) -> Iterator[Client]:
    with namespaces(cluster.admin), defined(cluster.admin):
        yield cluster.admin


@pytest.fixture(scope="module")
def helm(request: pytest.FixtureRequest) -> str:
    return helm_program(request)


def path(of: Object) -> str:
    """Where the API server has all objects of its kind."""
    spec = definitions()[of["kind"]]["spec"]
    within = f"namespaces/{NAMESPACE}/" if spec["scope"] == "Namespaced" else ""
    return f"/apis/{of['apiVersion']}/{within}{spec['names']['plural']}"


def test_the_api_server_takes_every_object_and_knows_every_field(admin: Client, helm: str, tmp_path: Path) -> None:
    seen = set()
    for values in (*VALUE_SETS.values(), WITH_FOREIGN_KINDS):
        for each in render(helm, values, folder=tmp_path):
            if each["kind"] in definitions():
                admin.post(f"{path(each)}?dryRun=All&fieldValidation=Strict", each)
                seen.add(each["kind"])
    assert seen == definitions().keys()


def test_helm_finds_the_definitions_and_installs_objects_of_each(
    cluster: Cluster, admin: Client, helm: str, tmp_path: Path
) -> None:
    """The platform is not among the values: the API of OpenShift says it."""
    asked = {key: WITH_FOREIGN_KINDS[key] for key in ("monitoring", "webhook")}
    expected = [each for each in render(helm, WITH_FOREIGN_KINDS, folder=tmp_path) if each["kind"] in definitions()]
    with release(cluster, helm, folder=tmp_path, more=asked):
        for each in expected:
            found = admin.get(f"{path(each)}/{each['metadata']['name']}")
            assert found["metadata"]["labels"].items() >= each["metadata"]["labels"].items()
            assert [key for key in each if key != "metadata" and not _has(found[key], each[key])] == []


def _has(found: object, asked: object) -> bool:
    """All that was asked for; the API server adds defaults and drops what it does not know."""
    if isinstance(asked, dict) and isinstance(found, dict):
        return all(key in found and _has(found[key], value) for key, value in asked.items())
    if isinstance(asked, list) and isinstance(found, list):
        return len(asked) == len(found) and all(map(_has, found, asked))
    return found == asked
