"""A pod of the API server and of kubelet becomes the same value, whatever else is in it."""

import json
import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deviceplugin.errors import ParseError, RequestError
from deviceplugin.kube.cluster_objects import cluster_pods
from deviceplugin.kube.collection import Collection
from deviceplugin.kube.pods import UNREADABLE_COUNT, PodListReader, api_pod, pod_kind, pod_needs, pods_of_node
from deviceplugin.kube.resource_claims import claiming_pods
from deviceplugin.kube.structs import (
    ContainerSpec,
    ContainerStatus,
    Empty,
    Meta,
    PodObject,
    PodSpec,
    PodStatus,
)
from deviceplugin.model.allocation import ContainerRole
from deviceplugin.model.annotation_names import annotation_names
from deviceplugin.model.pod import ClusterPod, ContainerState, Pod
from deviceplugin.model.pod_request import MOST_WRITTEN, placeable_request
from deviceplugin.model.units import Compute, Resource, ResourceNames
from tests.refusals import refusal

FULL: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {
        "name": "web-0",
        "namespace": "prod",
        "uid": "u-1",
        "resourceVersion": "17",
        "creationTimestamp": "2024-05-06T07:08:09Z",
        "deletionTimestamp": "2024-05-06T08:08:09Z",
        "labels": {"app": "web"},
        "annotations": {
            "tencent.com/predicate-time": "1",
            "kubernetes.io/config.seen": "2024-05-06T07:08:10.123456789+02:00",
            "kubernetes.io/config.source": "api",
            "clusterName": "c1",
            "secret": "kept out",
        },
        "ownerReferences": [{"kind": "Job", "name": "j"}, {"kind": "StatefulSet", "name": "web", "controller": True}],
        "managedFields": [{"manager": "kubectl"}],
    },
    "spec": {
        "nodeName": "n1",
        "initContainers": [
            {"name": "fetch", "resources": {"limits": {"tencent.com/vcuda-core": "10"}}},
            {"name": "proxy", "restartPolicy": "Always", "resources": {"limits": {"cpu": "100m"}}},
        ],
        "containers": [
            {
                "name": "main",
                "env": [
                    {"name": "LD_LIBRARY_PATH", "value": "/opt/lib"},
                    {"name": "compat32", "value": "true"},
                    {"name": "PASSWORD", "value": "hunter2"},
                    {"name": "SUBMITTER", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
                ],
                "resources": {"limits": {"tencent.com/vcuda-core": "50", "tencent.com/vcuda-memory": "16"}},
            },
            {"name": "log", "resources": {}},
        ],
    },
    "status": {
        "phase": "Running",
        "initContainerStatuses": [{"name": "fetch", "state": {"terminated": {"exitCode": 0}}, "restartCount": 2}],
        "containerStatuses": [
            {"name": "log", "state": {"running": {"startedAt": "2024-05-06T07:08:11Z"}}},
            {
                "name": "main",
                "state": {"waiting": {"reason": "CreateContainerConfigError", "message": "PreStartContainer failed"}},
            },
        ],
    },
}


def full() -> Pod:
    return pod_kind().read(json.dumps(FULL).encode())


def test_containers_stand_in_kubelets_order_with_their_roles_and_limits() -> None:
    assert [(c.ref.name, c.role, c.index, c.cores, c.blocks) for c in full().containers] == [
        ("fetch", ContainerRole.INIT, 0, 10, 0),
        ("proxy", ContainerRole.SIDECAR, 1, 0, 0),
        ("main", ContainerRole.APP, 0, 50, 16),
        ("log", ContainerRole.APP, 1, 0, 0),
    ]


def test_states_are_matched_by_name_and_not_by_place() -> None:
    fetch, proxy, main, log = full().containers
    assert fetch.state is ContainerState.TERMINATED
    assert proxy.state is ContainerState.UNKNOWN
    assert main.state is ContainerState.WAITING
    assert log.state is ContainerState.RUNNING


def test_metadata_is_read() -> None:
    found = full()
    assert (str(found.ref), found.ref.uid, found.api_uid) == ("prod/web-0", "u-1", "u-1")
    assert (found.node, found.phase, found.deleting, found.owner_kind) == ("n1", "Running", True, "StatefulSet")
    assert found.created == 1714979289.0
    assert found.seen_by_kubelet == pytest.approx(1714972090.123456)
    assert not found.is_static


def test_only_what_we_read_of_environment_and_annotations_is_kept() -> None:
    found = full()
    assert found.containers[2].env == {"LD_LIBRARY_PATH": "/opt/lib", "compat32": "true", "SUBMITTER": ""}
    assert found.annotations == {"tencent.com/predicate-time": "1", "clusterName": "c1"}
    assert "hunter2" not in repr(found)


def test_a_volume_over_the_path_for_forward_compatibility_is_seen(subtests: pytest.Subtests) -> None:
    for volumes, covers in [
        (None, False),
        ([{"name": "data", "mountPath": "/data"}, {"name": "cuda", "mountPath": "/usr/local/cuda"}], True),
        ([{"name": "data", "mountPath": "/data"}], False),
        ([{"name": "nowhere"}, {"name": "null", "mountPath": None}], True),
    ]:
        with subtests.test(volumes=volumes):
            spec = {"containers": [{"name": "main", "volumeMounts": volumes}]}
            found = pod_kind().read(json.dumps({"metadata": {"name": "p", "uid": "u"}, "spec": spec}).encode())
            assert found.containers[0].has_volume_over_compat is covers


def test_another_domain_has_other_limits_and_annotations() -> None:
    text = json.dumps(FULL).replace("tencent.com/", "gpu.example/").encode()
    found = pod_kind(ResourceNames("gpu.example")).read(text)
    assert found.containers[2].wants(Resource.MEMORY) == 16
    assert "gpu.example/predicate-time" in found.annotations
    assert not pod_kind().read(text).is_gpu


LARGE = 200 << 10
KEPT_MOST = 40 << 10  # of a pod whose user writes as much as the API server takes


def of_a_user(annotations: dict[str, str] | None = None, **spec: Any) -> dict[str, Any]:
    """A waiting pod with GPUs and claims, with something large."""
    status = spec.pop("status", {})
    gpu = {
        "name": "main",
        "image": "i",
        "resources": {"limits": {"tencent.com/vcuda-core": "10"}},
        **spec.pop("main", {}),
    }
    claim = {"name": "c", "resourceClaimName": "c"}
    meta = {"name": "p", "namespace": "n", "uid": "u", "labels": {"tencent.com/vcuda-claims": "true"}}
    return {
        "metadata": {**meta, "annotations": annotations or {}},
        "spec": {"containers": [gpu, *spec.pop("others", [])], "resourceClaims": [claim], **spec},
        "status": status,
    }


TEXT = "x" * LARGE
LIBRARIES = {"env": [{"name": "LD_LIBRARY_PATH", "value": TEXT}]}
MENTIONS = [{"name": f"c{at}"} for at in range(200)]
CALLED = [{"name": f"c{at}", "resourceClaimName": "c"} for at in range(200)]
DOORS: dict[str, dict[str, Any]] = {
    "an annotation of vcuda's domain that nobody reads": of_a_user({"tencent.com/vcuda-x": TEXT}),
    "many annotations of vcuda's domain": of_a_user({f"tencent.com/vcuda-{at}": "x" * 50 for at in range(4000)}),
    "a list of GPUs": of_a_user({"tencent.com/vcuda-use-gpus": TEXT}),
    "all that vcuda reads": of_a_user(dict.fromkeys(annotation_names("tencent.com").user_written, "x" * 16383)),
    "what vcuda reads of HAMi's": of_a_user({"nvidia.com/use-gpuuuid": TEXT}),
    "gpu-manager's cluster": of_a_user({"clusterName": TEXT}),
    "the mirror of a static pod": of_a_user({"kubernetes.io/config.mirror": TEXT}),
    "a gang": of_a_user({"scheduling.k8s.io/group-name": TEXT}),
    "a variable": of_a_user(main=LIBRARIES),
    "a variable of a container without a GPU": of_a_user(others=[{"name": "side", "image": "i", **LIBRARIES}]),
    "arguments": of_a_user(main={"args": [TEXT]}),
    "claims": of_a_user(resourceClaims=[{"name": f"c{at}", "resourceClaimName": f"c{at}"} for at in range(4000)]),
    "templates": of_a_user(
        resourceClaims=[{"name": f"c{at}", "resourceClaimTemplateName": f"vcuda-1x1c{at}b"} for at in range(4000)]
    ),
    "containers that name claims": of_a_user(
        others=[{"name": f"m{at}", "image": "i", "resources": {"claims": MENTIONS}} for at in range(60)],
        resourceClaims=CALLED,
    ),
    "gates": of_a_user(schedulingGates=[{"name": f"example.com/{at}"} for at in range(4000)]),
    "the status": of_a_user(status={"phase": "Pending", "reason": TEXT, "message": TEXT}),
    "a condition": of_a_user(
        status={"conditions": [{"type": "PodScheduled", "status": "False", "reason": TEXT, "message": TEXT}]}
    ),
}
COLLECTIONS: dict[str, Collection[Any, Any]] = {
    "the scheduler's pods": cluster_pods(),
    "the scheduler's pods with claims": cluster_pods(claims=True),
    "the scheduler's pods with templates": claiming_pods("tencent.com"),
    "the agent's pods": pods_of_node("n1"),
}


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("collection", COLLECTIONS)
def test_what_is_kept_of_a_pod_is_not_as_large_as_its_user_likes(door: str, collection: str) -> None:
    kept = COLLECTIONS[collection].read(json.dumps(DOORS[door]).encode()).item
    assert kept is not None
    assert len(pickle.dumps(kept)) < KEPT_MOST


def test_of_annotations_that_are_too_long_together_a_pod_is_refused_and_not_misread() -> None:
    longest = {"tencent.com/vcuda-use-gpus": "x" * (MOST_WRITTEN - len("tencent.com/vcuda-use-gpus"))}
    machine = {"tencent.com/vcuda-allocation": TEXT}
    kept = pod_kind().read(json.dumps(of_a_user(longest | machine)).encode())
    assert (kept.annotations, kept.unread_bytes) == (longest | machine, 0)
    found = pod_kind().read(json.dumps(of_a_user(longest | machine | {"nvidia.com/numa-bind": ""})).encode())
    assert (found.annotations, found.unread_bytes) == (machine, MOST_WRITTEN + len("nvidia.com/numa-bind"))
    assert refusal(RequestError, placeable_request, found) == (
        "the pod's annotations for vcuda have 20500 bytes and it reads 20480; name fewer GPUs, models or containers in "
        "them"
    )


STATIC = {"kubernetes.io/config.hash": "0123hash", "kubernetes.io/config.source": "file"}


def test_the_api_servers_view_of_a_mirror_pod_has_its_uid_there_and_says_what_the_pod_claims() -> None:
    meta = {
        "name": "etcd-n1",
        "namespace": "kube-system",
        "uid": "api-uid",
        "annotations": {"kubernetes.io/config.mirror": "0123hash", **STATIC},
        "ownerReferences": [{"kind": "Node", "name": "n1", "controller": True}],
    }
    found = pod_kind().read(json.dumps({"metadata": meta}).encode())
    assert (found.ref.uid, found.api_uid, found.mirror_of, found.owner_kind) == (
        "api-uid",
        "api-uid",
        "0123hash",
        "Node",
    )
    assert not found.is_static


def test_a_pod_of_the_api_server_has_a_uid_there_whatever_its_annotations_say() -> None:
    """Security 9: the annotations are the user's own."""
    meta = {"name": "p", "namespace": "mallory", "uid": "api-uid", "annotations": STATIC}
    found = pod_kind().read(json.dumps({"metadata": meta}).encode())
    assert (found.ref.uid, found.api_uid, found.is_static) == ("api-uid", "api-uid", False)
    raw = json.dumps({"metadata": meta, "spec": {"containers": [], "nodeName": "n1"}}).encode()
    watched = cluster_pods().read(raw).item
    assert watched is not None
    assert watched.uid == "api-uid"


def test_kubelets_own_view_of_a_static_pod_knows_no_uid_of_the_api_server() -> None:
    meta = {"name": "etcd-n1", "namespace": "kube-system", "uid": "0123hash", "annotations": STATIC}
    (found,) = PodListReader().read(json.dumps({"items": [{"metadata": meta}]}).encode())
    assert (found.ref.uid, found.api_uid, found.is_static) == ("0123hash", "", True)


def test_nulls_and_absent_parts_are_empty() -> None:
    sparse: list[dict[str, Any]] = [
        {"metadata": {"name": "a"}},
        {"metadata": {"name": "a", "annotations": None, "labels": None, "ownerReferences": None}, "spec": None},
        {
            "metadata": {"name": "a", "creationTimestamp": None},
            "spec": {"containers": None, "initContainers": None},
            "status": {"containerStatuses": None, "phase": None},
        },
    ]
    for item in sparse:
        found = pod_kind().read(json.dumps(item).encode())
        assert (found.containers, found.phase, found.created) == ((), "Pending", 0.0)


def test_kubelets_empty_list_is_null() -> None:
    assert PodListReader().read(b'{"kind":"PodList","apiVersion":"v1","metadata":{},"items":null}') == ()


def test_a_list_keeps_its_order() -> None:
    items = [FULL | {"metadata": {"name": name, "uid": name}} for name in ("b", "a", "c")]
    body = json.dumps({"items": items}).encode()
    assert [found.ref.name for found in PodListReader().read(body)] == ["b", "a", "c"]


def test_a_pod_with_an_absurd_limit_hides_no_other_pod_and_fits_nowhere(subtests: pytest.Subtests) -> None:
    for limit in ["1.5", "-3", "lots", "999999999999999999999999", "1E"]:
        with subtests.test(limit=limit):
            containers = [{"name": "main", "resources": {"limits": {"tencent.com/vcuda-core": limit}}}]
            items = [{"metadata": {"name": "odd"}, "spec": {"containers": containers}}, FULL]
            odd, good = PodListReader().read(json.dumps({"items": items}).encode())
            assert odd.containers[0].cores >= 10**18 or odd.containers[0].cores == UNREADABLE_COUNT
            assert good.ref.uid == "u-1"


def test_what_is_no_pod_is_a_parse_error(subtests: pytest.Subtests) -> None:
    for body in [
        b"",
        b"{}",
        b"[]",
        b"nonsense",
        b'{"metadata":{"name":5}}',
        b'{"metadata":',
        b"\xff\xfe",
        b"[" * 100_000,
    ]:
        with subtests.test(body=body), pytest.raises(ParseError, match="the pod cannot be read"):
            pod_kind().read(body)


@given(st.text(max_size=40))
def test_any_time_is_read_or_unknown(text: str) -> None:
    meta = {"name": "a", "creationTimestamp": text, "annotations": {"kubernetes.io/config.seen": text}}
    found = pod_kind().read(json.dumps({"metadata": meta}).encode())
    assert isinstance(found.created, float)
    assert found.created == found.seen_by_kubelet


class Compared(str):
    """Counts how often names are compared."""

    __slots__ = ()
    times = 0

    def __eq__(self, other: object) -> bool:
        type(self).times += 1
        return str.__eq__(self, other)

    __hash__ = str.__hash__


def test_statuses_are_found_by_name_and_not_each_compared_with_each() -> None:
    """10,000 containers fit into a pod; each with each they hold the loop for seconds."""
    count = 500
    Compared.times = 0
    containers = [ContainerSpec(Compared(f"c{at}")) for at in range(count)]
    statuses = [ContainerStatus(Compared(f"c{at}"), {"running": Empty()}) for at in reversed(range(count))]
    spec, status = PodSpec(containers=containers), PodStatus(container_statuses=statuses)
    found = api_pod(PodObject(Meta(name="p", uid="u"), spec, status), ResourceNames())
    assert {each.state for each in found.containers} == {ContainerState.RUNNING}
    assert pod_needs(spec, status) == Compute(0, 0)
    assert Compared.times <= 10 * count


def test_of_very_many_uses_of_claims_some_are_read_and_it_is_said(subtests: pytest.Subtests) -> None:
    """The agent refuses a container that holds two parts, so it refuses such a pod."""
    for door, most in (("containers that name claims", 1024), ("claims", 0)):
        raw = json.dumps(DOORS[door]).encode()
        views = cluster_pods(claims=True).read(raw).item
        assert isinstance(views, ClusterPod)
        for found in (pods_of_node("n1").read(raw).item, views.pod):
            with subtests.test(door):
                assert found is not None
                assert sum(len(each.claims) for each in found.containers) == most
                assert found.has_unread_claims
    few = of_a_user(others=[{"name": "m", "image": "i", "resources": {"claims": MENTIONS}}], resourceClaims=CALLED)
    read = pods_of_node("n1").read(json.dumps(few).encode()).item
    assert read is not None
    assert (len(read.containers[-1].claims), read.has_unread_claims) == (200, False)
