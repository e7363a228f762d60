"""Images with a libcuda of their own for older drivers: in a share it never comes before vcuda's.

The images are laid out as NVIDIA's are: links from /usr/local/cuda to the version's directory, the linker's cache with
that directory, and an entry point that puts it first where it works. The libcuda in them is the emulated driver, as the
node's is, but nothing of vcuda's.
"""

import json
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from sandbox.cluster import pods
from sandbox.cluster.client import JsonObject
from sandbox.cluster.cluster import Cluster
from sandbox.cluster.images import image_with
from sandbox.emulated_gpus import BUILT, INTERPOSERS, PROGRAMS, EmulatedGpus
from tests.e2e.conftest import StartAgent
from tests.e2e.node.limits import BLOCK_BYTES
from tests.e2e.node.workload import WHOLE, GpuContainer

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

_PROGRAM = PROGRAMS / "slice"
_INSIDE = "/emulated-gpus"
_TOOLKIT = "usr/local/cuda-12.8"
_ASK = "LD_TRACE_LOADED_OBJECTS=1 slice; slice --seconds 0 || echo '{}'"
_COMPAT = "/usr/local/cuda/compat"


@dataclass(frozen=True, slots=True)
class Image:
    """One way to bring a libcuda, and how its programs are started."""

    name: str
    files: Mapping[str, bytes] = field(default_factory=dict)
    links: Mapping[str, str] = field(default_factory=dict)
    script: str = _ASK

    @property
    def reference(self) -> str:
        return f"docker.io/local/{self.name}:1"

    def archive(self) -> bytes:
        libraries = (*BUILT.glob("*.so.1"), *INTERPOSERS.glob("*.so.1"))
        return image_with(self.reference, (_PROGRAM,), libraries, more=self.files, links=self.links)


def _cache_of(folder: str) -> bytes:
    """/etc/ld.so.cache of an image whose only libcuda is in this folder."""
    with TemporaryDirectory(dir="/tmp") as root:
        (Path(root) / folder).mkdir(parents=True)
        (Path(root) / folder / "libcuda.so.1").write_bytes((BUILT / "libcuda.so.1").read_bytes())
        (Path(root) / "etc").mkdir()
        (Path(root) / "etc/ld.so.conf").write_text(f"/{folder}\n")
        subprocess.run(["/sbin/ldconfig", "-r", root], check=True, timeout=60)
        return (Path(root) / "etc/ld.so.cache").read_bytes()


def _in_the_cache() -> Image:
    """As vLLM's: found where a program has no LD_LIBRARY_PATH, through links of the alternatives system."""
    compat = f"{_TOOLKIT}/compat"
    return Image(
        "compat-cache",
        {f"{compat}/libcuda.so.1": (BUILT / "libcuda.so.1").read_bytes(), "etc/ld.so.cache": _cache_of(compat)},
        {"usr/local/cuda": "/etc/alternatives/cuda", "etc/alternatives/cuda": f"/{_TOOLKIT}"},
        f"unset LD_LIBRARY_PATH; {_ASK}",
    )


def _by_the_entry_point() -> Image:
    """As those of NGC: first in LD_LIBRARY_PATH, where a program finds a GPU with it."""
    real = f"{_COMPAT}/lib.real"
    return Image(
        "compat-entry",
        {f"{_TOOLKIT}/compat/lib.real/libcuda.so.1": (BUILT / "libcuda.so.1").read_bytes()},
        {"usr/local/cuda": "cuda-12.8"},
        f"LD_LIBRARY_PATH={real} slice --seconds 0 >/dev/null 2>&1 && LD_LIBRARY_PATH={real}:$LD_LIBRARY_PATH; {_ASK}",
    )


def _into_a_volume() -> Image:
    """Nothing can be mounted below a link that leads into a read-only volume."""
    return Image("compat-link", links={"usr/local/cuda": "/data/cuda"})


def _container(image: Image, gpu: GpuContainer, gpus: EmulatedGpus, **more: object) -> JsonObject:
    script = f"export CUDA_VISIBLE_DEVICES=$NVIDIA_VISIBLE_DEVICES; {image.script}"
    mounts = [{"name": "gpus", "mountPath": _INSIDE}, *more.pop("volumeMounts", [])]  # type: ignore[misc]
    state = {"name": "VCUDA_EMULATOR_STATE", "value": f"{_INSIDE}/{gpus.state.name}"}
    return pods.container(
        gpu.name, script, gpu.limits(), image=image.reference, env=[state], volumeMounts=mounts, **more
    )


@dataclass(frozen=True, slots=True)
class Found:
    """Which libcuda the linker gives to a container's program, and the memory of its GPU; None where there is none."""

    libcuda: str | None
    total_bytes: int | None


def _found(cluster: Cluster, gpus: EmulatedGpus, containers: list[JsonObject]) -> dict[str, Found]:
    volumes = [
        {"name": "gpus", "hostPath": {"path": str(gpus.state.parent), "type": "Directory"}},
        {"name": "empty", "emptyDir": {}},
        {"name": "off", "emptyDir": {}},
    ]
    pods.create(cluster.admin, pods.pod("compat", containers, volumes=volumes, restartPolicy="Never"))
    pods.wait_for(cluster.admin, ["compat"], lambda state: state.phase in ("Succeeded", "Failed"), what="over")
    return {each["name"]: _read(pods.log(cluster.admin, "compat", each["name"])) for each in containers}


def _read(log: str) -> Found:
    """What a program says on stderr may come after what its shell printed later."""
    path = re.search(r"libcuda\.so\.1 => (/\S+)", log)
    (answer,) = re.findall(r"^\{.*\}$", log, flags=re.MULTILINE)
    return Found(path[1] if path else None, json.loads(answer).get("total_bytes"))


@pytest.fixture(scope="module", autouse=True)
def images(cluster: Cluster) -> dict[str, Image]:
    made = {
        "cache": _in_the_cache(),
        "entry": _by_the_entry_point(),
        "none": Image("compat-none"),
        "link": _into_a_volume(),
    }
    for image in made.values():
        cluster.containerd.ctr("images", "import", "-", stdin=image.archive(), doing=f"importing {image.reference}")
    return made


def test_a_share_gets_vcudas_library_whatever_the_image_brings(
    empty_cluster: Cluster, start_agent: StartAgent, images: dict[str, Image]
) -> None:
    """The third has no CUDA and a root that it cannot write; the fourth has a volume of its own there.

    The fifth would not start with the mount, so it has an empty volume that turns the mount off.
    """
    gpus = start_agent().gpus
    share = {name: GpuContainer(name, 10, 8) for name in ("cache", "entry", "none", "volume", "link")}
    containers = [
        _container(images["cache"], share["cache"], gpus),
        _container(images["entry"], share["entry"], gpus),
        _container(images["none"], share["none"], gpus, securityContext={"readOnlyRootFilesystem": True}),
        _container(
            images["cache"],
            share["volume"],
            gpus,
            volumeMounts=[{"name": "empty", "mountPath": "/usr/local/cuda", "readOnly": True}],
        ),
        _container(
            images["link"],
            share["link"],
            gpus,
            volumeMounts=[
                {"name": "empty", "mountPath": "/data", "readOnly": True},
                {"name": "off", "mountPath": "/usr/local/cuda-none"},
            ],
        ),
    ]
    limit = 8 * BLOCK_BYTES
    assert _found(empty_cluster, gpus, containers) == {
        "cache": Found(f"/{_TOOLKIT}/compat/libcuda.so.1", limit),
        "entry": Found("/usr/local/nvidia/lib64/libcuda.so.1", limit),
        "none": Found("/usr/local/nvidia/lib64/libcuda.so.1", limit),
        "volume": Found(None, None),
        "link": Found("/usr/local/nvidia/lib64/libcuda.so.1", limit),
    }


def test_a_whole_gpu_keeps_the_libcuda_of_its_image(
    empty_cluster: Cluster, start_agent: StartAgent, images: dict[str, Image]
) -> None:
    agent = start_agent()
    wholes = [GpuContainer(name, WHOLE, 0) for name in ("cache", "entry")]
    containers = [_container(images[gpu.name], gpu, agent.gpus) for gpu in wholes]
    found = _found(empty_cluster, agent.gpus, containers)
    assert [each.libcuda for each in found.values()] == [
        f"/{_TOOLKIT}/compat/libcuda.so.1",
        f"{_COMPAT}/lib.real/libcuda.so.1",
    ]
    assert None not in [each.total_bytes for each in found.values()]
