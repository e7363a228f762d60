"""Bindings, Secrets, Leases and webhook configurations behave in the stand-in as Kubernetes documents them."""

import base64
import io
import json
from collections.abc import AsyncIterator

import aiohttp
import pytest

from sandbox.apiserver import ApiServer, JsonObject, container, pod

pytestmark = pytest.mark.thorough

SECRETS = "/api/v1/namespaces/default/secrets"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/default/leases"
HOOKS = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
BINDING = "/api/v1/namespaces/default/pods/a/binding"
MERGE, STRATEGIC = "application/merge-patch+json", "application/strategic-merge-patch+json"
PEM = base64.b64encode(b"-----BEGIN CERTIFICATE-----\n").decode()
TIME = "2026-01-01T00:00:00.000000Z"


class Caller:
    def __init__(self, server: ApiServer, session: aiohttp.ClientSession) -> None:
        self.server = server
        self._session = session

    async def __call__(
        self, method: str, path: str, body: JsonObject | None = None, *, kind: str = MERGE
    ) -> tuple[int, JsonObject]:
        headers = {"Content-Type": kind if method == "PATCH" else "application/json"}
        data = None if body is None else io.BytesIO(json.dumps(body).encode())
        async with self._session.request(method, self.server.url + path, data=data, headers=headers) as reply:
            return reply.status, await reply.json()


@pytest.fixture
async def call() -> AsyncIterator[Caller]:
    async with ApiServer() as server, aiohttp.ClientSession() as session:
        yield Caller(server, session)


def secret(**data: str) -> JsonObject:
    return {"metadata": {"name": "s"}, "data": data}


def lease(**spec: object) -> JsonObject:
    return {"metadata": {"name": "l"}, "spec": spec}


def hook(name: str = "a.example.com", **more: object) -> JsonObject:
    service = {"name": "vcuda", "namespace": "kube-system"}
    base = {"name": name, "sideEffects": "None", "admissionReviewVersions": ["v1"]}
    return {**base, "clientConfig": {"service": service}, **more}


def hooks(*each: JsonObject) -> JsonObject:
    return {"metadata": {"name": "h"}, "webhooks": list(each)}


def binding(node: str = "n1", name: str = "a", **meta: object) -> JsonObject:
    return {"metadata": {"name": name, **meta}, "target": {"kind": "Node", "name": node}}


async def test_a_binding_replaces_the_condition_that_said_unschedulable(call: Caller) -> None:
    call.server.store.create("pods", pod("a", container(cores=1)))
    refused = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    call.server.store.set_status("a", {"conditions": [refused], "nominatedNodeName": "n9"})
    assert (await call("POST", BINDING, binding()))[0] == 201
    status = call.server.store.get("pods", "a", namespace="default")["status"]
    assert status["conditions"] == [{"type": "PodScheduled", "status": "True"}]
    assert "nominatedNodeName" not in status


async def test_a_wrong_binding_changes_nothing(call: Caller, subtests: pytest.Subtests) -> None:
    call.server.store.create("pods", pod("a"))
    version = call.server.store.version
    cases: tuple[tuple[JsonObject, int, str], ...] = (
        (binding(uid="other"), 409, "UID in precondition"),
        (binding(resourceVersion="1"), 409, "has been modified"),
        (binding(name="b"), 400, "does not match"),
        ({"target": {"kind": "Pod", "name": "n1"}}, 500, "target.kind"),
        ({"target": {"kind": "Node"}}, 500, "target.name"),
    )
    for body, code, word in cases:
        with subtests.test(word=word):
            got, said = await call("POST", BINDING, body)
            assert (got, call.server.store.version) == (code, version)
            assert word in said["message"]


@pytest.mark.parametrize("state", ["bound", "deleting", "gated"])
async def test_a_pod_that_cannot_be_bound_is_a_conflict(call: Caller, state: str) -> None:
    item = pod("a")
    if state == "gated":
        item["spec"]["schedulingGates"] = [{"name": "quota"}]
    call.server.store.create("pods", item)
    if state == "bound":
        call.server.store.bind("a", "n0")
    if state == "deleting":
        change = {"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}
        call.server.store.patch("pods", "a", change, namespace="default")
    assert (await call("POST", BINDING, binding()))[0] == 409
    assert (await call("POST", BINDING.replace("/a/", "/zz/"), binding(name="zz")))[0] == 404


async def test_a_secret_is_made_once_and_changed_from_the_version_that_was_read(call: Caller) -> None:
    code, made = await call("POST", SECRETS, secret(a="MQ==") | {"stringData": {"b": "2"}})
    assert (code, made["type"], made["data"]) == (201, "Opaque", {"a": "MQ==", "b": "Mg=="})
    assert "stringData" not in made
    code, said = await call("POST", SECRETS, secret())
    assert (code, said["reason"]) == (409, "AlreadyExists")
    version = made["metadata"]["resourceVersion"]
    change = {"metadata": {"resourceVersion": version}, "data": {"a": "OQ==", "b": None}}
    code, changed = await call("PATCH", SECRETS + "/s", change)
    assert (code, changed["data"]) == (200, {"a": "OQ=="})
    assert (await call("PATCH", SECRETS + "/s", change))[0] == 409
    assert (await call("PUT", SECRETS + "/s", made))[0] == 409
    assert (await call("PUT", SECRETS + "/s", secret(z="MQ==")))[0] == 200  # blind: secrets allow it
    assert (await call("GET", SECRETS + "/s"))[1]["data"] == {"z": "MQ=="}


async def test_a_wrong_secret_is_refused(call: Caller, subtests: pytest.Subtests) -> None:
    cases: tuple[tuple[JsonObject, int, str], ...] = (
        (secret(a="no base64!"), 400, "base64"),
        (secret() | {"type": "kubernetes.io/tls"}, 422, "tls.crt"),
        (secret(a=base64.b64encode(bytes((1 << 20) + 1)).decode()), 422, "Too long"),
        ({"metadata": {"name": "s", "resourceVersion": "3"}}, 400, "should not be set"),
    )
    for body, code, word in cases:
        with subtests.test(word=word):
            got, said = await call("POST", SECRETS, body)
            assert got == code
            assert word in said["message"]


async def test_a_secrets_type_and_an_immutable_ones_data_stay(call: Caller) -> None:
    await call("POST", SECRETS, secret(a="MQ==") | {"immutable": True})
    assert (await call("PATCH", SECRETS + "/s", {"type": "other"}))[0] == 422
    assert (await call("PATCH", SECRETS + "/s", {"data": {"a": "Mg=="}}))[0] == 422
    assert (await call("PATCH", SECRETS + "/s", {"metadata": {"labels": {"x": "y"}}}))[0] == 200


async def test_of_two_that_take_a_lease_at_once_one_gets_it(call: Caller) -> None:
    code, made = await call("POST", LEASES, lease(holderIdentity="a", leaseDurationSeconds=15, renewTime=TIME))
    assert (code, made["apiVersion"]) == (201, "coordination.k8s.io/v1")
    assert (await call("POST", LEASES, lease()))[0] == 409
    first, second = (made | {"spec": {**made["spec"], "holderIdentity": who}} for who in "bc")
    assert (await call("PUT", LEASES + "/l", first))[0] == 200
    code, said = await call("PUT", LEASES + "/l", second)
    assert code == 409
    assert "leases.coordination.k8s.io" in said["message"]
    assert (await call("GET", LEASES + "/l"))[1]["spec"]["holderIdentity"] == "b"
    code, said = await call("PUT", LEASES + "/l", lease(holderIdentity="d"))
    assert code == 422
    assert "must be specified for an update" in said["message"]


async def test_a_lease_says_micro_seconds_and_sane_numbers(call: Caller) -> None:
    codes: list[tuple[JsonObject, int]] = [
        ({"renewTime": "2026-01-01T00:00:00Z"}, 400),
        ({"renewTime": "2026-01-01T00:00:00.123Z"}, 400),
        ({"acquireTime": "2026-01-01T00:00:00.123456Z"}, 201),
        ({"leaseDurationSeconds": 0}, 422),
        ({"leaseTransitions": -1}, 422),
        ({"holderIdentity": "", "leaseTransitions": 0}, 201),
    ]
    found = []
    for number, (spec, _) in enumerate(codes):
        wanted = lease(**spec)
        wanted["metadata"]["name"] = f"l-{number}"
        found.append((spec, (await call("POST", LEASES, wanted))[0]))
    assert found == codes


async def test_webhooks_get_defaults_and_a_strategic_patch_changes_the_one_it_names(call: Caller) -> None:
    code, made = await call("POST", HOOKS, hooks(hook(), hook("b.example.com", failurePolicy="Ignore")))
    assert code == 201
    first = made["webhooks"][0]
    assert (first["failurePolicy"], first["timeoutSeconds"], first["reinvocationPolicy"]) == ("Fail", 10, "Never")
    assert made["metadata"]["generation"] == 1
    change: JsonObject = {"webhooks": [{"name": "b.example.com", "clientConfig": {"caBundle": PEM}}]}
    code, patched = await call("PATCH", HOOKS + "/h", change, kind=STRATEGIC)
    assert code == 200
    assert [each["name"] for each in patched["webhooks"]] == ["a.example.com", "b.example.com"]
    assert patched["webhooks"][0] == first
    assert patched["webhooks"][1]["clientConfig"]["caBundle"] == PEM
    assert patched["webhooks"][1]["failurePolicy"] == "Ignore"
    assert patched["metadata"]["generation"] == 2
    late = change | {"metadata": {"resourceVersion": "1"}}
    assert (await call("PATCH", HOOKS + "/h", late, kind=STRATEGIC))[0] == 409
    assert (await call("PATCH", HOOKS + "/h", change))[0] == 422  # replaces the list, which is invalid then
    assert (await call("PUT", HOOKS + "/h", hooks(hook())))[0] == 422


async def test_a_wrong_webhook_is_refused(call: Caller, subtests: pytest.Subtests) -> None:
    cases: tuple[tuple[JsonObject, str], ...] = (
        (hooks(hook("short.name")), "three segments"),
        (hooks(hook(sideEffects="Some")), "sideEffects"),
        (hooks(hook(admissionReviewVersions=[])), "admissionReviewVersions"),
        (hooks(hook(timeoutSeconds=31)), "timeoutSeconds"),
        (hooks(hook(clientConfig={})), "exactly one of"),
        (hooks(hook(), hook()), "Duplicate"),
    )
    for body, word in cases:
        with subtests.test(word=word):
            code, said = await call("POST", HOOKS, body)
            assert code == 422
            assert word in said["message"]


async def test_the_new_resources_can_be_listed_and_watched(call: Caller) -> None:
    await call("POST", LEASES, lease())
    for path, kind in ((LEASES, "LeaseList"), (HOOKS, "MutatingWebhookConfigurationList"), (SECRETS, "SecretList")):
        code, found = await call("GET", path)
        assert (code, found["kind"]) == (200, kind)


async def test_annotations_above_256_kib_are_refused_but_for_a_bindings(call: Caller) -> None:
    """As on 1.36: a Binding writes them, and after it nothing else can be changed, but the pod can be deleted."""
    full = {"metadata": {"name": "a", "annotations": {"own": "x" * ((256 << 10) - 20)}}, "spec": pod("a")["spec"]}
    over = {**full, "metadata": {"name": "b", "annotations": {"own": "x" * (256 << 10)}}}
    pods = BINDING.removesuffix("/a/binding")
    assert (await call("POST", pods, over))[0] == 422
    assert (await call("POST", pods, full))[0] == 201
    assert (await call("PATCH", f"{pods}/a", {"metadata": {"annotations": {"more": "x" * 20}}}))[0] == 422
    assert (await call("POST", BINDING, binding(annotations={"ours": "x" * 100})))[0] == 201
    assert (await call("PATCH", f"{pods}/a/status", {"status": {"phase": "Running"}}))[0] == 422
    assert (await call("PATCH", f"{pods}/a", {"metadata": {"labels": {"a": "b"}}}))[0] == 422
    assert (await call("DELETE", f"{pods}/a"))[0] == 200


async def test_a_claim_template_that_no_server_takes_is_refused(call: Caller, subtests: pytest.Subtests) -> None:
    def template(request: JsonObject, times: int = 1) -> JsonObject:
        return {"metadata": {"name": "t"}, "spec": {"spec": {"devices": {"requests": [request] * times}}}}

    def selected(*texts: str) -> JsonObject:
        return {"name": "gpu", "exactly": {"selectors": [{"cel": {"expression": each}} for each in texts]}}

    cases = {
        "requests: Too many": template(selected("true"), 33),
        "may not be more than 10240 bytes": template(selected("x" * 10241)),
        "selectors: Too many": template(selected(*["true"] * 33)),
        "invalid unicode code point": template(selected('"\\ud83d\\udca1"')),
        "RFC 1123 label": template({**selected("true"), "name": "gpu-"}),
        "greater than zero": template({"name": "gpu", "exactly": {"count": 0}}),
    }
    path = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaimtemplates"
    for word, body in cases.items():
        with subtests.test(word):
            code, said = await call("POST", path, body)
            assert (code, word in said["message"]) == (422, True)
    assert (await call("POST", path, template(selected("x" * 10240))))[0] == 201
