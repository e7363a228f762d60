"""Pods, nodes and containers as JSON, with only what the caller says.

In: a few words. Out: objects for `Store.create`, shaped as users write them.
"""

from sandbox.apiserver.status import JsonObject


def container(
    name: str = "main",
    *,
    cores: int = 0,
    blocks: int = 0,
    env: dict[str, str] | None = None,
    sidecar: bool = False,
    domain: str = "tencent.com",
) -> JsonObject:
    """A container; counts of 0 are left out of its limits."""
    limits = {f"{domain}/vcuda-core": cores, f"{domain}/vcuda-memory": blocks}
    out: JsonObject = {
        "name": name,
        "image": "registry.example/busybox",
        "resources": {"limits": {key: str(count) for key, count in limits.items() if count}},
    }
    if env:
        out["env"] = [{"name": key, "value": value} for key, value in env.items()]
    if sidecar:
        out["restartPolicy"] = "Always"
    return out


def pod(
    name: str,
    *containers: JsonObject,
    init: tuple[JsonObject, ...] = (),
    node: str = "",
    namespace: str = "default",
    annotations: dict[str, str] | None = None,
    owner: str = "",
) -> JsonObject:
    """A pod; `owner` is the kind of a controller that owns it, such as ReplicaSet."""
    meta: JsonObject = {"name": name, "namespace": namespace}
    if annotations:
        meta["annotations"] = annotations
    if owner:
        reference = {"apiVersion": "apps/v1", "kind": owner, "name": f"{name}-owner", "uid": f"{name}-owner"}
        meta["ownerReferences"] = [reference | {"controller": True}]
    spec: JsonObject = {"containers": list(containers) or [container()]}
    if init:
        spec["initContainers"] = list(init)
    if node:
        spec["nodeName"] = node
    return {"metadata": meta, "spec": spec}


def node(name: str) -> JsonObject:
    return {"metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}}, "status": {}}
