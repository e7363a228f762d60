"""The pods of the cluster's half, as users write them.

In: nothing. Out: pods in JSON. Invariant: what is said of each in its act holds on two nodes of two A100s each, and the
arrivals of the policies' act on `RACKS`.
"""

from typing import Any

Json = dict[str, Any]
NAMESPACE = "demo"
CORE = "tencent.com/vcuda-core"
MEMORY = "tencent.com/vcuda-memory"
NODE_POLICY = "tencent.com/vcuda-node-policy"
RACKS = {"rack-1": 8, "rack-2": 8, "rack-3": 4, "rack-4": 4}
POOL = "pool"
RACK_POOL = "racks"
LARGE = "large"


def pod(name: str, limits: Json, *, annotations: Json | None = None, **spec: object) -> Json:
    """One container, `main`."""
    metadata: Json = {"name": name, "namespace": NAMESPACE}
    if annotations:
        metadata["annotations"] = annotations
    container = {"name": "main", "image": "registry.example/demo", "resources": {"limits": limits}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": [container], **spec}}


def share(name: str, cores: int, blocks: int = 0, *, annotations: Json | None = None, **spec: object) -> Json:
    """By the two resources; whole GPUs say nothing of memory."""
    limits = {CORE: str(cores), **({MEMORY: str(blocks)} if blocks else {})}
    return pod(name, limits, annotations=annotations, **spec)


PLAIN = share("share", 20, 8)
HAMI = pod("hami", {"nvidia.com/gpu": "2", "nvidia.com/gpumem": "4096", "nvidia.com/gpucores": "30"})
BAD = share("typo", 150)
COMPANY = (
    share("notebook", 25, 16),
    share("embed", 60, 64, annotations={NODE_POLICY: "spread"}),
    share("rerank", 60, 64, annotations={NODE_POLICY: "spread"}),
)
WAITING = share("llm", 75, 64)
REPLICAS = tuple(share(f"web-{number}", 60, 64) for number in range(1, 5))


def member(gang: str, number: int) -> Json:
    return share(f"{gang}-{number}", 60, 64, schedulingGroup={"podGroupName": gang})


ARRIVALS = (400, 50, 50, 50, 400, 50, 400, 100)
"""Cores, in the order in which they come; then a pod for 8 GPUs."""


def arrival(policy: str, number: int, cores: int) -> Json:
    name = LARGE if cores == 800 else f"job-{number}"
    blocks = 0 if cores >= 100 else cores * 3
    return share(name, cores, blocks, annotations={NODE_POLICY: policy}, nodeSelector={POOL: RACK_POOL})
