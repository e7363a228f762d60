"""A pod that can never run is denied with what to write instead; one that cannot run today gets a warning."""

import re
from dataclasses import replace

from deviceplugin.cluster.webhook.pod_json import Json
from deviceplugin.cluster.webhook.resources import KnownGpus
from deviceplugin.cluster.webhook.validate import validate
from deviceplugin.errors import VcudaError
from deviceplugin.model.allocation import MOST_LIBRARY_PATH
from deviceplugin.model.pod_request import MOST_WRITTEN
from tests.cluster.webhook.makers import A100S, CORE, MEMORY, SETTINGS, container, gpu_pod, pod, response, review
from tests.refusals import refusal

SHARE = {CORE: "30", MEMORY: "8"}
PRIVILEGED: Json = {"securityContext": {"privileged": True}}


def _init(limits: dict[str, str]) -> Json:
    return pod(container(), initContainers=[container("warm", limits)])


def _mounted(path: str) -> Json:
    return {"volumeMounts": [{"name": "data", "mountPath": "/data"}, {"name": "other", "mountPath": path}]}


def _of_the_node(path: object, *, name: str = "data") -> Json:
    volumes = [{"name": name, "hostPath": {"path": path}}, {"name": "other", "emptyDir": {}}]
    return pod(container("main", SHARE, **_mounted("/x")), volumes=volumes)


def _adding(*capabilities: str) -> Json:
    return {"securityContext": {"capabilities": {"add": list(capabilities)}}}


def _with_path(text: str) -> Json:
    return gpu_pod(SHARE, env=[{"name": "LD_LIBRARY_PATH", "value": text}])


def _unlike() -> Json:
    return pod({"name": "main", "resources": {"limits": SHARE, "requests": {**SHARE, CORE: "20"}}})


def test_what_can_never_run_is_refused_with_what_to_write_instead() -> None:
    cases = [
        (gpu_pod({CORE: "150"}), ["container main", "150", "write 100 or 200"]),
        (gpu_pod({CORE: "30"}), ["container main", "a share needs both", f"add {MEMORY}"]),
        (gpu_pod({MEMORY: "30"}), ["container main", f"add {CORE}"]),
        (gpu_pod({CORE: "-1"}), ["container main", "cannot be negative"]),
        (gpu_pod({CORE: "0.5"}), ["container main", CORE, "whole"]),
        (gpu_pod({CORE: "much"}), ["container main", CORE, "quantity"]),
        (_init({CORE: "150"}), ["init container warm", "write 100 or 200"]),
        (gpu_pod(SHARE, **PRIVILEGED), ["container main", "privileged", "remove securityContext.privileged"]),
        (gpu_pod(SHARE, {"tencent.com/vcuda-gpus": "4"}), ["30 cannot be divided evenly over 4", "28 or 32"]),
        (gpu_pod(SHARE, {"tencent.com/vcuda-gpus": "man=2"}), ["man", "asks for no GPU", "main"]),
        (gpu_pod(SHARE, {"tencent.com/vcuda-gpus": "many"}), ["tencent.com/vcuda-gpus", "write a number"]),
        (gpu_pod(SHARE, {"tencent.com/vcuda-gpu-policy": "pack"}), ["vcuda-gpu-policy", "binpack or spread or link"]),
        (gpu_pod(SHARE, {"tencent.com/vcuda-numa": "1"}), ["vcuda-numa", "write true or false"]),
        (gpu_pod(SHARE, {"tencent.com/vcuda-core-limit": "0"}), ["vcuda-core-limit", "from 1 to 100"]),
        (gpu_pod(SHARE, {"tencent.com/vcuda-socket": "yes"}), ["vcuda-socket", "write true or false"]),
        (
            _with_path("x" * (MOST_LIBRARY_PATH + 1)),
            ["container main", "LD_LIBRARY_PATH", "more than 4,096 bytes", "shorten"],
        ),
        (_with_path("ü" * (MOST_LIBRARY_PATH // 2 + 1)), ["container main", "more than 4,096 bytes"]),
        (_unlike(), ["container main", CORE, "remove it from requests"]),
        (gpu_pod({CORE: "30", MEMORY: "4Gi"}), ["container main", "4294967296", "blocks of 256 MiB", "4 GiB are 16"]),
        (gpu_pod({CORE: "1M"}), ["container main", "1000000", "more than any node has"]),
        (gpu_pod({CORE: "1Gi"}), ["container main", "1073741824", "more than any node has"]),
        (gpu_pod({CORE: "9223372036854775807"}), ["container main", "9223372036854775807 is more than any node has"]),
        (gpu_pod({CORE: "30", MEMORY: "1Ei"}), ["container main", MEMORY, "blocks of 256 MiB"]),
        (gpu_pod(SHARE, **_mounted("/usr/local/nvidia")), ["at /usr/local/nvidia,", "mount it somewhere else"]),
        (gpu_pod(SHARE, **_mounted("//usr/local/./nvidia/lib64/")), ["at /usr/local/nvidia/lib64,"]),
        (gpu_pod(SHARE, **_mounted("/etc/vcuda/limits")), ["at /etc/vcuda/limits,"]),
        (pod(container("side", SHARE, **PRIVILEGED), initContainers=[]), ["container side", "privileged"]),
    ]
    said = [(words, refusal(VcudaError, validate, given, SETTINGS, A100S)) for given, words in cases]
    assert [each for each in said if not all(word in each[1] for word in each[0])] == []
    assert [sentence for _, sentence in said if "\n" in sentence or re.search(r"\. [A-Z]", sentence)] == []


def test_good_pods_pass_without_a_word() -> None:
    pods: list[Json] = [
        gpu_pod(SHARE),
        gpu_pod({CORE: "100"}),
        gpu_pod({CORE: "800"}),
        gpu_pod({CORE: "100", MEMORY: "160"}),
        gpu_pod({CORE: "1e2"}),
        gpu_pod({CORE: "100000m"}),
        gpu_pod({CORE: "0.1k"}),
        gpu_pod({CORE: "50.0000000000", MEMORY: "00000000000000000000000008"}),
        gpu_pod({CORE: 1e2}),
        gpu_pod({CORE: "+30", MEMORY: "0.0625Ki"}),
        gpu_pod(SHARE, **_mounted("/usr/local")),
        gpu_pod(SHARE, **_mounted("/usr/local/nvidia-tools")),
        gpu_pod(SHARE, **_adding("NET_ADMIN")),
        gpu_pod(SHARE, env=[{"name": "LD_PRELOAD", "value": "/usr/lib/libjemalloc.so.2"}]),
        _with_path("x" * MOST_LIBRARY_PATH),
        pod(container(env=[{"name": "LD_LIBRARY_PATH", "value": "x" * 100_000}]), container("main", SHARE)),
        gpu_pod({CORE: "60", MEMORY: "8"}, {"tencent.com/vcuda-gpus": "2"}),
        gpu_pod(SHARE, {"tencent.com/vcuda-gpu-policy": "link", "hami.io/gpu-scheduler-policy": "whatever"}),
        gpu_pod(SHARE, {"nvidia.com/use-gputype": "a100"}),
        pod(container("root", **PRIVILEGED), container("main")),
        *(_of_the_node(path) for path in ("/etc/gpu", "/etc/gpu-manager2", "/data", None)),
        _of_the_node("/etc/gpu-manager", name="mounted by nobody"),
        pod(container(), annotations={"tencent.com/vcuda-gpu-policy": "pack"}),
        _init(SHARE),
        {},
        {"metadata": None, "spec": {"containers": None}},
    ]
    said = [(given, validate(given, SETTINGS, A100S)) for given in pods]
    assert [each for each in said if each[1]] == []


def test_what_is_odd_or_cannot_be_served_today_is_a_warning() -> None:
    cases = [
        (gpu_pod({CORE: "30", MEMORY: "400"}), ["400 blocks (100 GiB) of one GPU", "320 blocks (80 GiB)"]),
        (gpu_pod({CORE: "200", MEMORY: "800"}), ["400 blocks"]),
        (gpu_pod({CORE: "1600"}), ["16 GPUs", "no node has more than 8"]),
        (gpu_pod(SHARE, {"tencent.com/vcuda-use-models": "H200,B200"}), ["H200 or B200"]),
        (gpu_pod(SHARE, {"nvidia.com/use-gpuuuid": "GPU-x"}), ["annotations accept no GPU of any node"]),
        (gpu_pod(SHARE, {"nvidia.com/nouse-gputype": "NVIDIA"}), ["annotations accept no GPU of any node"]),
        (gpu_pod({CORE: "100"}, **PRIVILEGED), ["privileged", "sees every GPU"]),
        (
            pod(container("root", **PRIVILEGED), container("main", SHARE)),
            ["container root is privileged and sees every GPU", "beside the GPU containers of this pod"],
        ),
        (
            pod(container("main", {CORE: "100"}), initContainers=[container("sysctl", **PRIVILEGED)]),
            ["init container sysctl is privileged and sees every GPU"],
        ),
        (gpu_pod({CORE: "100"}, **_mounted("/usr/local/nvidia")), ["mounts a volume", "puts the driver"]),
        (_of_the_node("/etc/gpu-manager"), ["container main mounts /etc/gpu-manager of its node"]),
        (_of_the_node("//etc/./gpu-manager/vm/"), ["mounts /etc/gpu-manager/vm of its node", "limits of all"]),
        (_of_the_node("/etc"), ["mounts /etc of its node; in /etc/gpu-manager vcuda keeps"]),
        (_of_the_node("/"), ["mounts / of its node"]),
        (gpu_pod(SHARE, **_adding("CAP_SYS_ADMIN")), ["container main", "SYS_ADMIN"]),
        (gpu_pod(SHARE, **_adding("ALL")), ["SYS_ADMIN"]),
        (gpu_pod(SHARE, env=[{"name": "LD_PRELOAD", "value": "/x/libcuda.so.1"}]), ["LD_PRELOAD"]),
        (pod(container("main", SHARE), container("plain"), hostPID=True), ["container main", "spec.hostPID"]),
        (
            gpu_pod(SHARE, env=[{"name": "LD_LIBRARY_PATH", "valueFrom": {"configMapKeyRef": {}}}]),
            ["LD_LIBRARY_PATH has a valueFrom"],
        ),
    ]
    said = [(words, validate(given, SETTINGS, A100S)) for given, words in cases]
    assert [each for each in said if len(each[1]) != 1 or not all(word in each[1][0] for word in each[0])] == []


def test_the_directory_of_the_node_is_the_one_that_the_operator_names() -> None:
    cases = [
        ("/var/lib/vcuda/", "/var/lib/vcuda", True),
        ("/var/lib/vcuda", "/var", True),
        ("/var/lib/vcuda", "/etc/gpu-manager", False),
        ("", "/", False),
    ]
    for directory, path, warned in cases:
        warnings = validate(_of_the_node(path), replace(SETTINGS, state_directory=directory), A100S)
        said = [f"in {directory.rstrip('/')} vcuda keeps" in each for each in warnings]
        assert said == [True] * warned, (directory, path)


def test_nothing_is_too_large_where_no_gpu_is_known() -> None:
    for asked in ({CORE: "30", MEMORY: "4000"}, {CORE: "6400"}):
        assert validate(gpu_pod(asked), SETTINGS, KnownGpus()) == ()


def test_a_pod_that_opted_out_is_not_judged() -> None:
    given = gpu_pod({CORE: "150"})
    given["metadata"]["labels"] = {"hami.io/webhook": "ignore"}
    assert validate(given, SETTINGS, A100S) == ()


def test_a_pod_without_room_for_its_gpus_is_refused() -> None:
    """Its Binding would fill it, and then not even kubelet could change it. Claims write nothing to it."""
    notes = {"notebook": "x" * ((256 << 10) - 300)}
    given = gpu_pod(SHARE, notes)
    said = refusal(VcudaError, validate, given, SETTINGS, A100S) or ""
    assert "make its annotations smaller, or divide its containers among several pods" in said
    assert validate(given, replace(SETTINGS, claims=True), A100S) == ()
    assert validate(gpu_pod(SHARE, {"notebook": "x" * (250 << 10)}), SETTINGS, A100S) == ()
    many = pod(*(container(f"c{at}", SHARE) for at in range(900)), annotations={"notebook": "x" * (100 << 10)})
    assert "its GPUs need up to" in (refusal(VcudaError, validate, many, SETTINGS, A100S) or "")


def test_a_pod_whose_user_writes_more_for_vcuda_than_it_keeps_is_refused() -> None:
    names = ("tencent.com/vcuda-use-gpus", "tencent.com/vcuda-avoid-gpus", "nvidia.com/use-gputype")
    text = "x" * (MOST_WRITTEN // 3 - 30)
    assert response(review(gpu_pod({CORE: "20", MEMORY: "8"}, dict.fromkeys(names, text))))["allowed"]
    found = response(review(gpu_pod({CORE: "20", MEMORY: "8"}, dict.fromkeys(names, text + "x" * 20))))
    assert found["status"]["message"] == (
        "the pod's annotations for vcuda have 20524 bytes and it reads 20480; name fewer GPUs, models or containers in "
        "them"
    )


def test_soft_rules_are_warned_about_where_the_extender_chooses_the_node() -> None:
    one_node = replace(SETTINGS, one_node=True)
    term = {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 100}]}
    rules: list[tuple[Json, str]] = [
        ({"affinity": {"nodeAffinity": term}}, "preferred node affinity does"),
        (
            {"affinity": {"podAffinity": term, "podAntiAffinity": term}},
            "preferred pod affinity and preferred pod anti-",
        ),
        ({"topologySpreadConstraints": [{"whenUnsatisfiable": "ScheduleAnyway"}]}, "topology spread with ScheduleAny"),
        ({"topologySpreadConstraints": [{"whenUnsatisfiable": "DoNotSchedule"}], "affinity": {}}, ""),
    ]
    for spec, beginning in rules:
        given = pod(container(limits=dict(SHARE)), schedulerName="vcuda-scheduler", **spec)
        found = response(review(given), one_node, A100S).get("warnings", [])
        assert [each.startswith(beginning) for each in found] == ([True] if beginning else []), found
        assert all("not count" in each and len(each) <= 240 for each in found)
        for settings, name in (
            (SETTINGS, "vcuda-scheduler"),
            (one_node, "volcano"),
            (replace(one_node, claims=True), ""),
        ):
            other = pod(container(limits=dict(SHARE)), schedulerName=name, **spec)
            assert "warnings" not in response(review(other), settings, A100S)
        plain = pod(container(), schedulerName="vcuda-scheduler", **spec)
        assert "warnings" not in response(review(plain), one_node, A100S)
