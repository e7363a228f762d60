"""From a pod at the webhook to a bound one, over the wire and in its own process."""

import asyncio
import base64
import datetime as dt
import json
import re
import signal
from collections.abc import AsyncIterator
from itertools import product
from pathlib import Path

import aiohttp
import pytest
import pytest_asyncio
from click.testing import CliRunner
from prometheus_client.parser import text_string_to_metric_families

from deviceplugin.cli import main
from deviceplugin.cluster.certificates.keypair import KeyPair, make_ca
from deviceplugin.cluster.http.metrics import FAMILIES
from sandbox.apiserver.faults import Harm
from sandbox.apiserver.objects import container, pod
from tests.cluster.http.clients import client_certificate, showing
from tests.scheduler.scene import SERVICE_NAME, TOKEN, VIEWING, Json, Scene, Scheduler, cluster, gpu_node, holding
from tests.scheduler.test_claims_shown import claims_node, offers
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.asyncio(loop_scope="module")
TWO = (gpu_node("n1"), gpu_node("n2"))


def review(made: Json) -> Json:
    request = {
        "uid": "r1",
        "resource": {"group": "", "version": "v1", "resource": "pods"},
        "operation": "CREATE",
        "namespace": "default",
        "object": made,
    }
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def served(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[tuple[Scene, Scheduler]]:
    """One replica for all tests that leave it as it was."""
    async with cluster(tmp_path_factory.mktemp("served"), empty=True) as scene:
        replica = await scene.replica("served", "--reservation-time", "1h", "--gang-reservation-time", "1s")
        await scene.until_ready(replica)
        yield scene, replica
        assert "Traceback" not in replica.log.read_text()


async def test_a_pod_is_changed_by_the_webhook_chosen_by_filter_and_bound_with_its_gpus(
    served: tuple[Scene, Scheduler],
) -> None:
    scene, replica = served
    async with holding(scene, replica, *TWO):
        outcomes = ('requests_total{outcome="bound",verb="bind"}', 'requests_total{outcome="changed",verb="webhook"}')
        await scene.until_metric(replica, "vcuda_scheduler_gpus ", 4)  # and what was before is counted
        before = [await scene.metric(replica, f"vcuda_scheduler_{each}") for each in outcomes]
        status, answer = await scene.ask(replica, "/webhook", review(pod("p", container(cores=30, blocks=8))))
        patch = json.loads(base64.b64decode(answer["response"]["patch"]))
        assert (status, answer["response"]["allowed"]) == (200, True)
        assert {"op": "add", "path": "/spec/schedulerName", "value": "vcuda-scheduler"} in patch

        made = scene.create_pod("p")
        status, answer = await scene.filter(replica, made, "n1", "n2", "elsewhere")
        (chosen,) = answer["NodeNames"]
        assert answer["FailedAndUnresolvableNodes"] == {}, "where a node is left nobody reads reasons"
        assert await scene.bind(replica, made, chosen) == (200, {"Error": ""})
        bound = scene.stored("p")
        assert bound["spec"]["nodeName"] == chosen
        assert bound["metadata"]["annotations"]["tencent.com/predicate-node"] == chosen
        assert f"GPU-{chosen}-" in bound["metadata"]["annotations"]["tencent.com/vcuda-allocation"]

        event = await scene.event(bound)
        assert (event["reason"], event["source"]["component"]) == ("GPUPlaced", "vcuda-scheduler")
        assert event["message"].startswith(f"node {chosen} is the first by name")
        assert "; container main: GPU 0 is " in event["message"]

        for outcome, count in zip(outcomes, before, strict=True):
            await scene.until_metric(replica, f"vcuda_scheduler_{outcome}", count + 1)
        _, text = await scene.ask(replica, "/metrics")
        found = {each.name for each in text_string_to_metric_families(text) if each.name.startswith("vcuda")}
        assert found == {each.name.removesuffix("_total") for each in FAMILIES}, "all of the reference and no other"


async def test_a_pod_that_is_not_bound_after_all_says_why(served: tuple[Scene, Scheduler]) -> None:
    scene, replica = served
    async with holding(scene, replica, *TWO):
        for name in ("one", "two"):
            assert await scene.bind(replica, scene.create_pod(name, cores=100, blocks=0), "n1") == (200, {"Error": ""})
        late = scene.create_pod("late", cores=100, blocks=0)
        for _ in range(3):
            _, answer = await scene.bind(replica, late, "n1")
            assert "asked, but" in answer["Error"]
        event = await scene.event(late)
        assert (event["reason"], event["type"], event["message"]) == ("GPUBindFailed", "Warning", answer["Error"])
        await scene.until_event_count(late, 3)


async def test_a_kill_between_filter_and_bind_loses_nothing_and_a_signal_ends_it_in_order(tmp_path: Path) -> None:
    async with cluster(tmp_path) as scene:
        replica = await scene.replica()
        await scene.until_ready(replica)
        certificates = scene.bundle()
        holder = scene.create_pod("holder", cores=100, blocks=0)
        _, answer = await scene.filter(replica, holder, "n1")
        assert await scene.bind(replica, holder, "n1") == (200, {"Error": ""})
        made = scene.create_pod("p", cores=100, blocks=0)
        _, answer = await scene.filter(replica, made, "n1")
        assert answer["NodeNames"] == ["n1"]

        await replica.end(signal.SIGKILL)
        await replica.start()
        await scene.until_ready(replica)
        assert scene.bundle() == certificates
        assert await scene.bind(replica, made, "n1") == (200, {"Error": ""})
        taken = [
            scene.stored(name)["metadata"]["annotations"]["tencent.com/vcuda-allocation"] for name in ("holder", "p")
        ]
        assert len({uuid for text in taken for uuid in ("GPU-n1-0", "GPU-n1-1") if uuid in text}) == 2
        third = scene.create_pod("third", cores=100, blocks=0)
        _, answer = await scene.filter(replica, third, "n1")
        assert answer["NodeNames"] in (None, [])
        assert list(answer["FailedNodes"]) == ["n1"]

        ended = asyncio.create_task(replica.end(signal.SIGTERM))
        assert await scene.until(replica, "/readyz", lambda status, _: status == 503) == "stopping\n"
        assert (await scene.filter(replica, third, "n1"))[0] == 200
        assert await ended == 0
        assert replica.said("scheduler_stopped")
        lease = scene.api.store.get("leases", "vcuda-scheduler", namespace="gpu")
        assert lease["spec"]["holderIdentity"] == ""
        assert "Traceback" not in replica.log.read_text()


async def test_what_a_gang_at_permit_reserved_ends_by_the_time_that_was_set(served: tuple[Scene, Scheduler]) -> None:
    scene, replica = served
    async with holding(scene, replica, *TWO):
        made = pod("member", container(cores=200, blocks=0))
        made["metadata"]["labels"] = {"scheduling.x-k8s.io/pod-group": "gang"}
        member = scene.api.store.create("pods", made, namespace="default")
        _, answer = await scene.filter(replica, member, "n1")
        assert answer["NodeNames"] == ["n1"]
        question = {"Pod": scene.create_pod("p", cores=200, blocks=0), "Nodes": None, "NodeNames": ["n1"]}
        await scene.until(replica, "/filter", lambda _, found: found["NodeNames"] == ["n1"], question)


async def test_large_pods_of_one_namespace_keep_no_other_one_waiting(served: tuple[Scene, Scheduler]) -> None:
    """The API server is one peer, and waits 5 s for a review."""
    scene, replica = served
    answered: list[str] = []

    async def reviewed(namespace: str, apps: int) -> None:
        made = pod("p", *(container(f"c{at}", cores=1, blocks=1) for at in range(apps)))
        made["spec"]["volumes"] = [{"name": f"v{at}", "emptyDir": {}} for at in range(9000)]
        for each in made["spec"]["containers"]:
            each["volumeMounts"] = [{"name": f"v{at}", "mountPath": f"/v{at}"} for at in range(150)]
        asked = review(made)
        asked["request"]["namespace"] = namespace
        assert (await scene.ask(replica, "/webhook", asked))[0] == 200
        answered.append(namespace)

    many = [asyncio.create_task(reviewed("greedy", 64)) for _ in range(5)]
    await asyncio.sleep(0.1)  # they have come
    await reviewed("other", 1)
    assert len(answered) <= 3, answered
    await asyncio.gather(*many)


@pytest.mark.filterwarnings("ignore:Sending a large body:ResourceWarning")
async def test_the_webhook_reads_no_more_than_the_api_server_sends(served: tuple[Scene, Scheduler]) -> None:
    scene, replica = served
    status, said = await scene.ask(replica, "/webhook", "x" * (4 << 20))
    assert (status, said) == (413, "the body is larger than 4 MiB; the API server takes objects of up to 3 MiB\n")


async def test_without_the_api_server_it_lives_is_not_ready_and_says_why(tmp_path: Path) -> None:
    async with cluster(tmp_path) as scene:
        scene.api.faults.add(harm=Harm.STATUS, code=500, times=1000)
        replica = await scene.replica()
        async with asyncio.timeout(120):
            while not replica.said("server_listening"):
                await asyncio.sleep(0.05)
        opened = await insecure(replica, "/readyz")
        assert opened[0] == 503
        assert "it has not read the cluster's nodes; it has not read the cluster's pods" in opened[1]
        assert (await insecure(replica, "/healthz"))[0] == 200
        assert (await insecure(replica, "/filter", b"{}"))[0] == 503


async def insecure(replica: Scheduler, path: str, body: bytes | None = None) -> tuple[int, str]:
    async with aiohttp.ClientSession() as session:
        method = "GET" if body is None else "POST"
        async with session.request(method, replica.url + path, data=body, ssl=False) as answer:
            return answer.status, await answer.text()


async def test_of_two_replicas_one_answers_kube_scheduler_both_serve_the_webhook_and_one_takes_over(
    tmp_path: Path,
) -> None:
    async with cluster(tmp_path) as scene:
        first = await scene.replica("replica-a")
        await scene.until_ready(first)
        second = await scene.replica("replica-b")
        await scene.until_ready(second)
        made = scene.create_pod("p")
        for replica in (first, second):
            assert (await scene.ask(replica, "/webhook", review(made)))[0] == 200
        assert (await scene.filter(first, made, "n1"))[0] == 200
        status, text = await scene.filter(second, made, "n1")
        assert (status, text) == (503, "this replica is not the leader; the leader by the Lease is replica-a\n")
        away = "only the leader can explain this pod, and replica-a, which leads, does not answer; try again"
        assert await scene.ask(second, "/explain?pod=default/p") == (503, {"error": away, "leader": "replica-a"})
        assert (await scene.ask(second, "/view/cluster"))[1]["replica"] == "replica-b", "what it knows itself"
        for replica in (first, second):
            scene.offer(replica)
        said = await scene.until(second, "/explain?pod=default/p", lambda status, _: status == 200)
        assert (await scene.ask(first, "/explain?pod=default/p"))[1] == said
        assert (await scene.ask(second, "/view/cluster"))[1]["replica"] == "replica-a"
        for replica, path in ((second, "/view/pods"), (second, "/view/nodes"), (first, "/view/nodes")):
            status, found = await scene.ask(replica, path, headers={"X-Vcuda-Token": "unknown"})
            assert (status, found["leader"]) == (401, "replica-a"), "also where no token is needed"
        status, found = await scene.ask(second, "/view/pods", headers={**VIEWING, "X-Vcuda-Forwarded": "replica-a"})
        assert (status, found["replica"]) == (200, "replica-b"), "one hop"
        await first.end(signal.SIGTERM)
        question = {"Pod": made, "NodeNames": ["n1"]}
        answer = await scene.until(second, "/filter", lambda status, _: status == 200, question)
        assert answer["NodeNames"] == ["n1"]


async def test_beside_kube_scheduler_the_replica_of_its_leader_answers_at_once(tmp_path: Path) -> None:
    async with cluster(tmp_path) as scene:
        flags = ("--leader-election", "kube-scheduler")
        replica = await scene.replica("replica-b", *flags)
        await scene.until_ready(replica)
        made = scene.create_pod("p")
        assert (await scene.filter(replica, made, "n1"))[0] == 503
        spec = {"holderIdentity": "replica-b_5f0c", "leaseDurationSeconds": 15, "leaseTransitions": 1}
        lease = {"metadata": {"name": "vcuda-scheduler"}, "spec": spec}
        scene.api.store.create("leases", lease, namespace="gpu")
        assert (await scene.filter(replica, made, "n1"))[0] == 200, "kube-scheduler asks right after it has won"


async def test_a_malformed_body_is_one_sentence_and_the_server_goes_on(served: tuple[Scene, Scheduler]) -> None:
    scene, replica = served
    documents: tuple[object, ...] = ("text", {}, [], {"Pod": 3}, {"Pod": {"metadata": {"name": 5}}, "NodeNames": {}})
    for path, document in product(("/filter", "/bind", "/preempt", "/prioritize", "/webhook"), documents):
        status, text = await scene.ask(replica, path, document)
        assert (status, text.count("\n")) == (400, 1), (path, document, text)
        assert (await scene.ask(replica, "/readyz"))[0] == 200


async def test_what_is_odd_in_a_good_request_is_one_sentence_for_its_node_or_pod_and_the_server_goes_on(
    served: tuple[Scene, Scheduler],
) -> None:
    later, foreign, plain = gpu_node("later"), gpu_node("foreign"), {"metadata": {"name": "plain"}, "status": {}}
    later["metadata"]["annotations"]["tencent.com/vcuda-inventory"] = '{"version":99}'
    foreign["metadata"]["annotations"]["tencent.com/vcuda-inventory"] = "not json"
    scene, replica = served
    scene.api.store.create("nodes", plain)
    async with holding(scene, replica, gpu_node("n1"), later, foreign):
        made = scene.create_pod("p")
        made["metadata"]["annotations"] = {"tencent.com/vcuda-allocation": "{", "tencent.com/vcuda-inventory": "{"}
        status, answer = await scene.filter(replica, made, "n1", "later", "foreign", "plain", "unknown", "")
        assert (status, answer["NodeNames"], answer["Error"]) == (200, ["n1"], "")
        status, answer = await scene.filter(replica, made, "later", "foreign", "plain", "unknown", "")
        assert (status, answer["NodeNames"], answer["Error"]) == (200, [], "")
        assert answer["FailedAndUnresolvableNodes"] == {
            "later": "node has a GPU inventory that this vcuda cannot read "
            "(kube-scheduler asked about 5 nodes and not about 1 more with GPUs)",
            "foreign": "node has a GPU inventory that this vcuda cannot read",
            "plain": "node has no vcuda GPU inventory",
            "unknown": "node is not in the GPU scheduler's cache yet",
            "": "node is not in the GPU scheduler's cache yet",
        }
        for node_name in ("later", "unknown"):
            status, answer = await scene.bind(replica, made, node_name)
            begins = answer["Error"].startswith(f"pod default/p cannot be bound to node {node_name}: ")
            assert (status, begins) == (200, True), answer
        unknown = {"metadata": {"name": "nobody", "namespace": "default", "uid": "no-such"}}
        status, answer = await scene.bind(replica, unknown, "n1")
        assert (status, "not found" in answer["Error"]) == (200, True), answer
        victims = {"n1": {"Pods": [{"UID": "no-such"}], "NumPDBViolations": 0}, "unknown": {"Pods": []}}
        status, answer = await scene.ask(
            replica, "/preempt", {"Pod": made, "NodeNameToVictims": None, "NodeNameToMetaVictims": victims}
        )
        kept = {"n1": {"Pods": [{"UID": "no-such"}], "NumPDBViolations": 0}}
        assert (status, answer) == (200, {"NodeNameToMetaVictims": kept})
        _, text = await scene.ask(replica, "/metrics")
        for verb, outcome in (("filter", "chosen"), ("bind", "refused"), ("preempt", "room")):
            assert f'requests_total{{outcome="{outcome}",verb="{verb}"}}' in text


async def asked_showing(scene: Scene, replica: Scheduler, shown: KeyPair, question: object) -> int:
    """The status; 0 where the handshake does not even end well."""
    context = showing(scene.bundle().encode(), shown, scene.folder)
    try:
        async with (
            aiohttp.ClientSession() as session,
            session.post(f"{replica.url}/filter", json=question, ssl=context, server_hostname=SERVICE_NAME) as answer,
        ):
            return answer.status
    except (aiohttp.ClientError, ConnectionError):
        return 0


async def test_of_callers_only_one_with_kube_schedulers_certificate_is_obeyed(tmp_path: Path) -> None:
    first, second = (make_ca(dt.datetime.now(dt.UTC), dt.timedelta(days=2)) for _ in range(2))
    old, new = (client_certificate(each, "system:kube-scheduler") for each in (first, second))
    (path := tmp_path / "clients.crt").write_bytes(first.chain)
    async with cluster(tmp_path) as scene:
        replica = await scene.replica("replica-a", "--client-ca-file", str(path))
        await scene.until_ready(replica)
        question = {"Pod": scene.create_pod("p"), "NodeNames": ["n1"]}
        assert (await scene.ask(replica, "/filter", question))[0] == 403
        assert await asked_showing(scene, replica, old, question) == 200
        assert await asked_showing(scene, replica, new, question) == 0
        path.write_bytes(second.chain)
        async with asyncio.timeout(120):
            while await asked_showing(scene, replica, new, question) != 200:
                await asyncio.sleep(0.05)
        assert await asked_showing(scene, replica, old, question) == 0


async def explained(scene: Scene, replica: Scheduler, name: str, *more: str) -> tuple[int, str]:
    ca = scene.folder / "authority.crt"
    ca.write_text(scene.bundle())
    args = ["explain", name, "--url", replica.url, "--ca-file", str(ca), *more]
    result = await asyncio.to_thread(CliRunner(env={"VCUDA_TOKEN": TOKEN}).invoke, main, args)
    return result.exit_code, result.stdout + result.stderr


async def test_a_waiting_pod_is_explained_by_node_and_gpu(served: tuple[Scene, Scheduler]) -> None:
    scene, replica = served
    async with holding(scene, replica, *TWO):
        for number in (1, 2):
            holder = scene.create_pod(f"holder-{number}", cores=100, blocks=0)
            await scene.filter(replica, holder, "n1")
            await scene.bind(replica, holder, "n1")
        made = scene.create_pod("p")
        await scene.filter(replica, made, "n1", "n2")
        waiting = scene.create_pod("q", cores=400, blocks=0)
        await scene.filter(replica, waiting, "n1", "n2")

        code, text = await explained(scene, replica, "q")
        assert code == 0
        assert text.startswith(
            "default/q is Pending: not enough matching GPUs (2 of 2 nodes)\n  the pod fits on none of"
        )
        assert "node n1:" in text
        _, text = await explained(scene, replica, "q", "--all")
        assert re.search(r"^    default/holder-1: 100 cores, [\d.]+ GiB \(bound\)$", text, re.MULTILINE), text
        code, text = await explained(scene, replica, "default/q", "--output", "json")
        assert (code, json.loads(text)["pod"]) == (0, "default/q")
        code, text = await explained(scene, replica, "holder-1")
        assert (code, text.splitlines()[0]) == (0, "default/holder-1: the pod is bound to node n1")
        assert "container main: 100 cores" in text
        code, text = await explained(scene, replica, "nobody")
        assert (code, text.count("\n")) == (1, 1)
        assert text.startswith("vcuda: pod default/nobody not found: it does not exist")


async def test_a_pod_without_a_request_is_evaluated_now(served: tuple[Scene, Scheduler]) -> None:
    scene, replica = served
    async with holding(scene, replica, *TWO):
        message = "0/2 nodes are available: 2 Insufficient tencent.com/vcuda-core."
        refused = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
        made = pod("large", container(cores=1000, blocks=0))
        made["spec"]["schedulerName"] = "vcuda-scheduler"
        made["status"] = {"phase": "Pending", "conditions": [refused]}
        scene.api.store.create("pods", made, namespace="default")
        scene.create_pod("elsewhere")

        async with asyncio.timeout(PATIENCE_S):
            while (answer := await explained(scene, replica, "large"))[0] != 0:
                await asyncio.sleep(0.1)  # the watch has not shown the pod yet
        reason, first, *lines = answer[1].splitlines()
        assert reason == "default/large is Pending: not enough matching GPUs (2 of 2 nodes)"
        assert first == (
            "  kube-scheduler has not asked about the pod; evaluated now, the pod fits on none of the 2 "
            "nodes; kube-scheduler's own sums of cores and memory do not fit either, so it need not ask the extender"
        )
        assert lines[:4] == [
            "  container main: 10 whole GPUs",
            f"  the pod's condition PodScheduled says: {message}",
            "",
            "     2 nodes: not enough matching GPUs",
        ]
        _, text = await explained(scene, replica, "elsewhere", "--output", "json")
        found = json.loads(text)
        assert found["sentence"].startswith(
            "no scheduler has asked about the pod; its schedulerName is default-scheduler"
        )
        assert (found["now"], found["reasons"]) == (True, {"its GPUs have room for the pod": 2})


async def test_without_their_flags_nothing_of_claims_is_asked_and_volcano_is_not_answered(
    served: tuple[Scene, Scheduler],
) -> None:
    scene, replica = served
    offers(scene, "n2")
    async with holding(scene, replica, gpu_node("n1"), claims_node("n2")):
        _, found = await scene.ask(replica, "/view/cluster")
        assert (found["gpus"], found["nodes_with_problem"]) == (2, 1)
        assert not [path for _, path in scene.api.requests if "resourceclaims" in path or "resourceslices" in path]
        body = {"task": {"UID": "u", "Pod": {}, "NodeName": "n1"}}
        assert (await scene.ask(replica, "/volcano/allocate", body))[0] == 404
