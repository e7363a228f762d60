"""The settings of `vcuda scheduler`: the reference from which its flags, environment, file and docs are made.

In: nothing. Out: `SCHEDULER` and its tree `SchedulerSettings`, frozen, whose leaves are parsed values. Durations are
seconds. Values that depend on the machine (`derive`) are filled by `effective`.
"""

# ruff: noqa: RUF009 - `setting` and `section` are dataclasses.field with a description

import enum
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deviceplugin.config import kinds
from deviceplugin.config.logs import LogSettings
from deviceplugin.config.program import Program
from deviceplugin.config.setting import section, setting
from deviceplugin.config.webhook import WebhookSettings
from deviceplugin.errors import ConfigError
from deviceplugin.model.preferences import GpuPolicy, NodePolicy
from deviceplugin.model.units import DEFAULT_DOMAIN, ResourceNames

_NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


class NodeChoice(enum.Enum):
    """Who takes one of the nodes that fit."""

    EXTENDER = "extender"
    SCHEDULER = "scheduler"


class Election(enum.Enum):
    """How the one replica is found that answers kube-scheduler and keeps the certificates."""

    OWN = "own"
    KUBE_SCHEDULER = "kube-scheduler"
    NONE = "none"


def _namespace(known: Mapping[str, Any], env: Mapping[str, str]) -> str:
    try:
        return _NAMESPACE_FILE.read_text().strip() or "kube-system"
    except OSError:
        return "kube-system"


def _host_name(known: Mapping[str, Any], env: Mapping[str, str]) -> str:
    return socket.gethostname().strip()


@dataclass(frozen=True, slots=True)
class ClusterSettings:
    """The cluster and who we are in it."""

    kubeconfig: Path | None = setting(
        "kubeconfig",
        kinds.OPTIONAL_PATH,
        "How to reach the API server; empty: as a pod of the cluster does.",
        default=None,
    )
    namespace: str = setting(
        "namespace",
        kinds.NAME,
        "Namespace of the service, the Secret and the Lease.",
        default="",
        derive=_namespace,
        derived="the namespace of this pod, else kube-system",
        more_env=("POD_NAMESPACE",),
    )
    identity: str = setting(
        "identity",
        kinds.TEXT,
        "Name of this replica, the same after a restart and different from every other; the pod's name.",
        default="",
        derive=_host_name,
        derived="this machine's host name",
        more_env=("POD_NAME",),
    )
    resource_domain: str = setting(
        "resource-domain",
        kinds.DOMAIN,
        "Domain of the two resources and of the annotations.",
        default=DEFAULT_DOMAIN,
    )
    requests_per_second: int = setting(
        "kube-api-qps", kinds.COUNT, "Most requests a second to the API server, watches aside.", default=500
    )
    burst: int = setting("kube-api-burst", kinds.COUNT, "How many may go out together after a quiet time.", default=500)


@dataclass(frozen=True, slots=True)
class ServingSettings:
    """Where API server, kube-scheduler and operators reach us: over TLS on one port, and from this pod without."""

    address: str = setting("listen-addr", kinds.HOST, "Address to listen on.", default="0.0.0.0")  # noqa: S104 - a pod's
    port: int = setting("listen-port", kinds.PORT, "Port to listen on; 0: any free one.", default=8443)
    loopback_port: int = setting(
        "loopback-port",
        kinds.PORT,
        "Port on 127.0.0.1 that answers the kube-scheduler beside us without TLS, which is quicker; 0: none.",
        default=0,
    )
    drain: float = setting(
        "drain",
        kinds.DURATION,
        "How long to go on serving after a signal to stop, not ready any more, so that nobody calls a closed door.",
        default=5.0,
    )
    end_within: float = setting(
        "end-within", kinds.DURATION, "How long requests under way may take to end after --drain.", default=10.0
    )


@dataclass(frozen=True, slots=True)
class PlacementSettings:
    """Which node and which GPUs; pods may say otherwise by annotation."""

    node_policy: NodePolicy = setting(
        "node-policy", kinds.choice(NodePolicy), "Which of the nodes that fit is taken.", default=NodePolicy.BINPACK
    )
    gpu_policy: GpuPolicy = setting(
        "gpu-policy", kinds.choice(GpuPolicy), "Which of the node's GPUs that fit are taken.", default=GpuPolicy.BINPACK
    )
    node_choice: NodeChoice = setting(
        "node-choice",
        kinds.choice(NodeChoice),
        "Who takes one of the nodes that fit: we do, or kube-scheduler with our scores beside its own.",
        default=NodeChoice.EXTENDER,
    )
    reservation_time: float = setting(
        "reservation-time",
        kinds.PERIOD,
        "How long what filter chose is kept for a pod that is not bound.",
        default=60.0,
    )
    gang_reservation_time: float = setting(
        "gang-reservation-time",
        kinds.PERIOD,
        "The same for a pod of a gang that waits for its other members.",
        default=600.0,
    )


@dataclass(frozen=True, slots=True)
class CertificateSettings:
    """What we prove ourselves with: our own authority, or files that somebody else renews."""

    service: str = setting(
        "service-name", kinds.NAME, "Service that the certificate is made for.", default="vcuda-scheduler"
    )
    names: tuple[str, ...] = setting(
        "certificate-names",
        kinds.NAMES,
        "Further names and addresses in the certificate, besides the service's and this machine's loopback.",
        default=(),
    )
    secret: str = setting(
        "certificate-secret",
        kinds.NAME,
        "Secret with our authority and certificate, made and renewed by the leader; where the leader is "
        "kube-scheduler's, by any replica, because kube-scheduler waits for it.",
        default="vcuda-scheduler-tls",
    )
    life: float = setting(
        "certificate-life",
        kinds.LIFE,
        "How long a certificate is good; it is replaced after two thirds of that.",
        default=90 * 86400.0,
    )
    authority_life: float = setting(
        "authority-life",
        kinds.LIFE,
        "How long our authority is good; it is replaced after two thirds of that. Long, because kube-scheduler reads "
        "it at its start only.",
        default=3650 * 86400.0,
    )
    settle: float = setting(
        "authority-settle",
        kinds.DURATION,
        "How long a new authority is in the caBundle before anything that it signed is shown.",
        default=60.0,
    )
    check_period: float = setting(
        "certificate-check-period", kinds.PERIOD, "How often Secret, files and caBundle are looked at.", default=30.0
    )
    cert_file: Path | None = setting(
        "tls-cert-file",
        kinds.OPTIONAL_PATH,
        "Certificate chain of somebody else's making, such as cert-manager's; then we make none.",
        default=None,
    )
    key_file: Path | None = setting("tls-key-file", kinds.OPTIONAL_PATH, "The key of --tls-cert-file.", default=None)


@dataclass(frozen=True, slots=True)
class CallerSettings:
    """Whose orders are obeyed: who may ask for filter, prioritize, bind and preempt places pods with our rights."""

    authority: Path | None = setting(
        "client-ca-file",
        kinds.OPTIONAL_PATH,
        "Authority of the certificate that kube-scheduler has to show (its extender's tlsConfig.certFile); a "
        "changed file counts for new connections. Empty: only callers on loopback are obeyed.",
        default=None,
    )
    names: tuple[str, ...] = setting(
        "client-names",
        kinds.SUBJECTS,
        "With --client-ca-file: the names that such a certificate may be made out to.",
        default=("system:kube-scheduler",),
    )


@dataclass(frozen=True, slots=True)
class LeaderSettings:
    """Which replica answers kube-scheduler and keeps the certificates; the webhook is served by all."""

    election: Election = setting(
        "leader-election",
        kinds.choice(Election),
        "own: by a Lease of ours; kube-scheduler: whoever is in one pod with the leading kube-scheduler, by its Lease; "
        "none: this is the only replica.",
        default=Election.OWN,
    )
    lease: str = setting(
        "lease-name",
        kinds.NAME,
        "The Lease, ours or kube-scheduler's (its leaderElection.resourceName).",
        default="vcuda-scheduler",
    )
    duration: int = setting(
        "lease-duration", kinds.SECONDS, "How long a leader may be silent before another takes over.", default=15
    )
    retry: float = setting("lease-retry", kinds.PERIOD, "How often the Lease is renewed or looked at.", default=2.0)


@dataclass(frozen=True, slots=True)
class SchedulerSettings:
    """Everything that `vcuda scheduler` can be told."""

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
    if serving.loopback_port and settings.callers.authority is not None:
        raise ConfigError(
            "--loopback-port is without TLS, so nobody can show there the certificate that --client-ca-file wants; "
            "give one of the two"
        )
    if serving.loopback_port and serving.loopback_port == serving.port:
        raise ConfigError(f"--loopback-port and --listen-port are both {serving.port}; give two ports")
    if (certificates.cert_file is None) != (certificates.key_file is None):
        raise ConfigError("--tls-cert-file and --tls-key-file go together; give both, or none for our own authority")
    if certificates.life > certificates.authority_life / 3:
        raise ConfigError(
            f"--certificate-life: {kinds.show_duration(certificates.life)} is longer than a third of "
            f"--authority-life ({kinds.show_duration(certificates.authority_life)}), so it would outlive what signed it"
        )
    if leader.retry * 3 > leader.duration:
        raise ConfigError(
            f"--lease-retry: {kinds.show_duration(leader.retry)} leaves no room for a renewal that fails within "
            f"--lease-duration ({kinds.show_duration(leader.duration)}); give at most a third of it"
        )
    if not settings.cluster.identity:
        raise ConfigError("--identity is empty; give each replica a name of its own, such as its pod's")


SCHEDULER = Program(command="scheduler", kind="SchedulerConfig", tree=SchedulerSettings, check=_check_together)
