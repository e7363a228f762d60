"""The pods of the demo, as users write them.

Out: pods in JSON. Invariants: all pods of `TEAM` and the replicas of web fit on one node with eight A100s, and
`IMPOSSIBLE` fits nowhere; what the cluster's steps say of their pods holds on two nodes with two A100s each.
"""

from typing import Any

Json = dict[str, Any]
NAMESPACE = "demo"
CORE = "tencent.com/vcuda-core"
MEMORY, MEMORY_MIB = "tencent.com/vcuda-memory", "tencent.com/vcuda-memory-mib"
NODE_POLICY = "tencent.com/vcuda-node-policy"


def name_of(pod: Json) -> str:
    return str(pod["metadata"]["name"])


def container(name: str, cores: int, blocks: int = 0) -> Json:
    """Without blocks it asks for whole GPUs."""
    limits = {CORE: str(cores), **({MEMORY: str(blocks)} if blocks else {})}
    return {"name": name, "image": "registry.example/demo", "resources": {"limits": limits}}


def pod(name: str, *containers: Json, metadata: Json | None = None, **spec: object) -> Json:
    meta = {"name": name, "namespace": NAMESPACE, **(metadata or {})}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": {"containers": list(containers), **spec}}


def share(name: str, cores: int, blocks: int = 0, *, metadata: Json | None = None, **spec: object) -> Json:
    """One container, `main`."""
    return pod(name, container("main", cores, blocks), metadata=metadata, **spec)


def with_policy(name: str, cores: int, blocks: int, policy: str, **spec: object) -> Json:
    return share(name, cores, blocks, metadata={"annotations": {NODE_POLICY: policy}}, **spec)


# The node's show

PIPELINE = (container("decode", 10, 16), container("serve", 25, 32))
TEAM = (
    (share("notebook-ann", 30, 32), "30 cores, 8 GiB", "a share of a GPU"),
    (share("notebook-bob", 20, 16), "20 cores, 4 GiB", "joins the fullest GPU"),
    (share("inference", 60, 96), "60 cores, 24 GiB", "opens the next GPU"),
    (
        pod("pipeline", *PIPELINE, initContainers=[container("warm-up", 40, 16)]),
        "10+25 cores, 12 GiB",
        "init and two containers",
    ),
    (share("finetune", 100), "1 GPU", "a whole GPU"),
    (share("pretrain", 400), "4 GPUs", "the four closest GPUs"),
)
"""Each pod with its request in words and with what to look at."""
IMPOSSIBLE = share("typo", 150)
GREEDY = (share("greedy-ann", 20, 8), share("greedy-bob", 50, 16))


def replica(number: int) -> Json:
    """One pod of a ReplicaSet; kubelet admits them while the agent is killed."""
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "uid-of-web", "controller": True}
    return share(f"web-{number}", 15, 20, metadata={"labels": {"app": "web"}, "ownerReferences": [owner]})


# The cluster's show

PLAIN_LIMITS = {CORE: "20", MEMORY_MIB: "2048"}
PLAIN = pod("share", {"name": "main", "image": "registry.example/demo", "resources": {"limits": PLAIN_LIMITS}})
HAMI_LIMITS = {"nvidia.com/gpu": "2", "nvidia.com/gpumem": "4096", "nvidia.com/gpucores": "30"}
HAMI = pod("hami", {"name": "main", "image": "registry.example/demo", "resources": {"limits": HAMI_LIMITS}})
SERVICES = (
    share("notebook", 25, 16),
    with_policy("embed", 60, 64, "spread"),
    with_policy("rerank", 60, 64, "spread"),
)
BUSY = ("notebook", "embed")
"""Of the pods that run beside the page these run the greedy program, one on each node; the others have idle GPUs."""
WAITING = share("llm", 75, 64)
SURVIVORS = tuple(share(f"web-{number}", 60, 64) for number in range(1, 5))
RACKS = {"rack-1": 8, "rack-2": 8, "rack-3": 4, "rack-4": 4}
POOL, RACK_POOL = "pool", "racks"
LARGE = "large"
ARRIVALS = (400, 50, 50, 50, 400, 50, 400, 100)
"""Cores, in the order in which the pods come; then `LARGE` comes, which asks for 8 GPUs."""


def member(gang: str, number: int) -> Json:
    return share(f"{gang}-{number}", 60, 64, schedulingGroup={"podGroupName": gang})


def task(gang: str, number: int, cores: int) -> Json:
    """A member of one of Volcano's gangs."""
    meta = {"annotations": {"scheduling.volcano.sh/group-name": gang}}
    return share(f"{gang}-{number}", cores, 0 if cores >= 100 else 64, metadata=meta, schedulerName="volcano")


def arrival(policy: str, number: int, cores: int) -> Json:
    name = LARGE if cores == 800 else f"job-{number}"
    return with_policy(name, cores, 0 if cores >= 100 else cores * 3, policy, nodeSelector={POOL: RACK_POOL})
