"""Where everything of one cluster lies.

In: an identifier. Out: paths. Not here: creating or removing what lies there.
Invariant: the root is short, because a unix socket's path may have at most 107 bytes.

Where kubelet 1.36 keeps its sockets when it is given `--root-dir` (read in its source and seen on the running node):
  device plugins   /var/lib/kubelet/device-plugins/kubelet.sock: hard-coded, does NOT follow --root-dir; the
                   checkpoint kubelet_internal_checkpoint lies beside it
  plugin watcher   <root-dir>/plugins_registry/
  PodResources     <root-dir>/pod-resources/kubelet.sock
To keep the first under our root too, kubelet runs in a mount namespace (`namespace`) in which /var/lib/kubelet IS the
root-dir. Outside that namespace, where the agent runs, all three are found under `Layout.kubelet`.
"""

import secrets
from dataclasses import dataclass
from pathlib import Path

PREFIX = "vcuda-e2e-"


@dataclass(frozen=True, slots=True)
class Layout:
    """The paths and names of one cluster."""

    identifier: str

    @classmethod
    def fresh(cls) -> "Layout":
        return cls(secrets.token_hex(3))

    @property
    def name(self) -> str:
        return PREFIX + self.identifier

    @property
    def root(self) -> Path:
        return Path("/tmp") / self.name  # not $TMPDIR, which may be long

    @property
    def certificates(self) -> Path:
        return self.root / "pki"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    @property
    def etcd(self) -> Path:
        return self.root / "etcd"

    @property
    def containerd(self) -> Path:
        return self.root / "containerd"

    @property
    def containerd_socket(self) -> Path:
        """In the mount namespace this is /run/containerd/containerd.sock, where the chart looks for it."""
        return self.covers / "run-containerd" / "containerd.sock"

    @property
    def cdi(self) -> Path:
        """In the mount namespace this is /var/run/cdi. containerd knows both names: an agent outside uses this one."""
        return self.covers / "run-cdi"

    @property
    def cni(self) -> Path:
        return self.root / "cni"

    @property
    def kubelet(self) -> Path:
        return self.root / "kubelet"

    @property
    def device_plugins(self) -> Path:
        return self.kubelet / "device-plugins"

    @property
    def plugins_registry(self) -> Path:
        return self.kubelet / "plugins_registry"

    @property
    def pod_resources_socket(self) -> Path:
        return self.kubelet / "pod-resources" / "kubelet.sock"

    @property
    def static_pods(self) -> Path:
        return self.root / "static-pods"

    @property
    def covers(self) -> Path:
        return self.root / "covers"

    @property
    def sysctls(self) -> Path:
        """The kernel's settings as they were."""
        return self.root / "sysctls.json"

    @property
    def lock(self) -> Path:
        return self.root / "lock"

    @property
    def bridge(self) -> str:
        return f"vcuda{self.identifier}"
