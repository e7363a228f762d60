"""The settings of `vcuda scheduler`: flags, variables, keys of the file and docs/reference are made from this tree.

In: nothing. Out: `SCHEDULER` and its tree `SchedulerSettings`, frozen, whose leaves are parsed values. Durations are
seconds. Defaults that depend on the machine (`derive`) are filled on the command line. The extender and Volcano's verbs
receive `PlacementSettings` whole, the webhook `WebhookSettings`; what the latter does to pods: docs/webhook.md.
"""

# ruff: noqa: RUF009 - `setting` and `section` are dataclasses.field with a description

import enum
import socket
from dataclasses import dataclass, field, fields
from pathlib import Path

from deviceplugin.config import param_types as types
from deviceplugin.config.command import LogSettings, Program, section, setting
from deviceplugin.errors import ConfigError, ParseError
from deviceplugin.model.allocation import NODE_STATE
from deviceplugin.model.preferences import GpuPolicy, NodePolicy
from deviceplugin.model.units import (
    CORES_PER_GPU,
    DEFAULT_CORES,
    DEFAULT_DOMAIN,
    ResourceNames,
    ShareMemory,
    parse_share_memory,
)

_NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


class NodeChooser(enum.Enum):
    """Which program chooses one of the nodes that fit."""

    EXTENDER = "extender"
    SCHEDULER = "scheduler"


class Election(enum.Enum):
    """How the replicas find the leader, which answers kube-scheduler."""

    OWN = "own"
    KUBE_SCHEDULER = "kube-scheduler"
    NONE = "none"


def _namespace() -> str:
    try:
        return _NAMESPACE_FILE.read_text().strip() or "kube-system"
    except OSError:
        return "kube-system"


@dataclass(frozen=True, slots=True)
class ClusterSettings:
    """The API server, and this replica in the cluster."""

    kubeconfig: Path | None = setting(
        "kubeconfig", None, "Kubeconfig file for the API server; empty: the service account of this pod."
    )
    namespace: str = setting(
        "namespace",
        "",
        "Namespace of the service, the Secret and the Lease.",
        types.NAME,
        derive=_namespace,
        derived="the namespace of this pod, or kube-system",
        more_env=("POD_NAMESPACE",),
    )
    identity: str = setting(
        "identity",
        "",
        "Unique name of this replica, the same after a restart; in a cluster the pod's name.",
        types.TEXT,
        derive=lambda: socket.gethostname().strip(),
        derived="this machine's host name",
        more_env=("POD_NAME",),
    )
    resource_domain: str = setting(
        "resource-domain", DEFAULT_DOMAIN, "Domain of the resources and annotations.", types.DOMAIN
    )
    claims: bool = setting(
        "dra",
        False,
        "Show the GPUs that agents with --dra offer to ResourceClaims, and their pods; the scheduler watches "
        "ResourceSlices and ResourceClaims.",
    )
    agent_token_file: Path | None = setting(
        "agent-token-file",
        None,
        "File with the token for which agents tell who uses their GPUs (their --query-token-file); empty: none.",
    )
    requests_per_second: int = setting(
        "kube-api-qps",
        500,
        "Most requests to the API server per second, without watches, and at once after an idle time.",
        types.COUNT,
    )


@dataclass(frozen=True, slots=True)
class ServingSettings:
    """One port with TLS for API server, kube-scheduler and operators, and one without TLS for this pod."""

    address: str = setting("listen-addr", "0.0.0.0", "Listen address.", types.HOST)  # noqa: S104 - a pod's
    port: int = setting("listen-port", 8443, "Listen port; 0: any free port.", types.PORT)
    loopback_port: int = setting(
        "loopback-port", 0, "Port on 127.0.0.1 without TLS, for a kube-scheduler in the same pod; 0: none.", types.PORT
    )
    grafana_url: str = setting(
        "grafana-url",
        "",
        "Address of Grafana with the chart's dashboards, to which the page links; empty: no links.",
        types.OPTIONAL_URL,
    )
    node_label: str = setting(
        "node-label",
        "",
        "Label of the agent's nodes, KEY=VALUE or KEY, which the page of an empty cluster names; empty: none.",
        types.TEXT,
    )
    drain: float = setting(
        "drain",
        5.0,
        "How long to serve after a stop signal while /readyz fails, so that clients go elsewhere first.",
        types.DURATION,
    )


@dataclass(frozen=True, slots=True)
class PlacementSettings:
    """How nodes and GPUs are chosen; annotations of a pod take precedence.

    `gang_reservation_time`: for a gang that waits at Permit: its longest wait and a margin. `names` follows from
    --resource-domain and `scheduler` from --scheduler-name; both are set by the scheduler.
    """

    node_policy: NodePolicy = setting("node-policy", NodePolicy.FRAGMENTATION, "Which of the nodes that fit to choose.")
    gpu_policy: GpuPolicy = setting("gpu-policy", GpuPolicy.BINPACK, "Which of the node's GPUs that fit to choose.")
    node_choice: NodeChooser = setting(
        "node-choice",
        NodeChooser.EXTENDER,
        "Who chooses one of the nodes that fit. extender: filter returns one node; scheduler: filter returns all, and "
        "kube-scheduler adds the extender's scores to its own.",
    )
    reservation_time: float = setting(
        "reservation-time",
        60.0,
        "How long GPUs stay reserved for a pod that filter placed and that is not bound.",
        types.PERIOD,
    )
    gang_reservation_time: float = setting(
        "gang-reservation-time", 600.0, "The same for a pod of a gang that waits for other members.", types.PERIOD
    )
    names: ResourceNames = field(default_factory=ResourceNames)
    scheduler: str = ""

    @property
    def one_node(self) -> bool:
        """Filter answers the node it chose; else all that fit, and kube-scheduler chooses by score."""
        return self.node_choice is NodeChooser.EXTENDER


class HamiScope(enum.Enum):
    """Which pods with HAMi's resources the webhook translates; the values are those of flag and chart.

    MARKED: pods with anything that only HAMi has (memory, cores, priority, an annotation, its scheduler). ALL: also
    pods that name a number of GPUs and nothing else; `nvidia.com/gpu` is also the resource of NVIDIA's device plugin.
    """

    OFF = "off"
    MARKED = "marked"
    ALL = "all"


@dataclass(frozen=True, slots=True)
class HamiResources:
    """The names of HAMi's resources; all but `count`, the number of GPUs, and `priority` are of each GPU."""

    count: str = "nvidia.com/gpu"
    memory: str = "nvidia.com/gpumem"
    memory_percentage: str = "nvidia.com/gpumem-percentage"
    cores: str = "nvidia.com/gpucores"
    priority: str = "nvidia.com/priority"

    @property
    def marks(self) -> tuple[str, ...]:
        """Resources that only HAMi has."""
        return (self.memory, self.memory_percentage, self.cores, self.priority)

    @property
    def all(self) -> tuple[str, ...]:
        return (self.count, *self.marks)


_RESOURCES = {each.name.replace("_", "-"): each.name for each in fields(HamiResources)}


def _read_resources(text: str) -> HamiResources:
    return HamiResources(**{_RESOURCES[word]: name for word, name in types.pairs(text, _read_pair, "word").items()})


def _read_pair(text: str) -> str:
    word, _, name = text.partition("=")
    if word not in _RESOURCES:
        raise ValueError(f"{word[:40]!r} is unknown; give {', '.join(_RESOURCES)}")
    types.read_resource(name)
    return text


def _show_resources(resources: HamiResources) -> str:
    return types.as_text({word: getattr(resources, name) for word, name in _RESOURCES.items()})


def _read_share_memory(text: str) -> ShareMemory:
    try:
        return parse_share_memory("off" if text == "false" else text)  # YAML turns off into false
    except ParseError as error:
        raise ValueError(error.message) from None


def _read_scope(text: str) -> HamiScope:
    return _SCOPES.read({"false": "off", "true": "all"}.get(text, text))  # YAML turns off and on into booleans


_SCOPES = types.choice(HamiScope)
_SCOPE = types.SettingType(_SCOPES.what, _SCOPES.metavar, _read_scope, yaml=(str, bool))
_CORES = types.number(
    "a number of cores", "CORES", 0, CORES_PER_GPU, f"is not a number of cores; give 0 to {CORES_PER_GPU}"
)
_MEMORY = types.SettingType(
    "proportional, off or a number of blocks", "MEMORY", _read_share_memory, yaml=(str, int, bool)
)


@dataclass(frozen=True, slots=True)
class HamiSettings:
    """What happens to pods with HAMi's resources.

    `unlimited_cores`: a share that names no cores may use all idle time of its GPU, as with HAMi (a soft limit of
    100 %); otherwise `default_cores` of the webhook are its limit.
    """

    scope: HamiScope = setting(
        "translate-hami",
        HamiScope.MARKED,
        "Pods with HAMi's resources that the webhook translates: marked (pods with memory, cores, an annotation or the "
        "scheduler of HAMi), all (also pods with only nvidia.com/gpu, which NVIDIA's plugin offers too), or off.",
        _SCOPE,
    )
    resources: HamiResources = setting(
        "hami-resources",
        HamiResources(),
        "Names of HAMi's resources in this cluster, by the words count, memory, memory-percentage, cores and priority; "
        "one that is left out keeps the name that HAMi gives it.",
        types.SettingType("names of resources", "WORD=NAME,...", _read_resources, _show_resources, yaml=(dict, str)),
    )
    unlimited_cores: bool = setting(
        "hami-unlimited-cores", True, "A HAMi pod whose shares name no cores may use all idle time of their GPUs."
    )


@dataclass(frozen=True, slots=True)
class WebhookSettings:
    """What the webhook does to pods.

    `default_cores`: of each GPU, for a container that asks for memory alone; 0 denies the pod. `names` follows from
    --resource-domain and `one_node` from --node-choice; both are set by the scheduler.
    """

    scheduler_name: str = setting(
        "scheduler-name",
        "vcuda-scheduler",
        "schedulerName that a GPU pod gets in place of the default one; empty: the default stays.",
        types.OPTIONAL_NAME,
    )
    configuration: str = setting(
        "webhook-configuration",
        "vcuda-scheduler",
        "MutatingWebhookConfiguration in which the scheduler writes the caBundle; empty: the chart or another "
        "tool writes it.",
        types.OPTIONAL_NAME,
    )
    default_cores: int = setting(
        "default-cores",
        DEFAULT_CORES,
        "Cores of each GPU for a container that requests only memory; 0: such a pod is denied.",
        _CORES,
    )
    share_memory: ShareMemory = setting(
        "share-memory",
        ShareMemory(),
        "Memory of a share that requests none: proportional (to its cores, of the smallest known GPU), a number of "
        "256 MiB blocks of each GPU, or off: such a pod is denied.",
        _MEMORY,
    )
    hide_gpus: bool = setting(
        "hide-gpus", True, "Set NVIDIA_VISIBLE_DEVICES=none in the containers of a GPU pod that request no GPU."
    )
    claims: bool = setting(
        "translate-to-claims",
        False,
        "Turn requests for vcuda's resources into ResourceClaims, for nodes whose agents have --dra; the scheduler "
        "keeps the templates.",
    )
    runtime_class: str = setting(
        "runtime-class", "", "Runtime class for GPU pods that name none; empty: none.", types.OPTIONAL_NAME
    )
    state_directory: str = setting(
        "state-directory",
        NODE_STATE,
        "Directory of vcuda on the nodes; the webhook warns about a GPU container that mounts it. Empty: never.",
        types.ABSOLUTE,
    )
    hami: HamiSettings = section(HamiSettings, "HAMi")
    names: ResourceNames = field(default_factory=ResourceNames)
    one_node: bool = False

    @property
    def opt_out_labels(self) -> tuple[str, ...]:
        """Their value is `ignore`; HAMi's is obeyed too."""
        return (f"{self.names.domain}/vcuda-webhook", "hami.io/webhook")


@dataclass(frozen=True, slots=True)
class CertificateSettings:
    """The serving certificate: signed by a CA that the scheduler or Helm makes, or read from files."""

    service: str = setting("service-name", "vcuda-scheduler", "Service that the certificate is made for.", types.NAME)
    secret: str = setting(
        "certificate-secret",
        "vcuda-scheduler-tls",
        "Secret with the CA that signs each replica's certificate. A replica that finds none makes one, for ten years.",
        types.NAME,
    )
    cert_file: Path | None = setting(
        "tls-cert-file",
        None,
        "Certificate chain in PEM that another tool renews, such as cert-manager; then the scheduler makes none.",
    )
    key_file: Path | None = setting(
        "tls-key-file", None, "Private key of --tls-cert-file, in PEM without a passphrase."
    )


@dataclass(frozen=True, slots=True)
class CallerSettings:
    """Who may call the verbs of kube-scheduler and Volcano, which place pods with the scheduler's rights."""

    ca_file: Path | None = setting(
        "client-ca-file",
        None,
        "CA of the client certificate that kube-scheduler must present (tlsConfig.certFile of its extender entry); new "
        "connections use a changed file. Empty: only callers on loopback may call these verbs.",
    )
    names: tuple[str, ...] = setting(
        "client-names",
        ("system:kube-scheduler",),
        "With --client-ca-file: allowed names (common name or DNS name) of such a client certificate.",
        types.SUBJECTS,
    )
    volcano: bool = setting(
        "volcano", False, "Answer Volcano's scheduler too, under /volcano/, as its plugin extender asks."
    )


@dataclass(frozen=True, slots=True)
class LeaderSettings:
    """Which replica answers kube-scheduler; all replicas serve the webhook."""

    election: Election = setting(
        "leader-election",
        Election.OWN,
        "How the leader is found. own: by a Lease of vcuda; kube-scheduler: the replica in the pod of the leading "
        "kube-scheduler, by kube-scheduler's Lease; none: this is the only replica.",
    )
    lease: str = setting(
        "lease-name",
        "vcuda-scheduler",
        "Name of the Lease, vcuda's or kube-scheduler's (its leaderElection.resourceName).",
        types.NAME,
    )
    duration: float = setting(
        "lease-duration",
        15.0,
        "How long the leader may fail to renew the Lease before another replica takes over. It renews the Lease, and "
        "the others read it, every two fifteenths of this: 2 s.",
        types.SECONDS,
    )


@dataclass(frozen=True, slots=True)
class SchedulerSettings:
    """All settings of `vcuda scheduler`."""

    cluster: ClusterSettings = section(ClusterSettings, "Cluster")
    serving: ServingSettings = section(ServingSettings, "Serving")
    placement: PlacementSettings = section(PlacementSettings, "Placement")
    webhook: WebhookSettings = section(WebhookSettings, "Webhook")
    certificates: CertificateSettings = section(CertificateSettings, "Certificates")
    callers: CallerSettings = section(CallerSettings, "Callers")
    leader: LeaderSettings = section(LeaderSettings, "Leader")
    log: LogSettings = section(LogSettings, "Logs")

    @property
    def names(self) -> ResourceNames:
        return ResourceNames(self.cluster.resource_domain)


def _check_together(settings: SchedulerSettings) -> None:
    certificates, serving = settings.certificates, settings.serving
    if serving.loopback_port and settings.callers.ca_file is not None:
        raise ConfigError(
            "--loopback-port has no TLS, so no caller can present there the certificate that --client-ca-file "
            "requires; give one of the two"
        )
    if serving.loopback_port and serving.loopback_port == serving.port:
        raise ConfigError(f"--loopback-port and --listen-port are both {serving.port}; give two ports")
    if (certificates.cert_file is None) != (certificates.key_file is None):
        raise ConfigError("--tls-cert-file and --tls-key-file go together; give both or none")
    if not settings.cluster.identity:
        raise ConfigError("--identity is empty; give each replica a name of its own, such as its pod's")


SCHEDULER = Program(
    command="scheduler",
    kind="SchedulerConfig",
    tree=SchedulerSettings,
    check=_check_together,
)
