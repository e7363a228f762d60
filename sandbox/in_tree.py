"""The few of kube-scheduler's own filters that decide which nodes an extender is asked about.

In: a pod, nodes, pods with the nodes that they are on or are meant for, all as JSON. Out: kube-scheduler's reasons, and
the names of the nodes that pass: those that match the pod's node selector and whose sums of the two resources suffice.
"""

from collections import Counter
from collections.abc import Iterable
from typing import Any

RESOURCES = ("tencent.com/vcuda-core", "tencent.com/vcuda-memory")
Json = dict[str, Any]


def in_tree(pod: Json, nodes: Iterable[Json], placed: Iterable[tuple[str, Json]]) -> tuple[list[str], list[str]]:
    held = _held(placed)
    reasons: list[str] = []
    names: list[str] = []
    for node in nodes:
        name = node["metadata"]["name"]
        if why := _against(pod, node, held.get(name, Counter())):
            reasons.append(why)
        else:
            names.append(name)
    return reasons, names


def _held(placed: Iterable[tuple[str, Json]]) -> dict[str, Counter[str]]:
    held: dict[str, Counter[str]] = {}
    for node, pod in placed:
        if node and pod["status"].get("phase") not in ("Succeeded", "Failed"):
            held.setdefault(node, Counter()).update(_asked(pod))
    return held


def _asked(pod: Json) -> Counter[str]:
    limits = [container.get("resources", {}).get("limits") or {} for container in pod["spec"]["containers"]]
    return Counter({name: sum(int(each.get(name, 0)) for each in limits) for name in RESOURCES})


def _against(pod: Json, node: Json, held: Counter[str]) -> str:
    labels = node["metadata"].get("labels") or {}
    if not (pod["spec"].get("nodeSelector") or {}).items() <= labels.items():
        return "node(s) didn't match Pod's node affinity/selector"
    offered = node.get("status", {}).get("allocatable") or {}
    for name, count in _asked(pod).items():
        if count + held[name] > int(offered.get(name, 0)):
            return f"Insufficient {name}"
    return ""
