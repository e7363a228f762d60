"""Pods as JSON, what the webhook makes of them, and pods of odd shapes."""

import base64
import json
from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from deviceplugin.cluster.webhook.mutate import mutate
from deviceplugin.cluster.webhook.pod_json import Json
from deviceplugin.cluster.webhook.resources import GpuKind, KnownGpus
from deviceplugin.cluster.webhook.review import AdmissionWebhook
from deviceplugin.config.scheduler import HamiResources, HamiScope, HamiSettings, WebhookSettings
from deviceplugin.model.gpu import Driver, Gpu, GpuUuid, Inventory
from deviceplugin.model.topology import Topology
from deviceplugin.model.units import ResourceNames

CORE, MEMORY = "tencent.com/vcuda-core", "tencent.com/vcuda-memory"
MEMORY_MIB = "tencent.com/vcuda-memory-mib"
GPU, GPUMEM = "nvidia.com/gpu", "nvidia.com/gpumem"
PERCENTAGE, GPUCORES = "nvidia.com/gpumem-percentage", "nvidia.com/gpucores"
SETTINGS = WebhookSettings(hami=HamiSettings(scope=HamiScope.OFF), hide_gpus=False)
HAMI = replace(SETTINGS, hami=HamiSettings(scope=HamiScope.ALL))
MARKED = replace(SETTINGS, hami=HamiSettings())
DOMAIN = "example.org"
CHOSEN = {
    "no HAMi": replace(SETTINGS, hide_gpus=True),
    "marked": replace(MARKED, hide_gpus=True),
    "all": replace(HAMI, hide_gpus=True),
    "other names": WebhookSettings(
        names=ResourceNames(DOMAIN),
        hami=HamiSettings(resources=HamiResources(count="nvidia.com/gpumem", memory="example.com/memory")),
    ),
}
A100S = KnownGpus(160, most=8, kinds=(GpuKind("NVIDIA A100-SXM4-40GB", 40960), GpuKind("NVIDIA A100-SXM4-80GB", 81920)))


def container(name: str = "main", limits: dict[str, Any] | None = None, **more: Any) -> Json:
    made: Json = {"name": name, "image": "busybox", **more}
    if limits is not None:
        made["resources"] = {"limits": limits, "requests": dict(limits)}
    return made


def pod(*containers: Json, annotations: dict[str, str] | None = None, **spec: Any) -> Json:
    metadata: Json = {"name": "p", "namespace": "default"}
    if annotations is not None:
        metadata["annotations"] = annotations
    return {"metadata": metadata, "spec": {"containers": list(containers), **spec}}


def gpu_pod(limits: dict[str, Any], annotations: dict[str, str] | None = None, **more: Any) -> Json:
    """One container."""
    return pod(container(limits=limits, **more), annotations=annotations)


def mutated(given: Json, settings: WebhookSettings = SETTINGS, known: KnownGpus = A100S) -> Json:
    return mutate(given, settings, known).pod


def asked(given: Json, place: int = 0, kind: str = "containers") -> dict[str, str]:
    """What a container asks for; requests and limits must say the same."""
    resources = given["spec"][kind][place]["resources"]
    assert resources["limits"] == resources["requests"]
    return dict(resources["limits"])


def node_of(*kinds: tuple[str, int]) -> Inventory:
    """Models and MiB."""
    gpus = tuple(Gpu(GpuUuid(f"GPU-{model}-{mib}-{n}"), n, n, model, mib << 20) for n, (model, mib) in enumerate(kinds))
    return Inventory(gpus, Topology(tuple(range(len(gpus)))), Driver("550", (12, 4)))


def review(given: object, **request: Any) -> bytes:
    whole = {
        "uid": "review-1",
        "kind": {"group": "", "version": "v1", "kind": "Pod"},
        "resource": {"group": "", "version": "v1", "resource": "pods"},
        "namespace": "default",
        "operation": "CREATE",
        "object": given,
        **request,
    }
    return json.dumps({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": whole}).encode()


def response(body: bytes, settings: WebhookSettings = SETTINGS, known: KnownGpus = A100S) -> Json:
    """The response part, its patch decoded."""
    answer = json.loads(AdmissionWebhook(settings).answer(body, known).body)
    assert (answer["apiVersion"], answer["kind"]) == ("admission.k8s.io/v1", "AdmissionReview")
    found: Json = answer["response"]
    if "patch" in found:
        found["patch"] = json.loads(base64.b64decode(found["patch"]))
    return found


_counts = st.one_of(
    st.none(), st.sampled_from(["0", "1", "2", "30", "50", "100", "150", "200", "1k", "3000m", "-4", "x", 7])
)
_resources = st.sampled_from(
    [CORE, MEMORY, GPU, GPUMEM, PERCENTAGE, GPUCORES, "nvidia.com/priority", "nvidia.com/mig-1g.5gb", "cpu"]
)
_lists = st.none() | st.dictionaries(_resources, _counts, max_size=4)
_values = st.none() | st.sampled_from(["", "all", "/a:/b", "/usr/local/nvidia/lib64", "true"])
_variables = st.fixed_dictionaries(
    {"name": st.sampled_from(["LD_LIBRARY_PATH", "LD_PRELOAD", "NVIDIA_VISIBLE_DEVICES", "compat32", "PATH"])},
    optional={"value": _values, "valueFrom": st.just({"fieldRef": {"fieldPath": "metadata.name"}})},
)
_container_fields: dict[str, st.SearchStrategy[Any]] = {
    "env": st.none() | st.lists(_variables, max_size=3),
    "restartPolicy": st.sampled_from(["Always", None]),
    "securityContext": st.none()
    | st.just({"privileged": True})
    | st.fixed_dictionaries({"capabilities": st.none() | st.just({"add": ["SYS_ADMIN", 3]}) | st.just({"add": None})}),
    "volumeMounts": st.none()
    | st.lists(
        st.fixed_dictionaries({"mountPath": st.sampled_from(["/data", "/etc/vcuda/limits", "", 3])}), max_size=2
    ),
    "unknown~/field": st.integers(),
}
_names = st.sampled_from(["main", "side", "init-1"])
_containers: st.SearchStrategy[Json] = st.fixed_dictionaries(
    {"name": _names},
    optional={
        "resources": st.none() | st.fixed_dictionaries({}, optional={"limits": _lists, "requests": _lists}),
        **_container_fields,
    },
)
_numbers = st.sampled_from(["1", "2", "30", "100", "200", "4096"])
_sensible = st.dictionaries(st.sampled_from([CORE, MEMORY]), _numbers, min_size=1) | st.dictionaries(
    st.sampled_from([GPU, GPUMEM, GPUCORES, PERCENTAGE]), _numbers, min_size=1
)
_asking = st.fixed_dictionaries(
    {"name": _names, "resources": st.fixed_dictionaries({"limits": _sensible}, optional={"requests": _sensible})},
    optional=_container_fields,
)


_terms = st.fixed_dictionaries(
    {},
    optional={
        "matchFields": st.none() | st.just([{"key": "metadata.name", "operator": "In", "values": ["n1"]}]),
        "matchExpressions": st.just([{"key": "zone", "operator": "Exists"}]),
    },
)
_required = st.fixed_dictionaries({}, optional={"nodeSelectorTerms": st.none() | st.lists(_terms, max_size=2)})
_affinity = st.none() | st.fixed_dictionaries(
    {},
    optional={
        "nodeAffinity": st.none()
        | st.fixed_dictionaries({}, optional={"requiredDuringSchedulingIgnoredDuringExecution": st.none() | _required})
    },
)
_keys = st.sampled_from(
    [
        *("tencent.com/vcuda-allocation", "tencent.com/predicate-gpu-idx-0", "tencent.com/vcuda-gpus"),
        *("tencent.com/vcuda-core-limit", "tencent.com/vcuda-gpu-policy", "nvidia.com/use-gputype", "a/b~c"),
        "kubernetes.io/config.mirror",
    ]
)
_texts = st.sampled_from(["", "2", "main=2", "main=2,side=3", "50", "link", "A100"])
_metadata = st.fixed_dictionaries(
    {},
    optional={
        "annotations": st.none() | st.dictionaries(_keys, _texts, max_size=3),
        "labels": st.none() | st.dictionaries(st.sampled_from(["hami.io/webhook", "app"]), st.just("ignore")),
        "generateName": st.just("p-"),
    },
)
_optional = {
    "initContainers": st.none() | st.lists(_containers, max_size=1),
    "nodeName": st.sampled_from(["n1", "n2", "", None]),
    "schedulerName": st.sampled_from(["", "default-scheduler", "volcano", None]),
    "runtimeClassName": st.sampled_from(["", "nvidia", None]),
    "affinity": _affinity,
    "hostPID": st.sampled_from([True, False, None]),
}
_specs = st.fixed_dictionaries(
    {
        "containers": st.lists(
            st.integers(0, 3).flatmap(lambda kind: _asking if kind else _containers), min_size=1, max_size=3
        )
    },
    optional=_optional,
)
_odd_specs = st.none() | st.fixed_dictionaries({}, optional={"containers": st.none(), **_optional})
_lively = st.fixed_dictionaries({"spec": _specs}, optional={"metadata": st.none() | _metadata})
_odd = st.fixed_dictionaries({}, optional={"metadata": st.none() | _metadata, "spec": _odd_specs})
odd_pods: st.SearchStrategy[Json] = st.integers(0, 4).flatmap(lambda kind: _lively if kind else _odd)
