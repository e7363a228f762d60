"""ResourceSlices, ResourceClaims and pods with claims, as the scheduler reads them from the API server's JSON."""

import json
import pickle
from typing import Any

import pytest

from deviceplugin.kube.cluster_client import ClusterClient
from deviceplugin.kube.cluster_objects import cluster_pods
from deviceplugin.kube.collection import list_all, read_line
from deviceplugin.kube.credentials import Credentials
from deviceplugin.kube.reflector import Reflector
from deviceplugin.kube.resource_claims import cluster_claims
from deviceplugin.kube.resource_slices import offers_of, slice_spec
from deviceplugin.kube.transport import Transport
from deviceplugin.kubelet.dra.slice_publisher import device_name, published_devices
from deviceplugin.model.claims import (
    Claim,
    ClaimNames,
    ContainerClaim,
    DeviceRequest,
    NodeOffer,
    PodClaim,
    Taint,
    minor_of_device,
)
from deviceplugin.model.gpu import GpuUuid
from deviceplugin.model.pod import ClusterPod, PlainPod
from tests.cluster.extender.makers import inventory

NAMES = ClaimNames("tencent.com")
META = {"name": "x", "namespace": "d", "uid": "u-1", "resourceVersion": "7"}
SHARE = {"deviceClassName": NAMES.shares, "capacity": {"requests": {"cores": "20", "memory": "2Gi"}}}


def offered(spec: dict[str, Any]) -> NodeOffer:
    seen = offers_of(NAMES.driver).read(json.dumps({"metadata": META, "spec": spec}).encode())
    assert seen.item is not None
    return seen.item


def claimed(spec: dict[str, Any], status: dict[str, Any] | None = None) -> Claim:
    body = {"metadata": META, "spec": spec, "status": status or {}}
    item = cluster_claims(NAMES).read(json.dumps(body).encode()).item
    assert item is not None
    return item


def pod(spec: dict[str, Any], status: dict[str, Any] | None = None, *, claims: bool = True) -> object:
    body = {"metadata": META, "spec": spec, "status": status or {}}
    return cluster_pods(claims=claims).read(json.dumps(body, separators=(",", ":")).encode()).item


def asked(*requests: dict[str, Any]) -> dict[str, Any]:
    return {"devices": {"requests": list(requests)}}


def test_what_the_agent_publishes_is_read_back() -> None:
    node = inventory("a", 3, ill=[1])
    devices = published_devices(node, NAMES, cordoned=[GpuUuid("GPU-a-2")])
    found = offered(slice_spec(NAMES.driver, "a", devices, 4))
    assert (found.slice, found.uid, found.node, found.generation) == ("x", "u-1", "a", 4)
    assert (found.driver.version, found.driver.cuda) == ("550.1.0", (12, 4))
    for gpu, each in zip(node.gpus, found.gpus, strict=True):
        assert each.device == device_name(gpu)
        assert minor_of_device(each.device) == gpu.minor
        assert (each.gpu.uuid, each.gpu.minor, each.gpu.model, each.gpu.numa) == (gpu.uuid, gpu.minor, gpu.model, None)
        assert (each.cores, each.blocks, each.gpu.blocks) == (100, gpu.blocks, gpu.blocks)
    assert [each.taints for each in found.gpus] == [
        (),
        (Taint(NAMES.unhealthy, "Xid-79"),),
        (Taint(NAMES.cordoned, ""),),
    ]


def test_devices_that_are_no_gpus_of_ours_hide_no_others() -> None:
    def device(name: str, uuid: str, **more: Any) -> dict[str, Any]:
        attributes = {"uuid": {"string": uuid}, "minor": {"int": int(name[-1])}, "numaNode": {"int": 1}}
        return {"name": name, "attributes": attributes, **more}

    huge = {"cores": {"value": "9" * 18}, "memory": {"value": "9Ei"}}
    spec = {
        "driver": NAMES.driver,
        "nodeName": "a",
        "devices": [
            {"name": "nothing"},
            device("gpu-0", ""),
            {"name": "gpu-9", "attributes": {"uuid": {"string": "GPU-9"}, "minor": {"int": -1}}},
            device("gpu-1", "GPU-1", capacity={"cores": {"value": "what"}}),
            device("gpu-2", "GPU-1"),
            device("gpu-3", "GPU-3", capacity=huge, taints=[{"key": "a/b", "effect": "None"}, {"key": "c/d"}]),
        ],
    }
    found = offered(spec)
    assert [(each.device, each.gpu.uuid, each.cores, each.blocks) for each in found.gpus] == [
        ("gpu-1", "GPU-1", 0, 0),
        ("gpu-3", "GPU-3", 100, 1 << 16),
    ]
    assert found.gpus[1].taints == (Taint("c/d", ""),)
    assert found.gpus[1].gpu.numa == 1
    assert offered({"driver": NAMES.driver}).gpus == ()


def test_names_of_other_devices_have_no_minor(subtests: pytest.Subtests) -> None:
    for name in ["gpu-", "gpu-x", "gpu-1x", "nic-1", "gpu-" + "1" * 10]:
        with subtests.test(name=name):
            assert minor_of_device(name) is None


def test_what_a_request_asks_for_is_rounded_as_kube_scheduler_does(subtests: pytest.Subtests) -> None:
    cases: list[tuple[dict[str, Any], DeviceRequest]] = [
        (SHARE, DeviceRequest(NAMES.shares, 1, 20, 8)),
        (SHARE | {"count": 4}, DeviceRequest(NAMES.shares, 4, 20, 8)),
        (SHARE | {"allocationMode": "All"}, DeviceRequest(NAMES.shares, None, 20, 8)),
        ({"deviceClassName": NAMES.whole_gpus}, DeviceRequest(NAMES.whole_gpus)),
        (SHARE | {"capacity": {"requests": {"cores": "1500m"}}}, DeviceRequest(NAMES.shares, 1, 2, None)),
        (SHARE | {"capacity": {"requests": {"memory": "2100Mi"}}}, DeviceRequest(NAMES.shares, 1, None, 9)),
        (SHARE | {"capacity": {"requests": {"cores": 0}}}, DeviceRequest(NAMES.shares, 1, 1, None)),
        (SHARE | {"capacity": {"requests": {"cores": "1e999"}}}, DeviceRequest(NAMES.shares, 1, (1 << 63) - 1, None)),
        (SHARE | {"capacity": {"requests": {"cores": "1 000"}}}, DeviceRequest(NAMES.shares, 1, 1 << 31, None)),
    ]
    for exactly, wanted in cases:
        with subtests.test(exactly=exactly):
            (found,) = claimed(asked({"name": "gpu", "exactly": exactly})).requests
            assert (found.name, found.alternatives) == ("gpu", (wanted,))


def test_a_prioritized_list_has_its_alternatives() -> None:
    whole = {"name": "b", "deviceClassName": NAMES.whole_gpus}
    (found,) = claimed(asked({"name": "gpu", "firstAvailable": [{"name": "a"} | SHARE, whole]})).requests
    assert [each.device_class for each in found.alternatives] == [NAMES.shares, NAMES.whole_gpus]


def test_what_was_allocated_is_read_and_what_cannot_be_read_holds_nothing() -> None:
    result = {"request": "gpu/a", "driver": NAMES.driver, "pool": "a", "device": "gpu-0", "shareID": "s"}
    status = {
        "allocation": {"devices": {"results": [result | {"consumedCapacity": {"cores": "20", "memory": "2Gi"}}]}},
        "reservedFor": [{"resource": "pods", "name": "p", "uid": "u-2"}],
    }
    found = claimed(asked(), status)
    assert found.devices is not None
    assert (found.key, found.consumers) == (("d", "x"), frozenset({"u-2"}))
    assert [(each.request, each.device, int(each.consumed["cores"])) for each in found.devices] == [
        ("gpu", "gpu-0", 20)
    ]
    status["allocation"]["devices"]["results"][0] |= {"consumedCapacity": {"cores": "?"}}  # type: ignore[index]
    assert claimed(asked(), status).devices == ()
    assert claimed({}).devices is None


def test_pods_with_claims_are_kept_where_claims_are_watched() -> None:
    container = {"name": "main", "resources": {"claims": [{"name": "a", "request": "gpu"}, {"name": "b"}]}}
    spec = {
        "containers": [container],
        "resourceClaims": [
            {"name": "a", "resourceClaimName": "mine"},
            {"name": "b", "resourceClaimTemplateName": "fifth"},
        ],
    }
    waits = pod(spec)
    assert isinstance(waits, ClusterPod)
    assert waits.claims == (PodClaim("a", "mine"), PodClaim("b", "", "fifth"))
    assert waits.pod.containers[0].claims == (ContainerClaim("mine", "gpu"),)
    made = pod(spec, {"resourceClaimStatuses": [{"name": "b", "resourceClaimName": "x-b-1"}]})
    assert isinstance(made, ClusterPod)
    assert made.claims[1] == PodClaim("b", "x-b-1", "fifth")
    assert made.pod.containers[0].claims == (ContainerClaim("mine", "gpu"), ContainerClaim("x-b-1"))
    assert not made.pod.is_gpu
    assert pod(spec, claims=False) is None
    assert isinstance(pod(spec | {"nodeName": "n"}, claims=False), PlainPod)


def test_whole_gpus_by_number_are_asked_by_a_claim_too() -> None:
    container = {"name": "main", "resources": {"limits": {"tencent.com/vcuda-gpu": "2"}}}
    waits = pod({"containers": [container]})
    assert isinstance(waits, ClusterPod)
    assert (waits.whole_gpus, waits.claims, waits.has_claims) == ((("main", 2),), (), True)
    mapping = {"containerName": "main", "requestName": "container-0-request-0", "resourceName": "tencent.com/vcuda-gpu"}
    status = {"extendedResourceClaimStatus": {"resourceClaimName": "x-ext", "requestMappings": [mapping]}}
    made = pod({"containers": [container], "nodeName": "n"}, status)
    assert isinstance(made, ClusterPod)
    assert made.claims == (PodClaim("", "x-ext"),)
    assert made.pod.containers[0].claims == (ContainerClaim("x-ext", "container-0-request-0"),)
    assert pod({"containers": [container]}, claims=False) is None
    none = {"name": "main", "resources": {"limits": {"tencent.com/vcuda-gpu": "0"}}}
    assert pod({"containers": [none]}) is None


def listed_asks(count: int, alternatives: int, device_class: str) -> dict[str, Any]:
    def one(at: int, number: int) -> dict[str, Any]:
        amounts = {"cores": f"{number + 1}", "memory": f"{at + 1}Gi"}
        return {"name": f"s{number}", "deviceClassName": device_class, "capacity": {"requests": amounts}}

    return asked(
        *(
            {"name": f"r{at}", "firstAvailable": [one(at, number) for number in range(alternatives)]}
            for at in range(count)
        )
    )


KEPT_MOST = 6_000
RESULT = {"request": "r", "device": "d", "shareID": "s" * 36, "consumedCapacity": {f"c{at}": "1" for at in range(32)}}
DEAR_CLAIMS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "requests of ours": (listed_asks(32, 8, NAMES.shares), {}),
    "requests of others": (listed_asks(32, 8, "x" * 60), {}),
    "parameters of drivers": (
        {},
        {"allocation": {"devices": {"config": [{"opaque": {"driver": f"{at}." + "d" * 60}} for at in range(64)]}}},
    ),
    "devices of others": (
        {},
        {"allocation": {"devices": {"results": [RESULT | {"driver": "nic.example.com", "pool": "p"}] * 32}}},
    ),
}


@pytest.mark.parametrize("what", DEAR_CLAIMS)
def test_what_is_kept_of_a_claim_is_not_as_large_as_its_user_likes(what: str) -> None:
    assert len(pickle.dumps(claimed(*DEAR_CLAIMS[what]))) < KEPT_MOST


def test_of_very_many_alternatives_those_for_our_classes_come_first_and_the_others_are_counted() -> None:
    theirs, ours = listed_asks(4, 8, "nic")["devices"]["requests"], {"name": "mine", "exactly": SHARE}
    found = claimed(asked(*theirs, ours))
    assert (found.requests[0].name, found.requests[0].alternatives) == (
        "mine",
        (DeviceRequest(NAMES.shares, 1, 20, 8),),
    )
    assert sum(len(each.alternatives) for each in found.requests) == 16
    assert found.left_out == 4 * 8 + 1 - 16


def test_claims_that_ask_for_the_same_share_what_is_kept() -> None:
    one, two = (claimed(asked({"name": "gpu", "exactly": dict(SHARE)})) for _ in range(2))
    assert one.requests[0].alternatives[0] is two.requests[0].alternatives[0]


def test_of_an_allocation_the_devices_of_our_driver_are_kept_and_of_others_the_pools() -> None:
    results = [
        RESULT | {"driver": NAMES.driver, "pool": "a", "consumedCapacity": {"cores": "20", "memory": "2Gi", "x": "1"}},
        *[RESULT | {"driver": "nic.example.com", "pool": pool} for pool in ("p", "p", "q")],
    ]
    found = claimed(asked(), {"allocation": {"devices": {"results": results}}}).devices
    assert found is not None
    assert [(each.driver, each.pool, sorted(each.consumed)) for each in found] == [
        (NAMES.driver, "a", ["cores", "memory"]),
        ("nic.example.com", "p", []),
        ("nic.example.com", "q", []),
    ]


def slice_of(name: str, generation: int, version: int) -> dict[str, Any]:
    meta = {"name": name, "uid": f"u-{name}", "resourceVersion": str(version)}
    return {"metadata": meta, "spec": slice_spec(NAMES.driver, "a", (), generation)}


async def test_of_the_slices_of_a_node_one_is_kept_however_many_it_writes() -> None:
    slices = [slice_of(f"s{at}", at % 50, at) for at in range(200)]
    collection = offers_of(NAMES.driver)

    class Listing(Transport):
        async def request(self, *_args: Any, **_more: Any) -> bytes:
            return json.dumps({"items": slices, "metadata": {"resourceVersion": "9"}}).encode()

    listed = await list_all(Listing(Credentials(None)), collection, {})
    assert [(each.slice, each.generation) for each in listed.items.values()] == [("s199", 49)]
    reflector = Reflector(ClusterClient(Transport(Credentials(None))), collection)

    def seen(kind: str, name: str, generation: int) -> str | None:
        line = json.dumps({"type": kind, "object": slice_of(name, generation, 10)}).encode()
        reflector._apply(read_line(line, collection))
        return reflector.items["a"].slice if "a" in reflector.items else None

    assert [
        seen("ADDED", "one", 5),
        seen("ADDED", "older", 4),
        seen("DELETED", "older", 4),
        seen("ADDED", "newer", 6),
        seen("MODIFIED", "newer", 3),  # the same slice
        seen("DELETED", "newer", 3),
    ] == ["one", "one", "one", "newer", "newer", None]
