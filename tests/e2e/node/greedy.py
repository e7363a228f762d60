"""Pods that run library/programs/slice.c: it takes all memory and time that it can get and says how much that was.

In: a cluster, the emulated GPUs of its node. Out: manifests, and the program's words as `Got`. Not here: how much it
ought to be. Invariant: the image has the program and the C library, and nothing of CUDA: the answer mounts that.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from sandbox.cluster import pods
from sandbox.cluster.client import Client, JsonObject
from sandbox.cluster.cluster import Cluster
from sandbox.cluster.images import image_with
from sandbox.emulated_gpus import BUILT, INTERPOSERS, PROGRAMS, EmulatedGpus
from tests.e2e.node.workload import GpuContainer

IMAGE = "docker.io/local/slice:1"
GO = "go"
_PROGRAM = PROGRAMS / "slice"
_INSIDE = "/emulated-gpus"  # a real container reaches the GPU through the kernel; here it is a file
_ALL_MIB = 1 << 20


class Nvml(msgspec.Struct, frozen=True):
    """What NVML says inside, while the program holds its memory."""

    total_bytes: int
    used_bytes: int
    processes: int


class Got(msgspec.Struct, frozen=True):
    """The program's line."""

    total_bytes: int
    free_bytes: int
    got_bytes: int
    refusal: str
    seconds: float
    share_percent: float
    nvml: Nvml | None


@dataclass(frozen=True, slots=True)
class GreedyPod:
    """One container with so many processes; all begin when `begin` is called and hold their memory to their end."""

    name: str
    slice: GpuContainer
    seconds: float
    processes: int = 1

    def manifest(self, gpus: EmulatedGpus) -> JsonObject:
        program = f"slice --exact --seconds {self.seconds:g} --hold-mib {_ALL_MIB} --after {_INSIDE}/{GO}"
        script = f"export CUDA_VISIBLE_DEVICES=$NVIDIA_VISIBLE_DEVICES; {f'{program} & ' * self.processes} wait"
        container = pods.container(
            self.slice.name,
            script,
            self.slice.limits(),
            image=IMAGE,
            env=[{"name": "VCUDA_EMULATOR_STATE", "value": f"{_INSIDE}/{gpus.state.name}"}],
            volumeMounts=[{"name": "gpus", "mountPath": _INSIDE}],
        )
        volume = {"name": "gpus", "hostPath": {"path": str(gpus.state.parent), "type": "Directory"}}
        return pods.pod(self.name, [container], volumes=[volume], restartPolicy="Never")

    def got(self, client: Client) -> list[Got]:
        """Of each process; fails on any other word."""
        lines = pods.log(client, self.name, self.slice.name).splitlines()
        return [msgspec.json.decode(line, type=Got) for line in lines]


def import_image(cluster: Cluster) -> None:
    libraries: Iterable[Path] = (*BUILT.glob("*.so.1"), *INTERPOSERS.glob("*.so.1"))
    image = image_with(IMAGE, (_PROGRAM,), libraries)
    cluster.containerd.ctr("images", "import", "-", stdin=image, doing="importing the image of the greedy program")


def hold(gpus: EmulatedGpus) -> None:
    """Until `begin`; an earlier test may have begun."""
    (gpus.state.parent / GO).unlink(missing_ok=True)


def begin(gpus: EmulatedGpus) -> None:
    (gpus.state.parent / GO).touch()
