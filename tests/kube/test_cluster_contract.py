"""What the cluster's side relies on in an API server, asked of the stand-in and, where one is given, of a real one.

`VCUDA_CONTRACT_KUBECONFIG=FILE` (an administrator's) adds a real server to every test, as in `test_contract`.
"""

import asyncio
import base64
import dataclasses
import os
import uuid
from collections.abc import AsyncIterator, Awaitable
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest

from deviceplugin.errors import KubeConflictError, KubeError, KubeNotFoundError
from deviceplugin.kube.cluster_client import ClusterClient, Secret
from deviceplugin.kube.cluster_objects import cluster_nodes, cluster_pods
from deviceplugin.kube.collection import ObjectRef
from deviceplugin.kube.credentials import Credentials
from deviceplugin.kube.leader_election import LEASES, Term, create_lease, update_lease
from deviceplugin.kube.reflector import Reflector, WatchTiming
from deviceplugin.kube.transport import Timeouts, Transport
from deviceplugin.model.allocation import PodRef, PodUid
from deviceplugin.model.pod import ClusterPod, PlainPod
from deviceplugin.structs import replace
from sandbox.apiserver import ApiServer, JsonObject, container, node, pod
from sandbox.cluster.certificates import ClusterCa
from tests.waiting import in_background, until

REAL = os.environ.get("VCUDA_CONTRACT_KUBECONFIG", "")
TIMEOUTS = Timeouts(connect=30.0, request=30.0, silence=5.0)
PODS = "/api/v1/namespaces/default/pods"
HOOKS = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
MERGE = "application/merge-patch+json"


@dataclass
class World:
    """The client under test, and raw requests for what others do."""

    client: ClusterClient
    transport: Transport

    async def ask(self, method: str, path: str, body: JsonObject, *, kind: str = "application/json") -> JsonObject:
        encoded = msgspec.json.encode(body)
        answer = await self.transport.request(method, path, what="prepare", body=encoded, content_type=kind)
        found: JsonObject = msgspec.json.decode(answer)
        return found

    async def create_pod(self, *, gpu: bool = True, gates: bool = False) -> PodRef:
        item = pod(fresh("p"), container(cores=30, blocks=16) if gpu else container())
        if gates:
            item["spec"]["schedulingGates"] = [{"name": "example.com/quota"}]
        meta = (await self.ask("POST", PODS, {**item, "apiVersion": "v1", "kind": "Pod"}))["metadata"]
        return PodRef(PodUid(meta["uid"]), "default", meta["name"])


def fresh(word: str) -> str:
    return f"{word}-{uuid.uuid4().hex[:8]}"


@pytest.fixture(params=["stand-in", "real"] if REAL else ["stand-in"])
async def world(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[World]:
    async with ApiServer(bookmark_seconds=0.5) as server:
        kubeconfig = Path(REAL) if request.param == "real" else server.kubeconfig(tmp_path / "kc")
        transport = Transport(Credentials(kubeconfig), timeouts=TIMEOUTS)
        async with ClusterClient(transport) as client:
            yield World(client, transport)


async def refused(work: Awaitable[object], code: int) -> str:
    with pytest.raises(KubeError) as error:
        await work
    assert error.value.code == code
    return error.value.message


async def test_a_binding_is_made_once(world: World) -> None:
    ref, host = await world.create_pod(), fresh("n")
    other = replace(ref, uid=PodUid(str(uuid.uuid4())))
    with pytest.raises(KubeConflictError, match="UID in precondition"):
        await world.client.bind(other, host, {"tencent.com/predicate-node": "other"})
    await world.client.bind(ref, host, {"tencent.com/predicate-node": "y"})
    found = await world.client.get_pod(ref)
    assert (found.node, found.annotations) == (host, {"tencent.com/predicate-node": "y"})
    with pytest.raises(KubeConflictError, match=f'already assigned to node "{host}"'):
        await world.client.bind(ref, fresh("n"), {"tencent.com/predicate-node": "z"})
    nobody = replace(ref, name=fresh("nobody"))
    with pytest.raises(KubeNotFoundError, match=f"bind pod {nobody} to {host}"):
        await world.client.bind(nobody, host, {})


async def test_a_gated_pod_is_not_bound(world: World) -> None:
    gated = await world.create_pod(gates=True)
    with pytest.raises(KubeConflictError, match="schedulingGates"):
        await world.client.bind(gated, "n1", {})


async def test_a_binding_for_another_name_or_without_a_node_is_refused(world: World) -> None:
    ref = await world.create_pod()
    path = f"{PODS}/{ref.name}/binding"
    base = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": ref.name}}
    target = {"kind": "Node", "name": "n1"}
    await refused(world.ask("POST", path, {**base, "metadata": {"name": "x"}, "target": target}), 400)
    assert "target.name" in await refused(world.ask("POST", path, {**base, "target": {**target, "name": ""}}), 500)
    assert "target.kind" in await refused(world.ask("POST", path, {**base, "target": {**target, "kind": "Pod"}}), 500)


async def test_a_binding_ends_what_the_scheduler_said_before(world: World) -> None:
    ref = await world.create_pod()
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    status = {"conditions": [condition], "nominatedNodeName": "n9"}
    await world.ask("PATCH", f"{PODS}/{ref.name}/status", {"status": status}, kind=MERGE)
    before = (await world.client.list(cluster_pods())).items[ref.uid]
    assert isinstance(before, ClusterPod)
    assert before.condition is not None
    assert (before.is_refused, before.condition.reason, before.nominated_node) == (True, "Unschedulable", "n9")
    await world.client.bind(ref, "n1", {})
    after = (await world.client.list(cluster_pods())).items[ref.uid]
    assert isinstance(after, ClusterPod)
    assert after.condition is not None
    assert (after.condition.is_true, after.nominated_node) == (True, "")


async def test_pods_of_others_are_followed_on_nodes_alone_and_ended_ones_leave(world: World) -> None:
    gpu_pod, others = await world.create_pod(), await world.create_pod(gpu=False)
    reflector = Reflector(world.client, cluster_pods(), pace=WatchTiming(watch=5, first_wait=0.05, most_wait=0.1))

    def followed(uid: PodUid) -> tuple[str, str]:
        found = reflector.items[uid]
        return ("plain", found.node) if isinstance(found, PlainPod) else ("gpu_pod", found.pod.node)

    async with in_background(reflector.run()):
        await asyncio.wait_for(reflector.synced.wait(), 60)
        assert gpu_pod.uid in reflector.items
        assert others.uid not in reflector.items
        await world.client.bind(others, "n1", {})
        await until(lambda: others.uid in reflector.items)
        assert followed(others.uid) == ("plain", "n1")
        late = await world.create_pod()
        await until(lambda: late.uid in reflector.items)
        await world.client.bind(late, "n1", {"tencent.com/predicate-node": "y"})
        await until(lambda: followed(late.uid) == ("gpu_pod", "n1"))
        for ref in (late, others):
            await world.ask("PATCH", f"{PODS}/{ref.name}/status", {"status": {"phase": "Succeeded"}}, kind=MERGE)
        await until(lambda: not {late.uid, others.uid} & set(reflector.items))


async def test_nodes_are_followed(world: World) -> None:
    name = fresh("n")
    await world.ask("POST", "/api/v1/nodes", {**node(name), "apiVersion": "v1", "kind": "Node"})
    await world.client.annotate_node(name, {"tencent.com/vcuda-cordon": "GPU-a,1", "tencent.com/vcuda-inventory": "{}"})
    found = (await world.client.list(cluster_nodes())).items[name]
    assert (found.cordon, found.inventory, found.ready, found.unschedulable) == (
        frozenset({"GPU-a", "1"}),
        "{}",
        False,
        False,
    )


async def test_a_secret_has_one_maker_and_one_changer_at_a_time(world: World) -> None:
    new = Secret("default", fresh("s"), {"a": b"1", "b": b"\x00\xff"}, labels={"app": "vcuda"})
    with pytest.raises(KubeNotFoundError, match=f"get secret default/{new.name}"):
        await world.client.get_secret("default", new.name)
    made = await world.client.create_secret(new)
    assert made == await world.client.get_secret("default", new.name) == dataclasses.replace(new, version=made.version)
    with pytest.raises(KubeConflictError, match="already exists"):
        await world.client.create_secret(new)
    changed = await world.client.update_secret(made, {"a": b"2"})
    assert changed.data == {"a": b"2", "b": b"\x00\xff"}
    with pytest.raises(KubeConflictError):
        await world.client.update_secret(made, {"a": b"3"})


async def test_a_lease_has_one_maker_and_one_changer_at_a_time(world: World) -> None:
    name, time = fresh("l"), "2026-01-01T00:00:00.000000Z"
    ref = ObjectRef("default", name)
    made = await create_lease(world.client, ref, Term("a", 15, time, time))
    assert made.term == Term("a", 15, time, time)
    with pytest.raises(KubeConflictError, match="already exists"):
        await create_lease(world.client, ref, Term("b", 15, time, time))
    taken = await update_lease(world.client, made, Term("b", 15, time, time, 1))
    with pytest.raises(KubeConflictError):
        await update_lease(world.client, made, Term("c", 15, time, time, 1))
    given = await update_lease(world.client, taken, Term("", 1, time, time, 1))
    assert (await world.client.get(LEASES, ref)).term == given.term == Term("", 1, time, time, 1)
    path = f"/apis/coordination.k8s.io/v1/namespaces/default/leases/{name}"
    body = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": name}}
    said = await refused(world.ask("PUT", path, {**body, "spec": {"holderIdentity": "d"}}), 422)
    assert "must be specified for an update" in said
    late: JsonObject = {"renewTime": "2026-01-01T00:00:00Z"}
    await refused(world.ask("PATCH", path, {"spec": late}, kind=MERGE), 422)
    await refused(
        world.ask("POST", path.rpartition("/")[0], {**body, "metadata": {"name": fresh("l")}, "spec": late}), 400
    )
    await refused(world.ask("PATCH", path, {"spec": {"leaseDurationSeconds": 0}}, kind=MERGE), 422)


async def test_the_ca_goes_into_every_webhook_and_nothing_else_changes(world: World, tmp_path: Path) -> None:
    name, bundle = fresh("vcuda"), ClusterCa(tmp_path).certificate.read_bytes()
    config = {"service": {"name": "none", "namespace": "default", "path": "/webhook", "port": 443}}
    hooks = [
        {"name": f"{each}.vcuda.dev", "sideEffects": "None", "admissionReviewVersions": ["v1"], "clientConfig": config}
        for each in "ab"
    ]
    body = {"apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingWebhookConfiguration"}
    made = await world.ask("POST", HOOKS, {**body, "metadata": {"name": name}, "webhooks": hooks})
    try:
        assert [each["failurePolicy"] for each in made["webhooks"]] == ["Fail", "Fail"]
        await world.client.set_ca_bundle(name, bundle)
        first = msgspec.json.decode(await world.transport.request("GET", f"{HOOKS}/{name}", what="look"))
        await world.client.set_ca_bundle(name, bundle)
        found = msgspec.json.decode(await world.transport.request("GET", f"{HOOKS}/{name}", what="look"))
        assert found == first
        wanted = base64.b64encode(bundle).decode()
        assert [each["clientConfig"].pop("caBundle") for each in found["webhooks"]] == [wanted, wanted]
        assert found["webhooks"] == made["webhooks"]
        with pytest.raises(KubeNotFoundError):
            await world.client.set_ca_bundle(fresh("none"), bundle)
    finally:
        await world.transport.request("DELETE", f"{HOOKS}/{name}", what="tidy up")
