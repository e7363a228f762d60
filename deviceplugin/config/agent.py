"""The settings of `vcuda agent`: this file is the reference from which flags, environment, file and docs are made.

In: nothing. Out: `AGENT` and its tree `AgentSettings`, frozen, whose leaves are parsed values. Durations are seconds.
Flags that the lineage has keep its names, defaults and meaning; where one differs, its help says so. Values that depend
on the machine (`derive`) are filled by `effective`, so a tree made by hand has them empty.
"""

# ruff: noqa: RUF009 - `setting` and `section` are dataclasses.field with a description

import enum
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deviceplugin.config import kinds
from deviceplugin.config.gpu_manager import ExtraConfig, VolumeConfig, read_extra_config, read_volume_config
from deviceplugin.config.logs import LogSettings
from deviceplugin.config.program import Program
from deviceplugin.config.setting import section, setting
from deviceplugin.errors import ConfigError
from deviceplugin.model.units import DEFAULT_DOMAIN, ResourceNames

_ANSWER_WITHIN = 2.0  # kubelet's sync loop waits for Allocate without a deadline of its own (design 3.2)


class DriverKind(enum.Enum):
    """Whose GPUs; the lineage has one too."""

    NVIDIA = "nvidia"


class IdentitySource(enum.Enum):
    """What may be asked which container an Allocate is for."""

    PODS = "pods"
    PODRESOURCES = "podresources"
    APISERVER = "apiserver"


class Registration(enum.Enum):
    """How kubelet learns of the plugin."""

    AUTO = "auto"
    REGISTRY = "registry"
    SOCKET = "socket"


class CgroupDriver(enum.Enum):
    """How kubelet names the cgroups of containers."""

    AUTO = "auto"
    CGROUPFS = "cgroupfs"
    SYSTEMD = "systemd"


def _show_file(config: ExtraConfig | VolumeConfig) -> str:
    return kinds.show_path(config.path)


def _host_name(known: Mapping[str, Any], env: Mapping[str, str]) -> str:
    return socket.gethostname().strip().lower()


def _kubelet_root(known: Mapping[str, Any], env: Mapping[str, str]) -> Path:
    path: Path = known["device-plugin-path"]
    return path.parent


def _pods_endpoint(known: Mapping[str, Any], env: Mapping[str, str]) -> str:
    host = env.get("NODE_IP") or "127.0.0.1"
    return f"https://[{host}]:10250/pods" if ":" in host else f"https://{host}:10250/pods"


@dataclass(frozen=True, slots=True)
class NodeSettings:
    """Who this node is."""

    name: str = setting(
        "hostname-override",
        kinds.NODE_NAME,
        "Name of this node in the cluster.",
        default="",
        derive=_host_name,
        derived="this machine's host name",
        more_env=("NODE_NAME",),
    )
    labels: Mapping[str, str] = setting(
        "node-labels", kinds.LABELS, "Labels to put on the node besides those that describe its GPUs.", default={}
    )
    kubeconfig: Path | None = setting(
        "kubeconfig",
        kinds.OPTIONAL_PATH,
        "How to reach the API server; empty: as a pod of the cluster does.",
        default=None,
    )
    resource_domain: str = setting(
        "resource-domain",
        kinds.DOMAIN,
        "Domain of the two resources, of the annotations and of the labels.",
        default=DEFAULT_DOMAIN,
    )


@dataclass(frozen=True, slots=True)
class DriverSettings:
    """The GPUs and how they are watched."""

    kind: DriverKind = setting("driver", kinds.choice(DriverKind), "Maker of the GPUs.", default=DriverKind.NVIDIA)
    root: Path = setting(
        "driver-root",
        kinds.PATH,
        "Directory below which this process finds the node's driver (ROOT/usr/lib64/libnvidia-ml.so.1 and the like).",
        default=Path("/"),
    )
    nvml_library: str = setting(
        "nvml-library", kinds.ABSOLUTE, "The one NVML library to use, wherever it is; empty: the driver's.", default=""
    )
    wait_for_driver: bool = setting(
        "wait-for-driver",
        kinds.BOOLEAN,
        "Where there is no driver, wait until there is one; otherwise say so and end.",
        default=False,
    )
    wait_timeout: float = setting(
        "wait-timeout",
        kinds.DURATION,
        "Longest wait for the driver to answer at start; without persistence mode it wakes every GPU first.",
        default=60.0,
    )
    sample_period: float = setting(
        "sample-period", kinds.PERIOD, "How often utilisation and memory of every GPU are read.", default=1.0
    )
    health_recovery: float = setting(
        "health-recovery",
        kinds.DURATION,
        "How long a GPU stays out after a critical error, doubled with each further one of a day; 0: until a restart.",
        default=300.0,
    )
    ignored_xids: str = setting(
        "ignored-xids",
        kinds.XIDS,
        "XIDs that leave a GPU healthy, besides those that are the application's own fault; all: every XID.",
        default="",
    )
    critical_xids: str = setting(
        "critical-xids", kinds.XIDS, "XIDs that make a GPU unhealthy whatever --ignored-xids says.", default=""
    )
    extra_config: ExtraConfig = setting(
        "extra-config",
        kinds.Kind(
            "the path of a JSON file",
            "PATH",
            read_extra_config,
            _show_file,
        ),
        'JSON file with device nodes that every container gets where they exist: {"default": {"devices": [...]}}.',
        default=ExtraConfig(),
    )
    volume_config: VolumeConfig = setting(
        "volume-config",
        kinds.Kind("the path of a JSON file", "PATH", read_volume_config, _show_file),
        "JSON file that lists the driver's files for containers, as gpu-manager's; empty: those of today's drivers.",
        default=VolumeConfig(),
    )
    mirror_path: Path = setting(
        "driver-mirror-path",
        kinds.PATH,
        "Directory on the node with the driver's files that containers mount.",
        default=Path("/etc/gpu-manager/vdriver"),
    )
    check_period: float = setting(
        "driver-check-period",
        kinds.PERIOD,
        "How often the driver's files and --library-path are looked at for the mirror.",
        default=10.0,
    )
    library_path: Path = setting(
        "library-path",
        kinds.PATH,
        "Directory of vcuda's libcuda.so.1, libnvidia-ml.so.1 and libvcuda.so.1, without which no share may start.",
        default=Path("/usr/local/lib/vcuda"),
    )
    version_file: Path = setting(
        "driver-version-file",
        kinds.PATH,
        "Where the kernel tells the version of the loaded driver; for tests.",
        default=Path("/proc/driver/nvidia/version"),
        hidden=True,
    )
    device_root: Path = setting(
        "device-root",
        kinds.PATH,
        "Directory that stands before /dev/nvidiaN, here and on the node; for tests.",
        default=Path("/"),
        hidden=True,
    )


@dataclass(frozen=True, slots=True)
class AllocationSettings:
    """How slices are given out and remembered."""

    share_mode: bool = setting(
        "share-mode", kinds.BOOLEAN, "Give out shares of a GPU; otherwise whole GPUs only.", default=False
    )
    check_period: float = setting(
        "allocation-check-period",
        kinds.PERIOD,
        "How often pods are compared with the ledger, and what disagrees is corrected.",
        default=30.0,
    )
    checkpoint_path: Path = setting(
        "checkpoint-path",
        kinds.PATH,
        "Directory of the agent's journal.",
        default=Path("/etc/gpu-manager/checkpoint"),
    )
    virtual_manager_path: Path = setting(
        "virtual-manager-path",
        kinds.PATH,
        "Directory, the same on the node and here, with one directory for each grant.",
        default=Path("/etc/gpu-manager/vm"),
    )
    identity: tuple[IdentitySource, ...] = setting(
        "identity",
        kinds.choices(IdentitySource),
        "What is asked, in this order, which container an Allocate is for.",
        default=tuple(IdentitySource),
    )
    identity_budget: float = setting(
        "identity-budget",
        kinds.PERIOD,
        "Longest wait for each source of --identity; all of them together stay below 2s.",
        default=0.5,
    )
    numa: bool = setting(
        "numa",
        kinds.BOOLEAN,
        "Tell kubelet the NUMA node of each GPU; leave off where vcuda's scheduler chooses the GPU.",
        default=False,
    )
    cdi: bool = setting("cdi", kinds.BOOLEAN, "Name the devices of each grant through CDI as well.", default=False)
    cdi_dir: Path = setting(
        "cdi-dir",
        kinds.PATH,
        "Directory that the container runtime reads CDI files from.",
        default=Path("/var/run/cdi"),
    )


@dataclass(frozen=True, slots=True)
class KubeletSettings:
    """Where kubelet is."""

    device_plugin_path: Path = setting(
        "device-plugin-path",
        kinds.PATH,
        "Kubelet's directory of device plugins.",
        default=Path("/var/lib/kubelet/device-plugins"),
    )
    root: Path = setting(
        "kubelet-root",
        kinds.PATH,
        "Kubelet's --root-dir, with plugins_registry and pod-resources.",
        default=Path(),
        derive=_kubelet_root,
        derived="the parent of --device-plugin-path",
    )
    registration: Registration = setting(
        "registration",
        kinds.choice(Registration),
        "Register through plugins_registry or kubelet.sock; auto: the first where kubelet has it.",
        default=Registration.AUTO,
    )
    pods_endpoint: str = setting(
        "kubelet-pods-endpoint",
        kinds.URL,
        "Where kubelet lists its pods.",
        default="",
        derive=_pods_endpoint,
        derived="https://$NODE_IP:10250/pods, without NODE_IP at 127.0.0.1",
    )
    ca_file: Path | None = setting(
        "kubelet-ca-file",
        kinds.OPTIONAL_PATH,
        "Certificates that kubelet's is checked against, besides the cluster's; empty: KUBELET-ROOT/pki/kubelet.crt.",
        default=None,
    )
    insecure_tls: bool = setting(
        "kubelet-insecure-tls",
        kinds.BOOLEAN,
        "Do not check kubelet's certificate; whoever listens on that port then gets this agent's token.",
        default=False,
    )


@dataclass(frozen=True, slots=True)
class RuntimeSettings:
    """The container runtime."""

    endpoint: Path | None = setting(
        "container-runtime-endpoint",
        kinds.OPTIONAL_SOCKET,
        "CRI socket of the container runtime (gpu-manager's default was dockershim's, which is gone).",
        default=Path("/run/containerd/containerd.sock"),
    )
    cgroup_driver: CgroupDriver = setting(
        "cgroup-driver",
        kinds.choice(CgroupDriver),
        "How kubelet names the cgroups of containers; auto recognises both ways (gpu-manager's default was cgroupfs).",
        default=CgroupDriver.AUTO,
    )
    request_timeout: float = setting(
        "runtime-request-timeout", kinds.PERIOD, "Longest wait for an answer of the container runtime.", default=5.0
    )


@dataclass(frozen=True, slots=True)
class QuerySettings:
    """Where operators look."""

    address: str = setting(
        "query-addr", kinds.HOST, "Address that metrics, views and probes listen on.", default="localhost"
    )
    port: int = setting("query-port", kinds.PORT, "Port of metrics, views and probes; 0: any free one.", default=5678)
    display_socket: Path | None = setting(
        "display-socket",
        kinds.OPTIONAL_SOCKET,
        "Unix socket of display.GPUDisplay; empty: not served.",
        default=Path("/var/run/gpu-manager.sock"),
    )


@dataclass(frozen=True, slots=True)
class AgentSettings:
    """Everything that `vcuda agent` can be told."""

    node: NodeSettings = section(NodeSettings, "Node")
    driver: DriverSettings = section(DriverSettings, "GPUs and driver")
    allocation: AllocationSettings = section(AllocationSettings, "Allocation")
    kubelet: KubeletSettings = section(KubeletSettings, "Kubelet")
    runtime: RuntimeSettings = section(RuntimeSettings, "Container runtime")
    query: QuerySettings = section(QuerySettings, "Views and probes")
    log: LogSettings = section(LogSettings, "Logs")

    @property
    def names(self) -> ResourceNames:
        return ResourceNames(self.node.resource_domain)


def _check_together(settings: AgentSettings) -> None:
    allocation = settings.allocation
    together = allocation.identity_budget * len(allocation.identity)
    if together >= _ANSWER_WITHIN:
        raise ConfigError(
            f"--identity-budget: {allocation.identity_budget:g}s for each of {len(allocation.identity)} sources is "
            f"{together:g}s, and Allocate must answer within {_ANSWER_WITHIN:g}s; shorten it or name fewer sources "
            f"in --identity"
        )


AGENT = Program(
    command="agent",
    kind="AgentConfig",
    tree=AgentSettings,
    retired={
        "standalone": "the agent always speaks with a kubelet",
        "incluster-mode": "without --kubeconfig the agent speaks with the API server as a pod of the cluster does",
        "docker-endpoint": "the container runtime is reached through CRI, see --container-runtime-endpoint",
    },
    check=_check_together,
)
