"""The names of the annotations on pods and nodes, and who writes each.

In: the domain (`--resource-domain`). Out: full names. `machine_written` are the names on pods that only vcuda's
programs may write, and those with `gpu_index_prefix`: the webhook removes them from new pods, and the admission policy
protects them from change. `user_written` are those of a pod that vcuda reads beside them; of these, `preferences` say
where its GPUs shall be. Not here: what the texts say (`annotations`, `preferences`, `pod_request`, `node`).
"""

from functools import cache
from typing import Final

from deviceplugin.model.units import DEFAULT_DOMAIN


class AnnotationNames:
    """Full names under one domain; `--resource-domain` changes the domain everywhere."""

    def __init__(self, domain: str = DEFAULT_DOMAIN) -> None:
        self.domain: Final = domain

        # On a pod, written by the scheduler extender or by the agent.
        self.predicate_time: Final = f"{domain}/predicate-time"
        self.predicate_node: Final = f"{domain}/predicate-node"
        self.gpu_assigned: Final = f"{domain}/gpu-assigned"
        self.allocation: Final = f"{domain}/vcuda-allocation"
        self.decision: Final = f"{domain}/vcuda-decision"  # why the pod is where it is, for people
        self.gpu_index_prefix: Final = f"{domain}/predicate-gpu-idx-"
        self.machine_written: Final = frozenset(
            (self.predicate_time, self.predicate_node, self.gpu_assigned, self.allocation, self.decision)
        )

        # On a pod, written by its user.
        self.core_limit: Final = f"{domain}/vcuda-core-limit"
        self.memory_limit: Final = f"{domain}/vcuda-memory-limit"
        self.gpus: Final = f"{domain}/vcuda-gpus"  # over how many GPUs the share of a container goes
        self.node_policy: Final = f"{domain}/vcuda-node-policy"
        self.gpu_policy: Final = f"{domain}/vcuda-gpu-policy"
        self.use_models: Final = f"{domain}/vcuda-use-models"
        self.avoid_models: Final = f"{domain}/vcuda-avoid-models"
        self.use_gpus: Final = f"{domain}/vcuda-use-gpus"
        self.avoid_gpus: Final = f"{domain}/vcuda-avoid-gpus"
        self.numa: Final = f"{domain}/vcuda-numa"
        self.socket: Final = f"{domain}/vcuda-socket"  # the pod has gpu-manager's client
        filters = (self.use_models, self.avoid_models, self.use_gpus, self.avoid_gpus, self.numa)
        self.preferences: Final = (self.node_policy, self.gpu_policy, *filters)
        limits = (self.core_limit, self.memory_limit, self.gpus, self.socket)
        self.user_written: Final = frozenset((*limits, *self.preferences))

        # On a node.
        self.inventory: Final = f"{domain}/vcuda-inventory"  # written by the agent
        self.node_labels: Final = f"{domain}/vcuda-node-labels"  # the keys of the labels that the agent set
        self.cordon: Final = f"{domain}/vcuda-cordon"  # by the operator: GPUs that take no new work, by UUID or minor
        self.close_nvml: Final = f"{domain}/vcuda-close-nvml"  # by the operator: the agent lets go of the driver
        self.freed: Final = f"{domain}/vcuda-freed"  # by the extender when GPUs became free: kube-scheduler tries again

        # In Allocate's answer.
        self.container_core: Final = f"{domain}/vcuda-core"
        self.container_memory: Final = f"{domain}/vcuda-memory"
        self.container_device: Final = f"{domain}/vcuda-device"
        self.container_missing: Final = f"{domain}/vcuda-missing-devices"  # extra devices that the node did not have

    def gpu_indices(self, container: int) -> str:
        """`container` counts the app containers of the pod, in spec order."""
        return f"{self.gpu_index_prefix}{container}"

    def is_machine_written(self, name: str) -> bool:
        return name in self.machine_written or name.startswith(self.gpu_index_prefix)


@cache
def annotation_names(domain: str) -> AnnotationNames:
    """The names under a domain; a process meets one domain, or a few in tests."""
    return AnnotationNames(domain)
