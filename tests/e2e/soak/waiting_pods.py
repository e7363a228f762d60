"""Pods that wait for longer than any fault lasts, and pods that were refused.

In: the pods as the API server lists them, at one look after the other, and the time. Out: a sentence for each stuck
pod; the reasons of refused ones. Not here: asking the API server.
Invariant: a pod that waits only for room, for its own next try, or because kubelet forgot its devices is not stuck.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from sandbox.cluster.client import JsonObject

LONGEST_S = 180.0
"""Several times what a start takes while all cores are in use and faults go on."""
LONG_S = 15.0
ONLY_A_NEW_POD_HELPS = ("no devices found allocated in local cache", "delete the pod")
"""What kubelet and the agent say of containers whose devices were in the checkpoint that a fault damaged."""
AFTER_DAMAGE_S = 60.0
"""So long after it, kubelet may ask for new pods and for forgotten ones, and nobody can tell them apart."""
_OVER = ("Succeeded", "Failed")
_CHANGING = re.compile(r"[0-9a-f]{8}-[0-9a-f-]+|GPU-\S+|soak-[\w-]+|g-[0-9a-z]{6,}|\d[\d.:]*")


@dataclass(slots=True)
class WaitingPods:
    """Remembers since when each pod waits."""

    since: dict[str, float] = field(default_factory=dict)
    stuck: dict[str, str] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    forgotten: set[str] = field(default_factory=set)
    """Those that lost their devices with kubelet's checkpoint, as somebody says. Only a new pod helps them."""
    seen: dict[str, float] = field(default_factory=dict)
    present: int = 0
    """Pods at the last look, those that are being deleted too."""
    damaged_at: float = float("-inf")
    """When kubelet's checkpoint was damaged last."""
    late: frozenset[str] = frozenset()
    """Names of those that wait for long and are not stuck yet: they must be left to show whether they start."""

    def look(self, items: Iterable[JsonObject], now: float) -> list[str]:
        """A sentence for each pod that is stuck since this look."""
        found = {str(item["metadata"]["uid"]): item for item in items}
        self.present = len(found)
        self._note_refused(found.items())
        waiting = {uid: why for uid, item in found.items() if (why := why_waiting(item))}
        self.seen = {uid: self.seen.get(uid, now) for uid in found}
        self.forgotten |= {uid for uid, why in waiting.items() if self._is_forgotten(uid, why)}
        self.since = {uid: self.since.get(uid, now) for uid in waiting if uid not in self.forgotten}
        self.late = frozenset(
            str(found[uid]["metadata"]["name"])
            for uid, began in self.since.items()
            if now - began > LONG_S and uid not in self.stuck
        )
        over = [uid for uid, began in self.since.items() if now - began > LONGEST_S and uid not in self.stuck]
        for uid in over:
            name = found[uid]["metadata"]["name"]
            self.stuck[uid] = f"pod {name} ({uid[:8]}) waits for more than {LONGEST_S:.0f} s: {waiting[uid]}"
        return [self.stuck[uid] for uid in over]

    def reasons(self) -> Counter[str]:
        """Refused pods by what was said, without what differs from pod to pod."""
        return Counter(_CHANGING.sub("#", words)[:160] for words in self.refused.values())

    def _is_forgotten(self, uid: str, why: str) -> bool:
        lived_then = self.damaged_at > self.seen[uid] - AFTER_DAMAGE_S
        return lived_then and any(words in why for words in ONLY_A_NEW_POD_HELPS)

    def _note_refused(self, found: Iterable[tuple[str, JsonObject]]) -> None:
        for uid, item in found:
            status = item.get("status", {})
            if status.get("phase") == "Failed" and status.get("reason"):
                self.refused.setdefault(uid, f"{status['reason']}: {status.get('message', '')}")


def why_unbound(item: JsonObject) -> str:
    """Empty if the pod is bound, or asks for whole GPUs, for which there may be no room."""
    whole = any(env["value"] == "0" for env in _environment(item) if env["name"] == "SOAK_BLOCKS")
    if item["spec"].get("nodeName") or whole:
        return ""
    conditions = item.get("status", {}).get("conditions", [])
    return "; ".join(each.get("message", "") for each in conditions) or "no scheduler says why it is not bound"


def _environment(item: JsonObject) -> Iterator[JsonObject]:
    for each in (*item["spec"].get("initContainers", []), *item["spec"]["containers"]):
        yield from each.get("env", [])


def why_waiting(item: JsonObject) -> str:
    """Empty if the pod runs, is over, or waits for something that is nobody's fault."""
    status = item.get("status", {})
    if "deletionTimestamp" in item["metadata"] or not item["spec"].get("nodeName") or status.get("phase") in _OVER:
        return ""  # whether every deletion ends is seen at the end: each fault may hold it up again
    waits = list(_waits(status))
    if any(reason == "CrashLoopBackOff" for reason, _ in waits):
        return ""
    if status.get("phase") == "Running" and not waits:
        return ""
    return "; ".join(f"{reason} {message}".strip() for reason, message in waits) or str(status.get("phase", "no phase"))


def _waits(status: JsonObject) -> Iterator[tuple[str, str]]:
    for each in (*status.get("initContainerStatuses", []), *status.get("containerStatuses", [])):
        state = each.get("state", {}).get("waiting")
        if state is not None:
            yield state.get("reason", "waiting"), state.get("message", "")
