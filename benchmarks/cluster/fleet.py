"""The nodes and pods of the synthetic cluster, equal at every call.

In: numbers. Out: objects as an API server sends them, with fields that vcuda does not read, because skipping them
costs time too. Invariant: running pods never use more than a GPU has; stub and load generator make the same pod from
the same number.
"""

import json
import random
import uuid
from collections.abc import Iterator, Sequence
from typing import Any

from deviceplugin.model.allocation import GpuShare, PodUid
from deviceplugin.model.annotation_names import AnnotationNames
from deviceplugin.model.annotations import PodAllocation, format_allocation
from deviceplugin.model.claims import ClaimNames
from deviceplugin.model.gpu import Inventory
from deviceplugin.model.node import format_inventory
from deviceplugin.model.units import CORES_PER_GPU, ResourceNames
from sandbox.inventories import made_up_inventory

Json = dict[str, Any]
NAMESPACE = "default"
GPUS = 8
_ENDPOINTS = 100
_MODELS = (("NVIDIA A100-SXM4-80GB", 81920), ("NVIDIA H100 80GB HBM3", 81559), ("NVIDIA L40S", 46068))
_SPACE = uuid.UUID("6ba7b815-9dad-11d1-80b4-00c04fd430c8")
_NAMES = ResourceNames()
_ANNOTATIONS = AnnotationNames()
_TIME = "2026-11-21T08:00:00Z"


def node_name(number: int) -> str:
    return f"gpu-node-{number:05d}.example.internal"


def inventory_of(number: int) -> Inventory:
    model, memory_mib = _MODELS[number % len(_MODELS)]
    return made_up_inventory(node_name(number), gpus=GPUS, memory_mib=memory_mib, model=model)


def node(number: int) -> Json:
    """About 7 KiB; a quarter is the inventory."""
    name, inventory = node_name(number), inventory_of(number)
    offered = {
        "cpu": "128",
        "ephemeral-storage": "884736Mi",
        "hugepages-2Mi": "0",
        "memory": "1056Gi",
        "pods": "110",
        _NAMES.core: str(CORES_PER_GPU * GPUS),
        _NAMES.memory: str(sum(gpu.blocks for gpu in inventory.gpus)),
    }
    kinds = ("MemoryPressure", "DiskPressure", "PIDPressure", "Ready")
    return {
        "metadata": {
            "name": name,
            "uid": uid_of(name),
            "creationTimestamp": _TIME,
            "labels": {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64"},
            "annotations": {
                "node.alpha.kubernetes.io/ttl": "0",
                _ANNOTATIONS.inventory: format_inventory(inventory, share_mode=True),
            },
        },
        "spec": {"podCIDR": f"10.{number >> 8 & 255}.{number & 255}.0/24", "providerID": f"example://{number}"},
        "status": {
            "capacity": offered,
            "allocatable": offered,
            "conditions": [
                {
                    "type": kind,
                    "status": str(kind == "Ready"),
                    "reason": f"KubeletHas{kind}",
                    "message": f"kubelet has {kind}",
                    "lastHeartbeatTime": _TIME,
                    "lastTransitionTime": _TIME,
                }
                for kind in kinds
            ],
            "addresses": [{"type": "InternalIP", "address": f"10.{number >> 8 & 255}.{number & 255}.1"}],
            "images": [
                {"names": [f"registry.example/team/image-{i}@sha256:{i:064x}"], "sizeBytes": 10**9} for i in range(20)
            ],
            "nodeInfo": {"kubeletVersion": "v1.36.2", "kernelVersion": "6.1.0", "osImage": "Debian GNU/Linux 12"},
        },
    }


def agent_address(number: int) -> str:
    """Of the node's agent, in 127.0.0.0/8, all of which is loopback on Linux."""
    return f"127.{10 + (number >> 16)}.{number >> 8 & 255}.{number & 255}"


def endpoint_slices(nodes: int, port: int) -> list[Json]:
    """Of the agents' Service, a hundred endpoints in each as Kubernetes makes them."""
    ends = [
        {
            "addresses": [agent_address(number)],
            "conditions": {"ready": True, "serving": True, "terminating": False},
            "nodeName": node_name(number),
            "targetRef": {"kind": "Pod", "namespace": "kube-system", "name": f"vcuda-agent-{number}"},
        }
        for number in range(nodes)
    ]
    return [
        {
            "metadata": {"name": f"vcuda-agent-{first}", "labels": {"kubernetes.io/service-name": "vcuda-agent"}},
            "addressType": "IPv4",
            "endpoints": ends[first : first + _ENDPOINTS],
            "ports": [{"name": "metrics", "port": port, "protocol": "TCP"}],
        }
        for first in range(0, nodes, _ENDPOINTS)
    ]


def running_shares(nodes: int, pods: int) -> Iterator[GpuShare]:
    """What each running pod holds of its GPU: shares of different sizes, every eighth a whole GPU."""
    assert pods <= nodes * GPUS, "each running pod has a GPU to itself or shares it with nobody yet"
    chance = random.Random(1)
    for number in range(pods):
        gpu = inventory_of(number % nodes).gpus[number // nodes]
        cores = CORES_PER_GPU if number % 8 == 0 else chance.choice((5, 10, 20, 25, 30))
        blocks = gpu.blocks if cores == CORES_PER_GPU else cores * gpu.blocks // 150
        yield GpuShare(gpu.uuid, cores, blocks)


def running_pods(nodes: int, pods: int) -> list[Json]:
    """One pod for each GPU."""
    made = []
    for number, held in enumerate(running_shares(nodes, pods)):
        where = number % nodes
        pod = pod_of(running_name(number), [("main", held.cores, held.blocks)])
        share = PodAllocation(PodUid(pod["metadata"]["uid"]), {"main": (held,)})
        pod["metadata"]["annotations"] |= {
            _ANNOTATIONS.allocation: format_allocation(share),
            _ANNOTATIONS.gpu_assigned: "true",
            _ANNOTATIONS.predicate_time: str(1_700_000_000_000_000_000 + number),
            _ANNOTATIONS.predicate_node: node_name(where),
            _ANNOTATIONS.gpu_indices(0): str(number // nodes),
        }
        pod["spec"]["nodeName"] = node_name(where)
        pod["status"] = {"phase": "Running", "conditions": [{"type": "PodScheduled", "status": "True"}]}
        made.append(pod)
    return made


def running_name(number: int) -> str:
    return f"running-{number}"


def pending_pod(number: int) -> Json:
    """A share of one of about sixty sizes; sometimes a whole GPU or two containers."""
    chance = random.Random(number)
    cores, blocks = chance.choice(range(5, 65, 5)), chance.choice((8, 16, 24, 32, 48))
    if number % 40 == 0:
        return pod_of(pending_name(number), [("main", CORES_PER_GPU, 0)])
    if number % 40 == 1:
        return pod_of(pending_name(number), [("main", cores, blocks), ("side", 5, 4)])
    return pod_of(pending_name(number), [("main", cores, blocks)])


def avoiding(gpus: int) -> dict[str, str]:
    """An annotation of about 41 bytes for each GPU."""
    return {_ANNOTATIONS.avoid_gpus: ",".join(f"GPU-{uid_of(str(at))}" for at in range(gpus))} if gpus else {}


def claiming(number: int) -> tuple[Json, Json]:
    """A waiting pod with a claim, and the claim, for a share that nobody has allocated."""
    pod = pod_of(claiming_name(number), [("main", 0, 0)])
    name = f"claim-{number}"
    main = pod["spec"]["containers"][0]
    main["resources"] = {"claims": [{"name": "gpu"}]}
    pod["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimName": name}]
    exactly = {
        "deviceClassName": ClaimNames(_NAMES.domain).shares,
        "allocationMode": "ExactCount",
        "count": 1,
        "capacity": {"requests": {"cores": "20", "memory": "2Gi"}},
    }
    meta = {"name": name, "namespace": NAMESPACE, "uid": uid_of(name), "creationTimestamp": _TIME}
    return pod, {"metadata": meta, "spec": {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}}}


def claiming_name(number: int) -> str:
    return f"claiming-{number}"


def pending_name(number: int) -> str:
    return f"pending-{number}"


def uid_of(name: str) -> str:
    return str(uuid.uuid5(_SPACE, name))


def pod_of(name: str, containers: Sequence[tuple[str, int, int]]) -> Json:
    """About 4 KiB, with tolerations, volumes and managed fields, as in a pod of a Deployment."""
    token = f"kube-api-access-{name[-5:]}"
    return {
        "metadata": {
            "name": name,
            "namespace": NAMESPACE,
            "uid": uid_of(name),
            "resourceVersion": "1",
            "creationTimestamp": _TIME,
            "labels": {"app": "inference", "pod-template-hash": "7b9c5d4f6b"},
            "annotations": {"prometheus.io/scrape": "true"},
            "ownerReferences": [
                {
                    "apiVersion": "apps/v1",
                    "kind": "ReplicaSet",
                    "name": "inference-7b9c5d4f6b",
                    "uid": str(uuid.uuid5(_SPACE, "owner")),
                    "controller": True,
                    "blockOwnerDeletion": True,
                }
            ],
            "managedFields": [_MANAGED],
        },
        "spec": {
            "schedulerName": "vcuda-scheduler",
            "serviceAccountName": "default",
            "restartPolicy": "Always",
            "dnsPolicy": "ClusterFirst",
            "priority": 0,
            "enableServiceLinks": True,
            "preemptionPolicy": "PreemptLowerPriority",
            "containers": [_container(each, cores, blocks, token) for each, cores, blocks in containers],
            "volumes": [{"name": token, "projected": {"defaultMode": 420, "sources": [{"downwardAPI": {}}]}}],
            "tolerations": [
                {
                    "key": f"node.kubernetes.io/{key}",
                    "operator": "Exists",
                    "effect": "NoExecute",
                    "tolerationSeconds": 300,
                }
                for key in ("not-ready", "unreachable")
            ],
        },
        "status": {"phase": "Pending", "qosClass": "Burstable"},
    }


def _container(name: str, cores: int, blocks: int, token: str) -> Json:
    counts = {_NAMES.core: str(cores), **({_NAMES.memory: str(blocks)} if blocks else {})}
    return {
        "name": name,
        "image": "registry.example/team/inference:1.4.2",
        "args": ["--model=/models/one", "--port=8080"],
        "env": [{"name": f"SETTING_{i}", "value": f"value-{i}"} for i in range(8)],
        "ports": [{"containerPort": 8080, "protocol": "TCP"}],
        "resources": {
            "limits": {"cpu": "8", "memory": "32Gi", **counts},
            "requests": {"cpu": "4", "memory": "16Gi", **counts},
        },
        "volumeMounts": [{"name": token, "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount"}],
        "terminationMessagePath": "/dev/termination-log",
        "imagePullPolicy": "IfNotPresent",
    }


_MANAGED: Json = {
    "manager": "kube-controller-manager",
    "operation": "Update",
    "apiVersion": "v1",
    "time": _TIME,
    "fieldsType": "FieldsV1",
    "fieldsV1": json.loads(
        json.dumps({f"f:{group}": {f"f:field-{i}": {} for i in range(12)} for group in ("metadata", "spec", "status")})
    ),
}
