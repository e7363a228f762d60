"""The checks of a node, in order, and which of them an agent needs to start.

With --wait-for-driver, the chart's default, the agent waits for a driver; then its absence is a warning.
"""

from deviceplugin.cli.doctor import node_driver, node_files, node_services
from deviceplugin.cli.doctor.findings import Check

CHECKS = (
    Check("state-directory", node_files.state, to_start=True),
    Check("driver-module", node_driver.module, to_start=True),
    Check("nvml", node_driver.nvml, to_start=True),
    Check("gpu-modes", node_driver.modes),
    Check("libraries", node_driver.libraries),
    Check("device-nodes", node_driver.device_nodes),
    Check("kubelet-directory", node_files.kubelet_directory),
    Check("kubelet-root", node_files.kubelet_root),
    Check("kubelet-checkpoint", node_files.checkpoint),
    Check("pod-resources", node_services.pod_resources),
    Check("kubelet-pods", node_services.kubelet_pods),
    Check("container-runtime", node_services.container_runtime),
    Check("cgroups", node_files.cgroups),
    Check("credentials", node_services.credentials, needed=True, to_start=True),
    Check("api-server", node_services.api_server, needed=True),
    Check("node", node_services.node_object),
    Check("images", node_services.images),
    Check("rights", node_services.rights),
    Check("other-plugins", node_services.other_plugins),
)
