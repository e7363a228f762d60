"""How this kubelet is to behave: everything that differs between versions, clusters and bad days.

In: what the user or the command line wants. Out: one frozen value that all parts read. Not here: what changes while it
runs (`Kubelet.hang`, the `faults` of the two pod listings). Defaults are those of kubelet 1.36 on a healthy node.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

Json = dict[str, Any]
PodResourcesForm = Literal["1.36", "1.34", "1.27", "1.26"]
"""The kubelet since which PodResources is like this.

1.36: `Get` and `List` show active pods. 1.34: `Get` shows every known pod, refused and ended ones too, and `List` the
active ones. 1.27: `Get` is disabled (an alpha gate), and `List` shows every known pod. 1.26 and before: no `Get`.
`GetPodByName` of pkg/kubelet/kubelet.go, `Get` and `List` of pkg/kubelet/apis/podresources/server_v1.go, read in
1.33.5, 1.34.1, 1.35.0 and 1.36.2.
"""


@dataclass(frozen=True, slots=True)
class KubeletOptions:
    """Durations are seconds of kubelet's clock, which runs `speed` times as fast as the wall's; deadlines are real."""

    root: Path
    node_name: str = "node-1"
    seed: int = 0
    speed: float = 1.0
    plugin_watcher: bool = True  # False: no plugins_registry, as on kubelets that predate it
    registration_race: bool = True  # an old connection's end disconnects the new one; fixed after 1.36.2
    grace_period_s: float = 300.0
    prestart_timeout_s: float = 30.0
    checkpoint_form: Literal["numa", "flat"] = "numa"  # flat: kubelet 1.12 to 1.19
    podresources: bool = True
    podresources_form: PodResourcesForm = "1.36"
    podresources_qps: float = 100.0
    podresources_burst: int = 10
    pods_api: bool = True
    pods_tls: bool = True
    pods_port: int = 0
    token: str = "stand-in-token"
    numa_alignment: bool = False  # topology manager, policy best-effort, scope container
    cpu_cores: int = 64
    first_sync_s: float = 0.9  # wall clock; on a restart, from the registration server to the first pods
    image_pull_s: float = 0.0
    init_run_s: float = 0.0
    termination_s: float = 0.2
    retry_s: float = 10.0  # from one failed start to the next, up to half longer; and the first wait of a crash loop
    status_lag_s: float = 0.02  # until a status that kubelet wrote is seen by kubelet again
    resource_health_status: bool = True  # every device ID in the pod's status, on since 1.36
    run_commands: bool = False  # start the containers' `command` as real processes
    static_pods: tuple[Mapping[str, Any], ...] = ()

    @property
    def plugin_dir(self) -> Path:
        """Not below the root: a constant in kubelet, whatever its --root-dir.

        `DevicePluginPathLinux` of k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1/constants.go; the device manager keeps
        its checkpoint there too (pkg/kubelet/cm/devicemanager/manager.go). Registry and pod-resources follow the root
        (pkg/kubelet/kubelet_getters.go).
        """
        return self.root.with_name(f"{self.root.name}-device-plugins")

    @property
    def registry_dir(self) -> Path:
        return self.root / "plugins_registry"

    @property
    def kubelet_socket(self) -> Path:
        return self.plugin_dir / "kubelet.sock"

    @property
    def checkpoint_path(self) -> Path:
        return self.plugin_dir / "kubelet_internal_checkpoint"

    @property
    def podresources_socket(self) -> Path:
        return self.root / "pod-resources" / "kubelet.sock"
