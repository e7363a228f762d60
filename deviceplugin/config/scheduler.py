"""The settings of `vcuda scheduler`: flags, variables, keys of the file and docs/reference are made from this tree.

In: nothing. Out: `SCHEDULER` and its tree `SchedulerSettings`, frozen, whose leaves are parsed values. Durations are
seconds. Defaults that depend on the machine (`derive`) are filled on the command line.
"""

# ruff: noqa: RUF009 - `setting` and `section` are dataclasses.field with a description

import enum
import socket
from dataclasses import dataclass, field
from pathlib import Path

from deviceplugin.config import param_types as types
from deviceplugin.config.command import LogSettings, Program, section, setting
from deviceplugin.config.webhook import WebhookSettings
from deviceplugin.errors import ConfigError
from deviceplugin.model.preferences import GpuPolicy, NodePolicy
from deviceplugin.model.units import DEFAULT_DOMAIN, ResourceNames

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


def _host_name() -> str:
    return socket.gethostname().strip()


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
        derive=_host_name,
        derived="this machine's host name",
        more_env=("POD_NAME",),
    )
    resource_domain: str = setting(
        "resource-domain", DEFAULT_DOMAIN, "Domain of the resources and annotations.", types.DOMAIN
    )
    claims: bool = setting(
        "dra",
        False,
        "Show the GPUs that agents with --dra offer to ResourceClaims, and who holds them; the scheduler watches "
        "ResourceSlices and ResourceClaims.",
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
