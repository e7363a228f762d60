"""What a pod takes of CPU and memory, by the arithmetic of kube-scheduler, whichever way it was read."""

import json

import pytest

from deviceplugin.kube.cluster_objects import cluster_pods
from deviceplugin.model.units import Compute
from sandbox.apiserver import JsonObject, container

MIB = 1 << 20


def asks(name: str, cpu: str | None = None, memory: str | None = None, *, always: bool = False) -> JsonObject:
    found = container()
    found["name"] = name
    requests = {key: text for key, text in (("cpu", cpu), ("memory", memory)) if text is not None}
    found["resources"] = {"requests": {**requests, "ephemeral-storage": "1Gi"}}
    return found | ({"restartPolicy": "Always"} if always else {})


def runs(name: str, requests: JsonObject, promised: JsonObject | None = None) -> JsonObject:
    status: JsonObject = {"name": name, "state": {"running": {}}, "resources": {"requests": requests}}
    return status | ({"allocatedResources": promised} if promised is not None else {})


def needs(spec: JsonObject, status: JsonObject | None = None) -> Compute | None:
    """The same of a pod with GPUs and of one without."""
    plain: JsonObject = {
        "metadata": {"name": "a", "namespace": "d", "uid": "u", "resourceVersion": "1"},
        "spec": {"nodeName": "n1", **spec},
        "status": status or {},
    }
    gpu = json.loads(json.dumps(plain))
    limits = gpu["spec"]["containers"][0].setdefault("resources", {}).setdefault("limits", {})
    limits |= {"tencent.com/vcuda-core": "50", "tencent.com/vcuda-memory": "8", "cpu": "64"}
    found = [cluster_pods().read(json.dumps(each, separators=(",", ":")).encode()).item for each in (plain, gpu)]
    assert [type(each).__name__ for each in found] == ["PlainPod", "ClusterPod"]
    first, second = (each.needs for each in found if each is not None)
    assert first == second
    return first


def test_containers_add_up() -> None:
    assert needs({"containers": [asks("a", "250m", "128Mi"), asks("b", "2", "1Gi"), asks("c")]}) == Compute(
        2250, 1152 * MIB
    )


def test_any_quantity_is_read_and_fractions_count_as_one(subtests: pytest.Subtests) -> None:
    cases: list[tuple[str, str, Compute | None]] = [
        ("0.5", "1G", Compute(500, 10**9)),
        ("1e3m", "1024", None),
        ("100u", "1.5Ki", Compute(1, 1536)),
        ("1500000n", "100m", Compute(2, 1)),
        ("lots", "1", None),
    ]
    for cpu, memory, found in cases:
        with subtests.test(cpu=cpu):
            assert needs({"containers": [asks("a", cpu, memory)]}) == found


def test_init_containers_run_before_and_sidecars_beside(subtests: pytest.Subtests) -> None:
    cases: list[tuple[list[JsonObject], list[JsonObject], Compute]] = [
        ([asks("i", "4", "1Mi")], [asks("a", "1", "10Mi")], Compute(4000, 10 * MIB)),
        ([asks("i", "1"), asks("j", "3"), asks("k", "2")], [asks("a", "2")], Compute(3000, 0)),
        ([asks("s", "1", always=True)], [asks("a", "2")], Compute(3000, 0)),
        ([asks("s", "1", always=True), asks("i", "3")], [asks("a", "2")], Compute(4000, 0)),
        ([asks("i", "3"), asks("s", "1", always=True)], [asks("a", "1")], Compute(3000, 0)),
        ([asks("s", "1", always=True), asks("t", "1", always=True)], [asks("a", "1")], Compute(3000, 0)),
    ]
    for init, apps, found in cases:
        with subtests.test(init=init):
            assert needs({"initContainers": init, "containers": apps}) == found


def test_what_the_pod_asks_as_a_whole_takes_the_place_of_its_containers() -> None:
    apps = [asks("a", "1", "10Mi"), asks("b", "1", "10Mi")]
    assert needs({"containers": apps, "resources": {"requests": {"cpu": "5"}}}) == Compute(5000, 20 * MIB)
    whole = {"requests": {"cpu": "1", "memory": "64Mi"}, "limits": {"cpu": "9"}}
    assert needs({"containers": apps, "initContainers": [asks("i", "7")], "resources": whole}) == Compute(
        1000, 64 * MIB
    )


def test_overhead_comes_on_top() -> None:
    spec = {"containers": [asks("a", "1", "10Mi")], "overhead": {"cpu": "250m", "memory": "120Mi"}}
    assert needs(spec) == Compute(1250, 130 * MIB)
    assert needs(spec | {"resources": {"requests": {"cpu": "2"}}}) == Compute(2250, 130 * MIB)


def test_nothing_asked_is_nothing() -> None:
    assert needs({"containers": [{"name": "a"}]}) == Compute(0, 0)


def test_while_a_container_is_resized_the_larger_counts(subtests: pytest.Subtests) -> None:
    cases: list[tuple[JsonObject, int]] = [
        ({"containerStatuses": [runs("a", {"cpu": "1"})]}, 2000),
        ({"containerStatuses": [runs("a", {"cpu": "3"})]}, 3000),
        ({"containerStatuses": [runs("a", {"cpu": "1"}, {"cpu": "4"})]}, 4000),
        ({"containerStatuses": [runs("other", {"cpu": "9"})]}, 2000),
        ({"containerStatuses": [{"name": "a", "allocatedResources": {"cpu": "9"}}]}, 2000),
        (
            {
                "containerStatuses": [runs("a", {"cpu": "1"}, {"cpu": "1"})],
                "conditions": [{"type": "PodResizePending", "status": "True", "reason": "Infeasible"}],
            },
            1000,
        ),
        (
            {
                "containerStatuses": [runs("a", {"cpu": "1"}, {"cpu": "1"})],
                "conditions": [{"type": "PodResizePending", "status": "True", "reason": "Deferred"}],
            },
            2000,
        ),
    ]
    for status, found in cases:
        with subtests.test(status=status):
            assert needs({"containers": [asks("a", "2")]}, status) == Compute(found, 0)


def test_a_sidecar_is_resized_too_and_an_init_container_is_not() -> None:
    spec = {
        "initContainers": [asks("s", "1", always=True), asks("i", "1")],
        "containers": [asks("a", "1")],
    }
    status = {"initContainerStatuses": [runs("s", {"cpu": "2"}), runs("i", {"cpu": "9"})]}
    assert needs(spec, status) == Compute(3000, 0)
