"""The settings of `vcuda agent`: flags, variables, keys of the file and docs/reference are made from this tree.

In: nothing. Out: `AGENT` and its tree `AgentSettings`, frozen, whose leaves are parsed values. Durations are seconds.
Flags that gpu-manager has keep its names, defaults and meaning; where one differs, its help says so. Defaults that
depend on the machine (`derive`) are filled on the command line, so a tree made by hand has them empty. The two JSON
files that --extra-config and --volume-config name hold names of files, never paths; the driver mirror decides what it
does with them.
"""

# ruff: noqa: RUF009 - `setting` and `section` are dataclasses.field with a description

import enum
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec

from deviceplugin.config import param_types as types
from deviceplugin.config.command import LogSettings, Program, section, setting
from deviceplugin.model.units import DEFAULT_DOMAIN, ResourceNames

_Shape = TypeVar("_Shape")


class _Devices(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    devices: tuple[str, ...] = ()


class _ExtraFile(msgspec.Struct, frozen=True):
    """gpu-manager reads `default` only, and takes a file with other keys."""

    default: _Devices = _Devices()


class VolumeComponents(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Programs by name; libraries by the beginning of their names."""

    binaries: tuple[str, ...] = ()
    libraries: tuple[str, ...] = ()


class Volume(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A directory with driver files that containers mount; `mode` is always read-only, whatever it says."""

    name: str
    base: str
    mode: str = "ro"
    components: VolumeComponents = VolumeComponents()


class _VolumeFile(msgspec.Struct, frozen=True):
    volume: tuple[Volume, ...] = ()


class VolumeConfig(msgspec.Struct, frozen=True):
    """What the driver mirror holds; `path` is the file that lists it, None for the built-in list."""

    path: Path | None = None
    volumes: tuple[Volume, ...] = ()


class ExtraConfig(msgspec.Struct, frozen=True):
    """Device nodes that every container gets if they exist; `path` is the file that lists them."""

    path: Path | None = None
    devices: tuple[str, ...] = ()


def read_extra_config(text: str) -> ExtraConfig:
    """Reads `{"default": {"devices": ["/dev/..."]}}`; no path is no extra devices."""
    if not text:
        return ExtraConfig()
    devices = _decode(text, _ExtraFile).default.devices
    for index, device in enumerate(devices):
        if not device.startswith("/dev/") or ".." in device or not device.isprintable():
            raise ValueError(f"{text}: $.default.devices[{index}] is {device[:60]!r}, which is not a path under /dev")
    return ExtraConfig(path=Path(text), devices=devices)


def read_volume_config(text: str) -> VolumeConfig:
    """Reads `{"volume": [{"name", "base", "components": {"binaries", "libraries"}}]}`; no path is no volumes."""
    if not text:
        return VolumeConfig()
    volumes = _decode(text, _VolumeFile).volume
    for number, volume in enumerate(volumes):
        for kind in ("binaries", "libraries"):
            for index, name in enumerate(getattr(volume.components, kind)):
                if not name or "/" in name or name in (".", "..") or not name.isprintable():
                    place = f"$.volume[{number}].components.{kind}[{index}]"
                    raise ValueError(f"{text}: {place} is {name[:60]!r}, which is not the name of a file")
    return VolumeConfig(path=Path(text), volumes=volumes)


def _decode(text: str, shape: type[_Shape]) -> _Shape:
    path = types.read_path(text)
    try:
        raw = types.read_content(path)
    except ValueError as error:
        raise ValueError(f"{text[:200]} {error}") from None
    try:
        return msgspec.json.decode(raw, type=shape)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"{path}: {' '.join(str(error).split())[:300]}") from None


class IdentitySourceName(enum.Enum):
    """The sources that can tell which container an Allocate is for."""

    PODS = "pods"
    PODRESOURCES = "podresources"
    APISERVER = "apiserver"


def _show_file(config: ExtraConfig | VolumeConfig) -> str:
    return types.as_text(config.path)


def _pods_endpoint() -> str:
    host = os.environ.get("NODE_IP") or "127.0.0.1"
    return f"https://[{host}]:10250/pods" if ":" in host else f"https://{host}:10250/pods"


@dataclass(frozen=True, slots=True)
class NodeSettings:
    """The node in the cluster."""

    name: str = setting(
        "hostname-override",
        "",
        "Name of this node in the cluster.",
        types.NODE_NAME,
        derive=lambda: socket.gethostname().strip().lower(),
        derived="this machine's host name",
        more_env=("NODE_NAME",),
    )
    labels: Mapping[str, str] = setting(
        "node-labels", {}, "Labels to put on the node, in addition to those that describe its GPUs.", types.LABELS
    )
    kubeconfig: Path | None = setting(
        "kubeconfig", None, "Kubeconfig file for the API server; empty: the service account of this pod."
    )
    resource_domain: str = setting(
        "resource-domain", DEFAULT_DOMAIN, "Domain of the resources, annotations and labels.", types.DOMAIN
    )


@dataclass(frozen=True, slots=True)
class DriverSettings:
    """The GPUs, and how the agent watches them."""

    root: Path = setting(
        "driver-root",
        Path("/"),
        "Directory at which this process sees the node's root; the driver is in DIRECTORY/usr/lib64 and the like.",
    )
    wait_for_driver: bool = setting(
        "wait-for-driver", False, "If the node has no driver, wait for one; otherwise report that and exit."
    )
    sample_period: float = setting(
        "sample-period", 1.0, "Interval between readings of utilisation and memory of every GPU.", types.PERIOD
    )
    health_recovery: float = setting(
        "health-recovery",
        300.0,
        "How long a GPU stays unhealthy after the last critical error; doubled each time if it fails again within a "
        "day of having returned. 0: until the agent restarts.",
        types.DURATION,
    )
    ignored_xids: str = setting(
        "ignored-xids",
        "",
        "XIDs that leave a GPU healthy, in addition to those that an application causes; all: every XID.",
        types.XIDS_OR_ALL,
    )
    critical_xids: str = setting(
        "critical-xids", "", "XIDs that make a GPU unhealthy, even if --ignored-xids names them.", types.XIDS
    )
    extra_config: ExtraConfig = setting(
        "extra-config",
        ExtraConfig(),
        'JSON file with device nodes that every container gets if they exist: {"default": {"devices": [...]}}.',
        types.SettingType("the path of a JSON file", "PATH", read_extra_config, _show_file),
    )
    volume_config: VolumeConfig = setting(
        "volume-config",
        VolumeConfig(),
        "JSON file that lists the driver files for containers, in gpu-manager's format; empty: a built-in list.",
        types.SettingType("the path of a JSON file", "PATH", read_volume_config, _show_file),
    )
    mirror_path: Path = setting(
        "driver-mirror-path",
        Path("/etc/gpu-manager/vdriver"),
        "Directory on the node for the driver mirror, which containers mount.",
    )
    library_path: Path = setting(
        "library-path",
        Path("/usr/local/lib/vcuda"),
        "Directory of vcuda's libcuda.so.1, libnvidia-ml.so.1 and libvcuda.so.1; without them no share may start.",
    )
    version_file: Path = setting(
        "driver-version-file",
        Path("/proc/driver/nvidia/version"),
        "File in which the kernel reports the version of the loaded driver; for tests.",
        hidden=True,
    )
    device_root: Path = setting(
        "device-root", Path("/"), "Directory before /dev/nvidiaN, here and on the node; for tests.", hidden=True
    )


@dataclass(frozen=True, slots=True)
class AllocationSettings:
    """How the agent grants GPUs and records the grants."""

    share_mode: bool = setting("share-mode", False, "Allocate shares of a GPU; otherwise whole GPUs only.")
    check_period: float = setting(
        "allocation-check-period",
        30.0,
        "Interval between comparisons of pods and ledger; the agent corrects differences. It checks the files of the "
        "driver and of --library-path three times as often.",
        types.PERIOD,
    )
    checkpoint_path: Path = setting(
        "checkpoint-path", Path("/etc/gpu-manager/checkpoint"), "Directory of the agent's journal."
    )
    virtual_manager_path: Path = setting(
        "virtual-manager-path",
        Path("/etc/gpu-manager/vm"),
        "Directory with one directory for each container with a GPU; the same path on the node and here.",
    )
    vcuda_socket: bool = setting(
        "vcuda-socket",
        False,
        "Serve vcuda.sock to every share, for images with vcuda-controller's client; otherwise only to pods with the "
        "annotation vcuda-socket.",
    )
    virtual_manager_tmpfs: bool = setting(
        "virtual-manager-tmpfs",
        False,
        "Mount a tmpfs at --virtual-manager-path, so that no container can fill the node's disk. Needs CAP_SYS_ADMIN "
        "and, in a pod, mountPropagation Bidirectional.",
    )
    identity: tuple[IdentitySourceName, ...] = setting(
        "identity",
        tuple(IdentitySourceName),
        "Sources that tell which container an Allocate is for, in the order in which the agent asks them; apiserver, "
        "always the last, guesses, and the guess is checked and repaired before the container starts.",
        types.choices(IdentitySourceName),
    )
    identity_budget: float = setting(
        "identity-budget",
        0.5,
        "How long a source of --identity is asked alone; then the next one is asked too, and both are waited for.",
        types.PERIOD,
    )
    numa: bool = setting(
        "numa", False, "Report the NUMA node of each GPU to kubelet; keep it off if vcuda's scheduler chooses the GPU."
    )
    volcano_scheduler: str = setting(
        "volcano-scheduler",
        "",
        "schedulerName of Volcano's pods where Volcano asks vcuda about GPUs: Allocate waits up to 1 s for those that "
        "vcuda writes to a pod after its Binding. Empty: no pod waits.",
        types.OPTIONAL_NAME,
    )
    cdi: bool = setting("cdi", False, "Describe the devices of each container through CDI as well.")
    cdi_dir: Path = setting(
        "cdi-dir", Path("/var/run/cdi"), "Directory from which the container runtime reads CDI files."
    )


@dataclass(frozen=True, slots=True)
class KubeletSettings:
    """How the agent reaches kubelet."""

    device_plugin_path: Path = setting(
        "device-plugin-path",
        Path("/var/lib/kubelet/device-plugins"),
        "Kubelet's directory for device plugins, with kubelet.sock and its checkpoint; it does not follow --root-dir.",
    )
    root: Path = setting(
        "kubelet-root",
        Path("/var/lib/kubelet"),
        "Kubelet's --root-dir, which contains plugins_registry and pod-resources.",
    )
    dra: bool = setting(
        "dra",
        False,
        "Offer GPUs to ResourceClaims (Dynamic Resource Allocation), not through the device plugin. Needs Kubernetes "
        "1.36, and containerd 2, containerd 1.7.2 with enable_cdi, or CRI-O 1.28.",
    )
    dra_gpus: tuple[str, ...] = setting(
        "dra-gpus",
        (),
        "With --dra: UUIDs or minor numbers of the GPUs that claims get; the others stay with the device plugin. A "
        "minor number may be another GPU's after a boot. "
        "Empty: all.",
        types.GPUS,
    )
    pods_endpoint: str = setting(
        "kubelet-pods-endpoint",
        "",
        "URL at which kubelet lists its pods.",
        types.URL,
        derive=_pods_endpoint,
        derived="https://$NODE_IP:10250/pods; without NODE_IP 127.0.0.1",
    )
    ca_file: Path | None = setting(
        "kubelet-ca-file",
        None,
        "CA of kubelet's certificate, in addition to the cluster's CA; empty: KUBELET-ROOT/pki/kubelet.crt.",
    )


@dataclass(frozen=True, slots=True)
class RuntimeSettings:
    """The container runtime."""

    endpoint: Path | None = setting(
        "container-runtime-endpoint",
        Path("/run/containerd/containerd.sock"),
        "CRI socket of the container runtime (gpu-manager's default was dockershim's socket); empty: not asked.",
        types.OPTIONAL_SOCKET,
    )


@dataclass(frozen=True, slots=True)
class QuerySettings:
    """Where metrics, views and probes are served."""

    address: str = setting("query-addr", "localhost", "Listen address of metrics, views and probes.", types.HOST)
    names_for_all: bool = setting(
        "query-names",
        True,
        "Show the namespaces, names and UIDs of pods to all readers of metrics and views; otherwise only to those on "
        "loopback, as through kubectl port-forward, and who shows the token of query-token-file.",
    )
    token_file: Path | None = setting(
        "query-token-file",
        None,
        "File with a token; readers that show it (Authorization: Bearer, or X-Vcuda-Token) see the names of pods.",
    )
    port: int = setting("query-port", 5678, "Port of metrics, views and probes; 0: any free port.", types.PORT)
    display_socket: Path | None = setting(
        "display-socket",
        Path("/var/run/gpu-manager.sock"),
        "Unix socket of gpu-manager's gRPC service display.GPUDisplay; empty: not served.",
        types.OPTIONAL_SOCKET,
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


_OWN_LOG = "the agent writes its log to standard error, see --log-level"
_KLOG = (
    *("v", "vmodule", "log-dir", "log-file", "log-file-max-size", "logtostderr", "alsologtostderr", "stderrthreshold"),
    *("log-backtrace-at", "skip-headers", "skip-log-headers", "add-dir-header", "one-output"),
)
"""The flags of the log library of gpu-manager."""

AGENT = Program(
    command="agent",
    kind="AgentConfig",
    tree=AgentSettings,
    retired={
        "standalone": "the agent always talks to a kubelet",
        "incluster-mode": "without --kubeconfig the agent uses the service account of its pod",
        "driver": "the GPUs are NVIDIA's",
        "wait-timeout": "the agent waits up to a minute for the driver to open its GPUs",
        "cgroup-driver": "the agent recognises both ways in which kubelet names control groups",
        "runtime-request-timeout": "the agent waits up to 5 s for an answer of the container runtime",
        "docker-endpoint": "the agent talks to the container runtime through CRI, see --container-runtime-endpoint",
        **dict.fromkeys(_KLOG, _OWN_LOG),
    },
)
