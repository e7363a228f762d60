"""etcd, the API server, the scheduler and the controller manager.

In: the programs, the certificates. Out: four processes, each started and ended on its own, and the admin's client.
Not here: the node.
Invariant: `start` returns when the program serves, or raises with the end of its log.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from shutil import which

import urllib3

from sandbox.cluster.certificates import ClusterCa, KeyPair
from sandbox.cluster.cgroups import ClusterCgroup
from sandbox.cluster.client import Client
from sandbox.cluster.kubeconfig import write_kubeconfig
from sandbox.cluster.layout import Layout
from sandbox.cluster.network import API_ADDRESS
from sandbox.cluster.processes import SEARCH_PATH, Process, free_ports
from sandbox.cluster.waiting import wait_until


@dataclass(frozen=True, slots=True)
class Etcd:
    """One etcd on loopback."""

    process: Process
    url: str

    def start(self) -> None:
        self.process.start()
        wait_until(self._healthy, "etcd is healthy", evidence=self.process.log_tail)

    def _healthy(self) -> bool:
        self.process.require_running()
        try:
            return urllib3.request("GET", f"{self.url}/health", timeout=2, retries=False).status == 200
        except urllib3.exceptions.HTTPError:
            return False


def make_etcd(layout: Layout, cgroup: ClusterCgroup) -> Etcd:
    client, peer = (f"http://127.0.0.1:{port}" for port in free_ports(2))
    command = [
        which("etcd", path=SEARCH_PATH) or "etcd",
        f"--data-dir={_private(layout.etcd)}",
        "--name=e2e",
        "--unsafe-no-fsync",
        f"--listen-client-urls={client}",
        f"--advertise-client-urls={client}",
        f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster=e2e={peer}",
    ]
    return Etcd(Process("etcd", cgroup.joining(command), layout.logs / "etcd.log"), client)


def _private(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    return folder


SERVICE_ADDRESSES = "10.96.0.0/16"
AUDIT_LOG = "audit.log"
GANG_API = (
    "scheduling.k8s.io/v1alpha2"  # 1.36: alpha, so it and the gates GenericWorkload and GangScheduling are asked for
)


@dataclass(frozen=True, slots=True)
class Component:
    """A program that says on an HTTPS path whether it is ready."""

    process: Process
    client: Client
    ready_path: str

    def start(self) -> None:
        self.process.start()
        self.wait_ready()

    def wait_ready(self) -> None:
        wait_until(self._ready, f"{self.process.name} is ready", evidence=self.process.log_tail)

    def stop(self) -> None:
        self.process.stop()

    def kill(self) -> None:
        self.process.kill()

    def _ready(self) -> bool:
        self.process.require_running()
        return self.client.ready(self.ready_path)


@dataclass(frozen=True, slots=True)
class ControlPlane:
    """The three programs and the admin's way in."""

    api_server: Component
    scheduler: Component
    controller_manager: Component
    admin: Client
    admin_kubeconfig: Path
    server: str
    files: "ControlPlaneFiles"

    @property
    def components(self) -> tuple[Component, ...]:
        return (self.api_server, self.scheduler, self.controller_manager)


@dataclass(frozen=True, slots=True)
class ControlPlaneFiles:
    """What the makers of the three components share."""

    layout: Layout
    programs: Path
    cgroup: ClusterCgroup
    ca: ClusterCa
    serving: KeyPair
    admin: KeyPair
    service_accounts: KeyPair


def make_control_plane(
    layout: Layout, programs: Path, *, ca: ClusterCa, cgroup: ClusterCgroup, etcd_url: str
) -> ControlPlane:
    api_port, scheduler_port, manager_port = free_ports(3)
    names = ["kubernetes", "kubernetes.default.svc", "localhost", "127.0.0.1", API_ADDRESS]
    files = ControlPlaneFiles(
        layout,
        programs,
        cgroup,
        ca,
        serving=ca.issue("serving", common_name="kube-apiserver", organization="system:masters", names=names),
        admin=ca.issue("admin", common_name="admin", organization="system:masters"),
        service_accounts=ca.service_account_keys(),
    )
    server = f"https://127.0.0.1:{api_port}"
    admin_kubeconfig = write_kubeconfig(
        layout.root / "admin.kubeconfig", server=server, ca=ca.certificate, identity=files.admin
    )
    return ControlPlane(
        api_server=_component(
            files, programs / "kube-apiserver", api_port, _api_server(files, api_port, etcd_url), "/readyz"
        ),
        scheduler=_component(files, programs / "kube-scheduler", scheduler_port, _scheduler(files, server), "/readyz"),
        controller_manager=_component(
            files, programs / "kube-controller-manager", manager_port, _controller_manager(files, server), "/healthz"
        ),
        admin=Client.by_certificate(server, ca.certificate, files.admin),
        admin_kubeconfig=admin_kubeconfig,
        server=server,
        files=files,
    )


def make_scheduler(
    files: ControlPlaneFiles, name: str, configuration: Path, *flags: str, program: Path | None = None
) -> Component:
    """One more kube-scheduler, by a KubeSchedulerConfiguration (which names its kubeconfig)."""
    (port,) = free_ports(1)
    program = program or files.programs / "kube-scheduler"
    return _component(files, program, port, [f"--config={configuration}", *flags], "/readyz", name=name)


def _component(
    files: ControlPlaneFiles, program: Path, port: int, flags: list[str], ready_path: str, *, name: str = ""
) -> Component:
    name = name or program.name
    serving = [
        "--bind-address=127.0.0.1",
        f"--secure-port={port}",
        f"--tls-cert-file={files.serving.certificate}",
        f"--tls-private-key-file={files.serving.key}",
    ]
    command = files.cgroup.joining([str(program), *serving, *flags])
    process = Process(name, command, files.layout.logs / f"{name}.log")
    client = Client.by_certificate(f"https://127.0.0.1:{port}", files.ca.certificate, files.admin)
    return Component(process, client, ready_path)


def _api_server(files: ControlPlaneFiles, port: int, etcd_url: str) -> list[str]:
    to_kubelet = files.ca.issue("to-kubelet", common_name="kube-apiserver-client", organization="system:masters")
    return [
        f"--etcd-servers={etcd_url}",
        "--advertise-address=127.0.0.1",
        f"--client-ca-file={files.ca.certificate}",
        f"--service-account-key-file={files.service_accounts.certificate}",
        f"--service-account-signing-key-file={files.service_accounts.key}",
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--service-cluster-ip-range={SERVICE_ADDRESSES}",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        "--allow-privileged=true",
        "--endpoint-reconciler-type=none",
        f"--kubelet-client-certificate={to_kubelet.certificate}",
        f"--kubelet-client-key={to_kubelet.key}",
        f"--kubelet-certificate-authority={files.ca.certificate}",
        "--kubelet-preferred-address-types=InternalIP",
        f"--audit-policy-file={_audit_policy(files.layout)}",
        f"--audit-log-path={files.layout.logs / AUDIT_LOG}",
        "--enable-aggregator-routing=true",  # webhooks by their pods' addresses: there is no kube-proxy
        "--profiling=false",
        f"--runtime-config={GANG_API}=true",
        "--feature-gates=GenericWorkload=true",
    ]


def _audit_policy(layout: Layout) -> Path:
    """Every request of the chart's accounts is noted, without what was in it."""
    accounts = [f"system:serviceaccount:kube-system:{name}" for name in ("vcuda-agent", "vcuda-scheduler")]
    noted = {"level": "Metadata", "users": accounts, "omitStages": ["RequestReceived"]}
    path = layout.root / "audit-policy.json"
    policy = {"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "rules": [noted, {"level": "None"}]}
    path.write_text(json.dumps(policy))
    return path


def _scheduler(files: ControlPlaneFiles, server: str) -> list[str]:
    return [*_as_component(files, server, "kube-scheduler"), "--leader-elect=false", "--profiling=false"]


def _controller_manager(files: ControlPlaneFiles, server: str) -> list[str]:
    return [
        *_as_component(files, server, "kube-controller-manager"),
        f"--service-account-private-key-file={files.service_accounts.key}",
        f"--root-ca-file={files.ca.certificate}",
        "--use-service-account-credentials=true",
        "--leader-elect=false",
        "--profiling=false",
        "--feature-gates=GenericWorkload=true",  # who else takes the finalizer off a PodGroup?
    ]


def _as_component(files: ControlPlaneFiles, server: str, name: str) -> list[str]:
    pair = files.ca.issue(name, common_name=f"system:{name}")
    path = write_kubeconfig(
        files.layout.root / f"{name}.kubeconfig", server=server, ca=files.ca.certificate, identity=pair
    )
    return [f"--kubeconfig={path}", f"--authentication-kubeconfig={path}", f"--authorization-kubeconfig={path}"]
