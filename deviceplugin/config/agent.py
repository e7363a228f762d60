"""The settings of `vcuda agent`: flags, variables, keys of the file and docs/reference are made from this tree.

In: nothing. Out: `AGENT` and its tree `AgentSettings`, frozen, whose leaves are parsed values. Durations are seconds.
Flags that gpu-manager has keep its names, defaults and meaning; where one differs, its help says so. Defaults that
depend on the machine (`derive`) are filled on the command line, so a tree made by hand has them empty.
"""

# ruff: noqa: RUF009 - `setting` and `section` are dataclasses.field with a description

import enum
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deviceplugin.config import param_types as types
from deviceplugin.config.command import LogSettings, Program
from deviceplugin.config.gpu_manager import ExtraConfig, VolumeConfig, read_extra_config, read_volume_config
from deviceplugin.config.setting import section, setting
from deviceplugin.errors import ConfigError
from deviceplugin.model.units import DEFAULT_DOMAIN, ResourceNames

_ANSWER_WITHIN_S = 2.0  # kubelet sets no deadline for Allocate, and one slow answer blocks its sync loop


class DriverKind(enum.Enum):
    """The maker of the GPUs; gpu-manager has the same one."""

    NVIDIA = "nvidia"


class IdentitySourceName(enum.Enum):
    """The sources that can tell which container an Allocate is for."""

    PODS = "pods"
    PODRESOURCES = "podresources"
    APISERVER = "apiserver"


class Registration(enum.Enum):
    """How the plugin registers with kubelet."""

    AUTO = "auto"
    REGISTRY = "registry"
    SOCKET = "socket"


class CgroupDriver(enum.Enum):
    """How kubelet names the cgroups of containers."""

    AUTO = "auto"
    CGROUPFS = "cgroupfs"
    SYSTEMD = "systemd"


def _show_file(config: ExtraConfig | VolumeConfig) -> str:
    return types.show_path(config.path)


def _host_name(params: Mapping[str, Any]) -> str:
    return socket.gethostname().strip().lower()


def _kubelet_root(params: Mapping[str, Any]) -> Path:
    path: Path = params["device_plugin_path"]
    return path.parent


def _pods_endpoint(params: Mapping[str, Any]) -> str:
    host = os.environ.get("NODE_IP") or "127.0.0.1"
    return f"https://[{host}]:10250/pods" if ":" in host else f"https://{host}:10250/pods"


@dataclass(frozen=True, slots=True)
class NodeSettings:
    """The node in the cluster."""

    name: str = setting(
        "hostname-override",
        types.NODE_NAME,
        "Name of this node in the cluster.",
        default="",
        derive=_host_name,
        derived="this machine's host name",
        more_env=("NODE_NAME",),
    )
    labels: Mapping[str, str] = setting(
        "node-labels",
        types.LABELS,
        "Labels to put on the node, in addition to those that describe its GPUs.",
        default={},
    )
    kubeconfig: Path | None = setting(
        "kubeconfig",
        types.OPTIONAL_PATH,
        "Kubeconfig file for the API server; empty: the service account of this pod.",
        default=None,
    )
    resource_domain: str = setting(
        "resource-domain",
        types.DOMAIN,
        "Domain of the resources, annotations and labels.",
        default=DEFAULT_DOMAIN,
    )


@dataclass(frozen=True, slots=True)
class DriverSettings:
    """The GPUs, and how the agent watches them."""

    kind: DriverKind = setting("driver", types.choice(DriverKind), "Maker of the GPUs.", default=DriverKind.NVIDIA)
    root: Path = setting(
        "driver-root",
        types.PATH,
        "Directory at which this process sees the node's root; the driver is in DIRECTORY/usr/lib64 and the like.",
        default=Path("/"),
    )
    nvml_library: str = setting(
        "nvml-library", types.ABSOLUTE, "Path of the NVML library; empty: the one of the driver.", default=""
    )
    wait_for_driver: bool = setting(
        "wait-for-driver",
        types.BOOLEAN,
        "If the node has no driver, wait for one; otherwise report that and exit.",
        default=False,
    )
    wait_timeout: float = setting(
        "wait-timeout",
        types.DURATION,
        "Longest wait for the driver at start; without persistence mode the driver wakes every GPU first.",
        default=60.0,
    )
    sample_period: float = setting(
        "sample-period", types.PERIOD, "Interval between readings of utilisation and memory of every GPU.", default=1.0
    )
    health_recovery: float = setting(
        "health-recovery",
        types.DURATION,
        "How long a GPU stays unhealthy after a critical error; each further error within a day doubles it. 0: until "
        "the agent restarts.",
        default=300.0,
    )
    ignored_xids: str = setting(
        "ignored-xids",
        types.XIDS,
        "XIDs that leave a GPU healthy, in addition to those that an application causes; all: every XID.",
        default="",
    )
    critical_xids: str = setting(
        "critical-xids", types.XIDS, "XIDs that make a GPU unhealthy, even if --ignored-xids names them.", default=""
    )
    extra_config: ExtraConfig = setting(
        "extra-config",
        types.SettingType(
            "the path of a JSON file",
            "PATH",
            read_extra_config,
            _show_file,
        ),
        'JSON file with device nodes that every container gets if they exist: {"default": {"devices": [...]}}.',
        default=ExtraConfig(),
    )
    volume_config: VolumeConfig = setting(
        "volume-config",
        types.SettingType("the path of a JSON file", "PATH", read_volume_config, _show_file),
        "JSON file that lists the driver files for containers, in gpu-manager's format; empty: a built-in list.",
        default=VolumeConfig(),
    )
    mirror_path: Path = setting(
        "driver-mirror-path",
        types.PATH,
        "Directory on the node for the driver mirror, which containers mount.",
        default=Path("/etc/gpu-manager/vdriver"),
    )
    check_period: float = setting(
        "driver-check-period",
        types.PERIOD,
        "Interval between checks of the driver files and of --library-path for the driver mirror.",
        default=10.0,
    )
    library_path: Path = setting(
        "library-path",
        types.PATH,
        "Directory of vcuda's libcuda.so.1, libnvidia-ml.so.1 and libvcuda.so.1; without them no share may start.",
        default=Path("/usr/local/lib/vcuda"),
    )
    version_file: Path = setting(
        "driver-version-file",
        types.PATH,
        "File in which the kernel reports the version of the loaded driver; for tests.",
        default=Path("/proc/driver/nvidia/version"),
        hidden=True,
    )
    device_root: Path = setting(
        "device-root",
        types.PATH,
        "Directory before /dev/nvidiaN, here and on the node; for tests.",
        default=Path("/"),
        hidden=True,
    )


@dataclass(frozen=True, slots=True)
class AllocationSettings:
    """How the agent grants GPUs and records the grants."""

    share_mode: bool = setting(
        "share-mode", types.BOOLEAN, "Grant shares of a GPU; otherwise whole GPUs only.", default=False
    )
    check_period: float = setting(
        "allocation-check-period",
        types.PERIOD,
        "Interval between comparisons of pods and ledger; the agent corrects differences.",
        default=30.0,
    )
    checkpoint_path: Path = setting(
        "checkpoint-path",
        types.PATH,
        "Directory of the agent's journal.",
        default=Path("/etc/gpu-manager/checkpoint"),
    )
    virtual_manager_path: Path = setting(
        "virtual-manager-path",
        types.PATH,
        "Directory with one directory for each grant; the same path on the node and here.",
        default=Path("/etc/gpu-manager/vm"),
    )
    identity: tuple[IdentitySourceName, ...] = setting(
        "identity",
        types.choices(IdentitySourceName),
        "Sources that tell which container an Allocate is for, in the order in which the agent asks them.",
        default=tuple(IdentitySourceName),
    )
    identity_budget: float = setting(
        "identity-budget",
        types.PERIOD,
        "Longest wait for each source of --identity; the sum over all sources must stay below 2s.",
        default=0.5,
    )
    numa: bool = setting(
        "numa",
        types.BOOLEAN,
        "Report the NUMA node of each GPU to kubelet; keep it off if vcuda's scheduler chooses the GPU.",
        default=False,
    )
    cdi: bool = setting("cdi", types.BOOLEAN, "Describe the devices of each grant through CDI as well.", default=False)
    cdi_dir: Path = setting(
        "cdi-dir",
        types.PATH,
        "Directory from which the container runtime reads CDI files.",
        default=Path("/var/run/cdi"),
    )


@dataclass(frozen=True, slots=True)
class KubeletSettings:
    """How the agent reaches kubelet."""

    device_plugin_path: Path = setting(
        "device-plugin-path",
        types.PATH,
        "Kubelet's directory for device plugins.",
        default=Path("/var/lib/kubelet/device-plugins"),
    )
    root: Path = setting(
        "kubelet-root",
        types.PATH,
        "Kubelet's --root-dir, which contains plugins_registry and pod-resources.",
        default=Path(),
        derive=_kubelet_root,
        derived="the parent of --device-plugin-path",
    )
    registration: Registration = setting(
        "registration",
        types.choice(Registration),
        "Register through plugins_registry or kubelet.sock; auto: plugins_registry if kubelet has it.",
        default=Registration.AUTO,
    )
    pods_endpoint: str = setting(
        "kubelet-pods-endpoint",
        types.URL,
        "URL at which kubelet lists its pods.",
        default="",
        derive=_pods_endpoint,
        derived="https://$NODE_IP:10250/pods; without NODE_IP 127.0.0.1",
    )
    ca_file: Path | None = setting(
        "kubelet-ca-file",
        types.OPTIONAL_PATH,
        "CA of kubelet's certificate, in addition to the cluster's CA; empty: KUBELET-ROOT/pki/kubelet.crt.",
        default=None,
    )
    insecure_tls: bool = setting(
        "kubelet-insecure-tls",
        types.BOOLEAN,
        "Do not verify kubelet's certificate; then any process on that port receives this agent's token.",
        default=False,
    )


@dataclass(frozen=True, slots=True)
class RuntimeSettings:
    """The container runtime."""

    endpoint: Path | None = setting(
        "container-runtime-endpoint",
        types.OPTIONAL_SOCKET,
        "CRI socket of the container runtime (gpu-manager's default was dockershim's socket); empty: not asked.",
        default=Path("/run/containerd/containerd.sock"),
    )
    cgroup_driver: CgroupDriver = setting(
        "cgroup-driver",
        types.choice(CgroupDriver),
        "How kubelet names the cgroups of containers; auto: recognise both ways (gpu-manager's default was cgroupfs).",
        default=CgroupDriver.AUTO,
    )
    request_timeout: float = setting(
        "runtime-request-timeout", types.PERIOD, "Longest wait for an answer of the container runtime.", default=5.0
    )


@dataclass(frozen=True, slots=True)
class QuerySettings:
    """Where metrics, views and probes are served."""

    address: str = setting(
        "query-addr", types.HOST, "Listen address of metrics, views and probes.", default="localhost"
    )
    port: int = setting("query-port", types.PORT, "Port of metrics, views and probes; 0: any free port.", default=5678)
    display_socket: Path | None = setting(
        "display-socket",
        types.OPTIONAL_SOCKET,
        "Unix socket of gpu-manager's gRPC service display.GPUDisplay; empty: not served.",
        default=Path("/var/run/gpu-manager.sock"),
    )


@dataclass(frozen=True, slots=True)
class AgentSettings:
    """All settings of `vcuda agent`."""

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
    if together >= _ANSWER_WITHIN_S:
        raise ConfigError(
            f"--identity-budget: {allocation.identity_budget:g}s for each of {len(allocation.identity)} sources is "
            f"{together:g}s, and Allocate must answer within {_ANSWER_WITHIN_S:g}s; shorten it or name fewer sources "
            f"in --identity"
        )


AGENT = Program(
    command="agent",
    kind="AgentConfig",
    tree=AgentSettings,
    retired={
        "standalone": "the agent always talks to a kubelet",
        "incluster-mode": "without --kubeconfig the agent uses the service account of its pod",
        "docker-endpoint": "the agent talks to the container runtime through CRI, see --container-runtime-endpoint",
    },
    check=_check_together,
)
