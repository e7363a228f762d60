"""The kernel settings that kubelet changes when it starts.

In: a file to remember them in. Out: the settings as they were.
Invariant: what kubelet changes for its own good is put back.
"""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

CHANGED_BY_KUBELET = (
    "vm/overcommit_memory",
    "vm/panic_on_oom",
    "kernel/panic",
    "kernel/panic_on_oops",
    "kernel/keys/root_maxkeys",
    "kernel/keys/root_maxbytes",
)
SETTINGS = Path("/proc/sys")


def remember_sysctls(record: Path, others: Sequence[Path] = ()) -> None:
    """`others` are records of clusters that run now: what they found is how the settings were."""
    if others:
        shutil.copy(others[0], record)
        return
    present = [name for name in CHANGED_BY_KUBELET if (SETTINGS / name).exists()]
    record.write_text(json.dumps({name: (SETTINGS / name).read_text().strip() for name in present}))


def restore_sysctls(record: Path) -> None:
    values: dict[str, str] = json.loads(record.read_text()) if record.exists() else {}
    for name, value in values.items():
        if (SETTINGS / name).read_text().strip() != value:
            (SETTINGS / name).write_text(value)
