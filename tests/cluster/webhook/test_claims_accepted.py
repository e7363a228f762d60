"""What the webhook turns to claims the API server takes: the pod, and the template that is made for it."""

import pytest

from deviceplugin.cluster.webhook.pod_json import Json
from deviceplugin.model.annotation_names import annotation_names
from deviceplugin.model.claims import ClaimNames, NamedTemplates
from deviceplugin.model.preferences import parse_preferences
from sandbox.apiserver import Store
from tests.cluster.webhook.makers import CORE, MEMORY, container, gpu_pod, pod
from tests.cluster.webhook.test_claims import response_of, turned

SHARE = {CORE: "20", MEMORY: "8"}
USE_GPUS, AVOID_GPUS = "tencent.com/vcuda-use-gpus", "tencent.com/vcuda-avoid-gpus"
USE_MODELS = "tencent.com/vcuda-use-models"


def uuids(count: int) -> str:
    return ",".join(f"GPU-{at:08x}-0000-0000-0000-000000000000" for at in range(count))


ACCEPTED: dict[str, Json] = {
    "32 GPUs": gpu_pod({CORE: "3200"}),
    "230 UUIDs": gpu_pod(SHARE, {USE_GPUS: uuids(230)}),
    "240 and 230 UUIDs": gpu_pod(SHARE, {USE_GPUS: uuids(230), AVOID_GPUS: uuids(230)}),
    "a model beyond the basic plane": gpu_pod(SHARE, {USE_MODELS: "\U0001f4a1 A100"}),
    "a model with quotes and backslashes": gpu_pod(SHARE, {USE_MODELS: 'A"100\\, \\ud83d'}),
    "a name that is cut at a hyphen": gpu_pod(SHARE, name="a" * 53 + "-" + "b" * 9),
    "a name that is cut at hyphens": gpu_pod(SHARE, name="a" * 50 + "--------" + "b" * 5),
    "a name of 63 characters": gpu_pod(SHARE, name="a" * 63),
    "64 containers whose names are cut to one": pod(
        *(container(f"{'a' * 59}-{at:03}", dict(SHARE)) for at in range(64)), annotations={}
    ),
    "65,535 blocks": gpu_pod({CORE: "10", MEMORY: "65535"}),
}


@pytest.mark.parametrize("what", ACCEPTED)
def test_the_api_server_takes_what_the_webhook_made(what: str) -> None:
    store, found = Store(), turned(ACCEPTED[what])
    made = store.create("pods", found)
    claims = made["spec"]["resourceClaims"]
    assert len({each["name"] for each in claims}) == len(claims) == len(made["spec"]["containers"])
    names = annotation_names("tencent.com")
    wanted = parse_preferences(found["metadata"].get("annotations") or {}, names).gpus
    for name in {each["resourceClaimTemplateName"] for each in claims}:
        templates = NamedTemplates(wanted, ClaimNames("tencent.com"))
        spec = templates.spec(templates.size(name))
        store.create("resourceclaimtemplates", {"metadata": {"name": name}, "spec": {"spec": spec}})


def test_what_the_api_server_would_refuse_later_is_refused_with_a_sentence(subtests: pytest.Subtests) -> None:
    cases = {
        "container main: 40 GPUs were requested and a claim has at most 32 devices": gpu_pod({CORE: "4000"}),
        "container main: the GPUs that the pod's annotations name take 17211 bytes in a claim and Kubernetes takes "
        "10240; name fewer GPUs, or models": gpu_pod(SHARE, {USE_GPUS: uuids(390)}),
        "in a claim and Kubernetes takes": gpu_pod(SHARE, {"nvidia.com/nouse-gputype": "A" * 12000}),
    }
    for sentence, given in cases.items():
        with subtests.test(sentence):
            found = response_of(given)
            assert not found["allowed"]
            assert sentence in found["status"]["message"]
