"""The webhook's configuration on a real API server: its CEL and its patches.

No scheduler and no agent of ours runs: pods that ask for GPUs wait.
"""

from typing import Any

import pytest

from deviceplugin.kube.structs import parse_quantity
from sandbox.cluster import pods
from sandbox.cluster.admission import WebhookServer
from sandbox.cluster.client import ApiError, Client
from tests.e2e.admission.requests import ALLOCATION, CORE, DRY, INDEX, MEMORY, gpu_pod, refusal

pytestmark = pytest.mark.e2e


def test_a_share_is_completed_and_sent_to_our_scheduler(admin: Client) -> None:
    made = admin.post(pods.PODS, gpu_pod("share", {CORE: 30}, annotations={ALLOCATION: "{}", INDEX: "0", "mine": "1"}))
    assert made["metadata"]["annotations"] == {"mine": "1"}
    assert made["spec"]["schedulerName"] == "vcuda-scheduler"
    wanted = {CORE: "30", MEMORY: "48"}
    assert made["spec"]["containers"][0]["resources"] == {"limits": wanted, "requests": wanted}


def test_a_pod_as_hami_writes_it_is_translated(admin: Client) -> None:
    limits = {"nvidia.com/gpu": 2, "nvidia.com/gpucores": 30, "nvidia.com/gpumem": 4096}
    manifest = gpu_pod("ours", limits)
    manifest["metadata"] = {"generateName": "hami-"}
    manifest["spec"]["containers"].append(pods.container("plain", "sleep 1"))
    made = admin.post(DRY, manifest)
    main, plain = made["spec"]["containers"]
    assert made["metadata"]["annotations"] == {"tencent.com/vcuda-gpus": "main=2"}
    assert main["resources"] == {"limits": {CORE: "60", MEMORY: "32"}, "requests": {CORE: "60", MEMORY: "32"}}
    assert plain["env"] == [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "none"}]


def test_every_kind_of_change_is_a_patch_that_the_api_server_applies(admin: Client) -> None:
    env = [{"name": name, "value": "/x"} for name in ("NVIDIA_VISIBLE_DEVICES", "LD_LIBRARY_PATH", "OTHER")]
    init = [{**pods.container("warm", "true"), "resources": {"requests": {"cpu": "1m"}, "limits": {MEMORY: "4"}}}]
    manifest = gpu_pod("all", {CORE: 100}, init=init, nodeName="n1")
    manifest["spec"]["containers"][0]["env"] = env
    made = admin.post(DRY, manifest)["spec"]
    assert [(each["name"], each["value"]) for each in made["containers"][0]["env"]] == [
        ("LD_LIBRARY_PATH", "/usr/local/nvidia/lib64:/x"),
        ("OTHER", "/x"),
    ]
    assert made["initContainers"][0]["resources"] == {
        "limits": {CORE: "10", MEMORY: "4"},
        "requests": {CORE: "10", MEMORY: "4", "cpu": "1m"},
    }
    assert "nodeName" not in made
    (term,) = made["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert term == {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}


def test_a_user_reads_why_his_pod_is_refused(admin: Client) -> None:
    assert "container main: tencent.com/vcuda-core: 150 is not possible" in refusal(admin, gpu_pod("no", {CORE: 150}))


def test_only_pods_that_concern_us_are_sent(admin: Client, server: WebhookServer) -> None:
    out = {"labels": {"tencent.com/vcuda-webhook": "ignore"}}
    manifests = [
        gpu_pod("plain", {"cpu": 1}, annotations={"mine": "1", "tencent.com/vcuda-gpu-policy": "link"}),
        gpu_pod("other-vendor", {"amd.com/gpu": 1}),
        gpu_pod("stale", {}, annotations={INDEX: "0"}),
        gpu_pod("core", {CORE: 100}),
        gpu_pod("hami", {"nvidia.com/gpu": 1, "nvidia.com/gpucores": 50}),
        gpu_pod("hami-by-annotation", {"nvidia.com/gpu": 1}, annotations={"nvidia.com/use-gputype": "A100"}),
        gpu_pod("hami-by-scheduler", {"nvidia.com/gpu": 1}, schedulerName="hami-scheduler"),
        gpu_pod("of-nvidias-plugin", {"nvidia.com/gpu": 1}),
        pods.pod("init", [pods.container("main", "true")], init=[pods.container("warm", "true", {MEMORY: 1})]),
        pods.pod("second", [pods.container("main", "true"), pods.container("side", "true", {CORE: 100})]),
    ]
    opted_out, stale_opted_out = gpu_pod("opted-out", {CORE: 150}), gpu_pod("opted-out-stale", {CORE: 100})
    of_hami = gpu_pod("opted-out-of-hami", {CORE: 150})
    of_hami["metadata"] |= {"labels": {"hami.io/webhook": "ignore"}}
    opted_out["metadata"] |= out
    stale_opted_out["metadata"] |= {**out, "annotations": {ALLOCATION: "{}"}}
    for manifest in (*manifests, opted_out, of_hami, stale_opted_out):
        admin.post(DRY, manifest)
    assert sorted(set(server.asked)) == [
        "core", "hami", "hami-by-annotation", "hami-by-scheduler", "init", "opted-out-stale", "second", "stale"
    ]  # fmt: skip


def test_very_many_annotations_are_within_the_cost_that_cel_may_have(admin: Client, server: WebhookServer) -> None:
    many = {f"example.com/annotation-{number}": "x" for number in range(8000)}  # of 256 KiB that all may have together
    admin.post(DRY, gpu_pod("plain", {}, annotations=many))
    assert not server.asked
    admin.post(DRY, gpu_pod("stale", {}, annotations={**many, ALLOCATION: "{}"}))
    assert server.asked[-1] == "stale"


@pytest.mark.parametrize(("written", "cores"), [("0.1k", "100"), ("1e2", "100"), ("100000m", "100"), ("2E2", "200")])
def test_every_way_of_writing_a_quantity_is_understood(admin: Client, written: Any, cores: str) -> None:
    made = admin.post(DRY, gpu_pod("quantity", {CORE: written}))
    (container,) = made["spec"]["containers"]
    asked = container["resources"]
    assert asked["limits"] == asked["requests"]
    assert parse_quantity(asked["limits"][CORE]) == int(cores)


def test_gpus_are_asked_for_nowhere_but_in_containers(admin: Client) -> None:
    """So the webhook need not look anywhere else: the API server refuses the rest by itself."""
    pod_level = gpu_pod("level", {})
    pod_level["spec"]["resources"] = {"limits": {CORE: "100"}}
    assert "spec.resources" in refusal(admin, pod_level)
    admin.post(pods.PODS, gpu_pod("held", {CORE: 30}))
    path = f"{pods.PODS}/held"
    try:
        more = {"name": "main", "resources": {"limits": {CORE: "60"}, "requests": {CORE: "60"}}}
        for way in ("", "/resize"):
            with pytest.raises(ApiError, match=r"(?i)forbidden|invalid"):
                admin.merge(f"{path}{way}", {"spec": {"containers": [{"image": "none", **more}]}})
        debug = {"name": "debug", "image": "none", "resources": {"limits": {CORE: "10"}}}
        with pytest.raises(ApiError, match="ephemeralContainers"):
            admin.merge(f"{path}/ephemeralcontainers", {"spec": {"ephemeralContainers": [debug]}})
    finally:
        admin.delete(f"{path}?gracePeriodSeconds=0")
