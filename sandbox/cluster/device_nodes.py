"""Device nodes for GPUs that do not exist, in a folder of their own.

In: a folder and how many GPUs. Out: `<folder>/dev/nvidia*`, real character devices that the runtime can hand on.
Not here: the machine's own /dev, which is left alone: the agent is given this folder as its `--device-root`.
Invariant: the majors are those of the real driver, so the kernel's device cgroup judges as it would with a GPU.
"""

import os
import stat
from pathlib import Path

GPU_MAJOR = 195
CONTROL_MINOR = 255
UVM_MAJOR = 511
MOST_GPUS = 16


def make_device_nodes(root: Path, gpus: int) -> Path:
    folder = root / "dev"
    folder.mkdir(parents=True, exist_ok=True)
    nodes = {f"nvidia{minor}": (GPU_MAJOR, minor) for minor in range(gpus)}
    nodes |= {"nvidiactl": (GPU_MAJOR, CONTROL_MINOR), "nvidia-uvm": (UVM_MAJOR, 0)}
    for name, (major, minor) in nodes.items():
        os.mknod(folder / name, 0o666 | stat.S_IFCHR, os.makedev(major, minor))
    return root
