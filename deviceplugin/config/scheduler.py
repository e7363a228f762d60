"""The settings of `vcuda scheduler`: flags, variables, keys of the file and docs/reference are made from this tree.

In: nothing. Out: `SCHEDULER` and its tree `SchedulerSettings`, frozen, whose leaves are parsed values. Durations are
seconds. Defaults that depend on the machine (`derive`) are filled on the command line.
"""

# ruff: noqa: RUF009 - `setting` and `section` are dataclasses.field with a description

import enum
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deviceplugin.config import param_types as types
from deviceplugin.config.command import LogSettings, Program
from deviceplugin.config.setting import section, setting
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
    """How the replicas find the leader, which answers kube-scheduler and renews the certificates."""

    OWN = "own"
    KUBE_SCHEDULER = "kube-scheduler"
    NONE = "none"


def _namespace(params: Mapping[str, Any]) -> str:
    try:
        return _NAMESPACE_FILE.read_text().strip() or "kube-system"
    except OSError:
        return "kube-system"


def _host_name(params: Mapping[str, Any]) -> str:
    return socket.gethostname().strip()


@dataclass(frozen=True, slots=True)
class ClusterSettings:
    """The API server, and this replica in the cluster."""

    kubeconfig: Path | None = setting(
        "kubeconfig",
        types.OPTIONAL_PATH,
        "Kubeconfig file for the API server; empty: the service account of this pod.",
        default=None,
    )
    namespace: str = setting(
        "namespace",
        types.NAME,
        "Namespace of the service, the Secret and the Lease.",
        default="",
        derive=_namespace,
        derived="the namespace of this pod, or kube-system",
        more_env=("POD_NAMESPACE",),
    )
    identity: str = setting(
        "identity",
        types.TEXT,
        "Unique name of this replica, the same after a restart; in a cluster the pod's name.",
        default="",
        derive=_host_name,
        derived="this machine's host name",
        more_env=("POD_NAME",),
    )
    resource_domain: str = setting(
        "resource-domain",
        types.DOMAIN,
        "Domain of the resources and annotations.",
        default=DEFAULT_DOMAIN,
    )
    requests_per_second: int = setting(
        "kube-api-qps", types.COUNT, "Most requests to the API server per second, without watches.", default=500
    )
    burst: int = setting(
        "kube-api-burst", types.COUNT, "Most requests to the API server at once after an idle time.", default=500
    )


@dataclass(frozen=True, slots=True)
class ServingSettings:
    """One port with TLS for API server, kube-scheduler and operators, and one without TLS for this pod."""

    address: str = setting("listen-addr", types.HOST, "Listen address.", default="0.0.0.0")  # noqa: S104 - a pod's
    port: int = setting("listen-port", types.PORT, "Listen port; 0: any free port.", default=8443)
    loopback_port: int = setting(
        "loopback-port",
        types.PORT,
        "Port on 127.0.0.1 without TLS, for a kube-scheduler in the same pod; 0: none.",
        default=0,
    )
    drain: float = setting(
        "drain",
        types.DURATION,
        "How long to serve after a stop signal while /readyz fails, so that clients go elsewhere first.",
        default=5.0,
    )
    end_within: float = setting(
        "end-within", types.DURATION, "Longest time for running requests to end after --drain.", default=10.0
    )


@dataclass(frozen=True, slots=True)
class PlacementSettings:
    """How nodes and GPUs are chosen; annotations of a pod take precedence."""

    node_policy: NodePolicy = setting(
        "node-policy", types.choice(NodePolicy), "Which of the nodes that fit to choose.", default=NodePolicy.BINPACK
    )
    gpu_policy: GpuPolicy = setting(
        "gpu-policy", types.choice(GpuPolicy), "Which of the node's GPUs that fit to choose.", default=GpuPolicy.BINPACK
    )
    node_choice: NodeChooser = setting(
        "node-choice",
        types.choice(NodeChooser),
        "Who chooses one of the nodes that fit. extender: filter returns one node; scheduler: filter returns all, and "
        "kube-scheduler adds the extender's scores to its own.",
        default=NodeChooser.EXTENDER,
    )
    reservation_time: float = setting(
        "reservation-time",
        types.PERIOD,
        "How long GPUs stay reserved for a pod that filter placed and that is not bound.",
        default=60.0,
    )
    gang_reservation_time: float = setting(
        "gang-reservation-time",
        types.PERIOD,
        "The same for a pod of a gang that waits for other members.",
        default=600.0,
    )


@dataclass(frozen=True, slots=True)
class CertificateSettings:
    """The serving certificate: signed by a CA that the scheduler makes, or read from files."""

    service: str = setting(
        "service-name", types.NAME, "Service that the certificate is made for.", default="vcuda-scheduler"
    )
    names: tuple[str, ...] = setting(
        "certificate-names",
        types.HOSTS,
        "Further names and addresses in the certificate, besides the service's and this machine's loopback.",
        default=(),
    )
    secret: str = setting(
        "certificate-secret",
        types.NAME,
        "Secret with CA and serving certificate. The leader writes it; with --leader-election=kube-scheduler any "
        "replica does, because kube-scheduler waits for it.",
        default="vcuda-scheduler-tls",
    )
    life: float = setting(
        "certificate-life",
        types.LIFE,
        "Lifetime of the serving certificate; it is renewed after two thirds of that.",
        default=90 * 86400.0,
    )
    ca_life: float = setting(
        "authority-life",
        types.LIFE,
        "Lifetime of the CA; it is renewed after two thirds of that. At least three times --certificate-life.",
        default=3650 * 86400.0,
    )
    check_period: float = setting(
        "certificate-check-period", types.PERIOD, "Interval between checks of Secret, files and caBundle.", default=30.0
    )
    cert_file: Path | None = setting(
        "tls-cert-file",
        types.OPTIONAL_PATH,
        "Certificate chain in PEM that another tool renews, such as cert-manager; then the scheduler makes none.",
        default=None,
    )
    key_file: Path | None = setting(
        "tls-key-file",
        types.OPTIONAL_PATH,
        "Private key of --tls-cert-file, in PEM without a passphrase.",
        default=None,
    )


@dataclass(frozen=True, slots=True)
class CallerSettings:
    """Who may call filter, prioritize, bind and preempt, which place pods with the scheduler's rights."""

    ca_file: Path | None = setting(
        "client-ca-file",
        types.OPTIONAL_PATH,
        "CA of the client certificate that kube-scheduler must present (tlsConfig.certFile of its extender entry); new "
        "connections use a changed file. Empty: only callers on loopback may call these verbs.",
        default=None,
    )
    names: tuple[str, ...] = setting(
        "client-names",
        types.SUBJECTS,
        "With --client-ca-file: allowed names (common name or DNS name) of such a client certificate.",
        default=("system:kube-scheduler",),
    )


@dataclass(frozen=True, slots=True)
class LeaderSettings:
    """Which replica answers kube-scheduler and renews the certificates; all replicas serve the webhook."""

    election: Election = setting(
        "leader-election",
        types.choice(Election),
        "How the leader is found. own: by a Lease of vcuda; kube-scheduler: the replica in the pod of the leading "
        "kube-scheduler, by kube-scheduler's Lease; none: this is the only replica.",
        default=Election.OWN,
    )
    lease: str = setting(
        "lease-name",
        types.NAME,
        "Name of the Lease, vcuda's or kube-scheduler's (its leaderElection.resourceName).",
        default="vcuda-scheduler",
    )
    duration: int = setting(
        "lease-duration",
        types.SECONDS,
        "How long the leader may fail to renew the Lease before another replica takes over.",
        default=15,
    )
    retry: float = setting(
        "lease-retry", types.PERIOD, "Interval between renewals or readings of the Lease.", default=2.0
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
    certificates, leader, serving = settings.certificates, settings.leader, settings.serving
    if serving.loopback_port and settings.callers.ca_file is not None:
        raise ConfigError(
            "--loopback-port has no TLS, so no caller can present there the certificate that --client-ca-file "
            "requires; give one of the two"
        )
    if serving.loopback_port and serving.loopback_port == serving.port:
        raise ConfigError(f"--loopback-port and --listen-port are both {serving.port}; give two ports")
    if (certificates.cert_file is None) != (certificates.key_file is None):
        raise ConfigError("--tls-cert-file and --tls-key-file go together; give both or none")
    if certificates.life > certificates.ca_life / 3:
        raise ConfigError(
            f"--certificate-life: {types.show_duration(certificates.life)} is longer than a third of "
            f"--authority-life ({types.show_duration(certificates.ca_life)}), so it could outlive its CA"
        )
    if leader.retry * 3 > leader.duration:
        raise ConfigError(
            f"--lease-retry: {types.show_duration(leader.retry)} leaves no room for a renewal that fails within "
            f"--lease-duration ({types.show_duration(leader.duration)}); give at most a third of it"
        )
    if not settings.cluster.identity:
        raise ConfigError("--identity is empty; give each replica a name of its own, such as its pod's")


SCHEDULER = Program(
    command="scheduler",
    kind="SchedulerConfig",
    tree=SchedulerSettings,
    check=_check_together,
    retired={"authority-settle": "a new CA is in the caBundle long before it signs a certificate"},
)
