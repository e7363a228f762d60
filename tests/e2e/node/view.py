"""What a container sees of its slice, told by the container itself.

In: a shell script that prints one line when the container starts. Out: `View`, parsed from that line of the pod's log.
Not here: what it ought to see (`expectations`).
Invariant: a GPU counts as reachable only where the kernel lets the container open its device node, whatever the
container was told: the script makes nodes of its own for every GPU and tries them.
"""

import base64
import gzip
import re
from collections.abc import Mapping
from dataclasses import dataclass

from sandbox.cluster.device_nodes import GPU_MAJOR, MOST_GPUS
from tests.e2e.node.limits import Limits, parse_limits

MARK = "VIEW"
GRANT = "/etc/vcuda"
SPARE_BYTE = 120  # in the headers of region and activity rows
DRIVER = "/usr/local/nvidia"

# A refused open says "Operation not permitted"; one that is allowed says that there is no such driver, or succeeds.
SHOW = f"""
field() {{ printf ' %s=%s' "$1" "$(gzip -c | base64 -w0)"; }}
try() {{
    mknod "/tmp/gpu$1" c {GPU_MAJOR} "$1" || exit 1
    case "$( (: <"/tmp/gpu$1") 2>&1)" in *"not permitted"*) ;; *) echo "$1" ;; esac
}}
line=$(printf '{MARK}'
    field environment <"/proc/$$/environ"
    field mounts </proc/self/mountinfo
    for node in /dev/nvidia*; do stat -c '%n %t %T' "$node"; done 2>/dev/null | field devices
    for minor in $(seq 0 {MOST_GPUS - 1}); do try "$minor"; done | field reachable
    for name in libcuda-real libcuda; do [ -e {DRIVER}/lib64/$name.so.1 ] && echo $name; done | field driver
    (touch {GRANT}/written {DRIVER}/written) 2>&1 | grep -c Read-only | field refusals
    for file in {GRANT}/state/* {GRANT}/gpus/*/*; do
        printf x 2>/dev/null | dd of="$file" bs=1 seek={SPARE_BYTE} conv=notrunc 2>/dev/null && echo "$file"
    done | field writable
    (touch {GRANT}/state/new; rm -f {GRANT}/state/region; cd {GRANT}/gpus/* && touch new) 2>&1 |
        grep -c -e Read-only -e busy | field kept
    cat {GRANT}/vcuda.config 2>/dev/null | field limits)
echo "$line"
"""
_FLAVOURS = {"libcuda-real\nlibcuda\n": "nvidia", "libcuda\n": "origin"}  # with ours in front, and without
SHOW_AND_STAY = SHOW + "trap 'exit 0' TERM; while :; do sleep 3600 & wait $!; done"


@dataclass(frozen=True, slots=True)
class View:
    """One container, from inside. `mounts` says which folder of the host lies at the grant's and the driver's path.

    `writable`: files of the shared state that it could write to; root in the container has tried all.
    """

    environment: Mapping[str, str]
    mounts: Mapping[str, str]
    device_nodes: Mapping[str, tuple[int, int]]
    reachable_gpus: frozenset[int]
    driver_flavour: str
    refused_writes: int
    writable: frozenset[str]
    refused_state_changes: int
    limits: Limits | None

    @property
    def grant_folder(self) -> str:
        return self.mounts[GRANT]

    @property
    def visible_gpus(self) -> tuple[str, ...]:
        return tuple(self.environment["NVIDIA_VISIBLE_DEVICES"].split(","))


def parse_view(log: str) -> View | None:
    """The last view in a log: a restarted container may have written several; None before the first."""
    lines = [line for line in log.splitlines() if line.startswith(f"{MARK} ")]
    if not lines:
        return None
    fields = dict(re.findall(r" (\w+)=(\S*)", lines[-1]))
    content = {name: gzip.decompress(base64.b64decode(value)) for name, value in fields.items()}
    text = {name: value.decode(errors="replace") for name, value in content.items()}
    return View(
        environment=_environment(text["environment"]),
        mounts=_mounts(text["mounts"]),
        device_nodes=_device_nodes(text["devices"]),
        reachable_gpus=frozenset(map(int, text["reachable"].split())),
        driver_flavour=_FLAVOURS.get(text["driver"], text["driver"]),
        refused_writes=int(text["refusals"]),
        writable=frozenset(text["writable"].split()),
        refused_state_changes=int(text["kept"]),
        limits=parse_limits(content["limits"]) if content["limits"] else None,
    )


def _environment(text: str) -> dict[str, str]:
    return dict(entry.split("=", 1) for entry in text.split("\0") if "=" in entry)


def _mounts(text: str) -> dict[str, str]:
    """mountinfo: the fourth field is the folder within its file system, the fifth where it is mounted."""
    mounts = {fields[4]: fields[3] for fields in map(str.split, text.splitlines())}
    return {path: mounts[path] for path in (GRANT, DRIVER) if path in mounts}


def _device_nodes(text: str) -> dict[str, tuple[int, int]]:
    return {name: (int(major, 16), int(minor, 16)) for name, major, minor in map(str.split, text.splitlines())}
