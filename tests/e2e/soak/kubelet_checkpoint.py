"""Kubelet's checkpoint of devices, read by other code than the agent's.

In: the file. Out: for each container the grants in the answers that kubelet recorded. Not here: what it should say.
Invariant: None where the file is missing or no JSON, as while a fault has damaged it.
"""

import base64
import json
import re
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

from tests.e2e.node.workload import CORE, MEMORY

Owner = tuple[str, str]
"""Pod UID and container."""
_GRANT = re.compile(rb"/vm/(g-[0-9a-z]+)")


def recorded(file: Path) -> Mapping[Owner, frozenset[str]] | None:
    """A container that was given devices and no answer of ours has an entry without grants."""
    try:
        document = json.loads(file.read_text(errors="replace"))
        entries = document["Data"]["PodDeviceEntries"] or []
        found: dict[Owner, set[str]] = defaultdict(set)
        for each in entries:
            if each["ResourceName"] in (CORE, MEMORY):
                answer = base64.b64decode(each.get("AllocResp") or "")
                grants = {name.decode() for name in _GRANT.findall(answer)}
                found[each["PodUID"], each["ContainerName"]] |= grants
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return {owner: frozenset(grants) for owner, grants in found.items()}
