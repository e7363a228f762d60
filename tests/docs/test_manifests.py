"""The manifests in the documentation: the API server takes each, strictly, and the webhook admits its pods as they are.

Not here: kinds of others (Kueue, Karpenter, Volcano), of which Kubernetes has no schema; values of charts
(tests/daemonset/test_guides.py).
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from deviceplugin.cluster.webhook.pod_json import Json
from tests.cluster.webhook.makers import CORE, MEMORY, mutated, response, review
from tests.daemonset.test_platforms import NEWEST, OLDEST
from tests.definitions.kubernetes import faults
from tests.fenced import fenced

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
VOLCANO = ("scheduling.volcano.sh", "batch.volcano.sh")
OF_OTHERS = (
    "vcuda",
    "kueue.x-k8s.io",
    "config.kueue.x-k8s.io",
    "kubescheduler.config.k8s.io",
    "karpenter.sh",
    "scheduling.x-k8s.io",
    *VOLCANO,
)
"""API groups that Kubernetes has no schemas of; the first one is of our own configuration files."""
ALPHA = {("gangs.md", "PodGroup"), ("gangs.md", "Job")}
"""What exists in one version of Kubernetes, as the page says."""
ALPHA_VERSION = "1.36"
CLAIMS = "1.34"
"""The first version with resource.k8s.io/v1."""


def documents() -> Iterator[tuple[str, Json]]:
    for page in PAGES:
        for text in fenced(page, "yaml"):
            yield from ((page.name, each) for each in yaml.safe_load_all(text))


DOCUMENTS = list(documents())
OBJECTS = [(page, each) for page, each in DOCUMENTS if "apiVersion" in each]
OWN = [(page, each) for page, each in OBJECTS if each["apiVersion"].partition("/")[0] not in OF_OTHERS]


def versions(page: str, document: Json) -> tuple[str, ...]:
    if (page, document["kind"]) in ALPHA:
        return (ALPHA_VERSION,)
    return (CLAIMS if "resourceClaim" in str(document) or "ResourceClaim" in document["kind"] else OLDEST, NEWEST)


def test_the_api_server_takes_them_strictly() -> None:
    asked = [(page, each, version) for page, each in OWN for version in versions(page, each)]
    assert [(*case, wrong) for case in asked if (wrong := faults(*case[1:]))] == []


def test_the_pages_with_manifests_are_looked_at() -> None:
    assert [page for page, each in DOCUMENTS if not isinstance(each, dict)] == []
    looked_at = {page for page, _ in OWN}
    assert looked_at >= {"README.md", "gangs.md", "jupyter.md", "kueue.md", "multi-gpu.md", "quotas.md", "vllm.md"}


def test_a_misspelled_field_is_found() -> None:
    pod = yaml.safe_load(fenced(ROOT / "README.md", "yaml")[0])
    pod["spec"]["containers"][0]["resource"] = {}
    (wrong,) = faults(pod, NEWEST)
    assert "'resource' was unexpected" in wrong


def dicts(value: object) -> Iterator[Json]:
    if isinstance(value, dict):
        yield value
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    for each in inner:
        yield from dicts(each)


def asking_alone(limits: Json, annotations: Json) -> Json:
    container = {"name": "main", "image": "busybox", "resources": {"limits": limits}}
    return {"metadata": {"name": "p", "annotations": annotations}, "spec": {"containers": [container]}}


def pods(document: Json) -> Iterator[Json]:
    """Pods and templates of a document; resources that stand alone, and a notebook's, as a pod of their own."""
    if "resources" in document and "kind" not in document:
        yield asking_alone(document["resources"]["limits"], {})
    for each in dicts(document):
        if isinstance(each.get("spec"), dict) and "containers" in each["spec"]:
            yield {"metadata": {"name": "p", **each.get("metadata", {})}, "spec": each["spec"]}
        if "extra_resource_limits" in each:
            yield asking_alone(each["extra_resource_limits"], each.get("extra_annotations", {}))


ASKING = [(page, pod) for page, each in DOCUMENTS for pod in pods(each) if "resourceClaims" not in pod["spec"]]


def ours(container: Json) -> dict[str, str]:
    return {key: str(count) for key, count in container["resources"]["limits"].items() if key in (CORE, MEMORY)}


def test_the_webhook_admits_the_pods_with_the_resources_that_they_name(subtests: pytest.Subtests) -> None:
    assert ASKING
    for number, (page, pod) in enumerate(ASKING):
        with subtests.test(page, number=number):
            answer = response(review(pod))
            assert (answer["allowed"], answer.get("warnings", [])) == (True, []), answer
            for before, after in zip(pod["spec"]["containers"], mutated(pod)["spec"]["containers"], strict=True):
                assert ours(after).items() >= ours(before).items()
                assert CORE in ours(after)


def test_an_impossible_request_is_found() -> None:
    pod = yaml.safe_load(fenced(ROOT / "README.md", "yaml")[0])
    pod["spec"]["containers"][0]["resources"]["limits"] = {CORE: 150}
    assert not response(review(pod))["allowed"]
