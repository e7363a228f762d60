"""The names of the annotations on pods and nodes, and who writes each.

In: the domain (`--resource-domain`). Out: full names. `machine_written` are those that only our own programs may write:
the webhook strips them from new pods and the admission policy keeps others from changing them. Not here: what their
texts say (`annotations`, `preferences`, `pod_request`, `inventory_annotation`).
"""

from dataclasses import dataclass

from deviceplugin.model.units import DEFAULT_DOMAIN


@dataclass(frozen=True, slots=True)
class AnnotationNames:
    """Full names under one domain; `--resource-domain` changes the domain everywhere."""

    domain: str = DEFAULT_DOMAIN

    @property
    def predicate_time(self) -> str:
        return f"{self.domain}/predicate-time"

    @property
    def predicate_node(self) -> str:
        return f"{self.domain}/predicate-node"

    @property
    def gpu_assigned(self) -> str:
        return f"{self.domain}/gpu-assigned"

    @property
    def core_limit(self) -> str:
        return f"{self.domain}/vcuda-core-limit"

    @property
    def allocation(self) -> str:
        return f"{self.domain}/vcuda-allocation"

    @property
    def inventory(self) -> str:
        return f"{self.domain}/vcuda-inventory"

    @property
    def gpus(self) -> str:
        """Written by users: over how many GPUs the share of a container goes."""
        return f"{self.domain}/vcuda-gpus"

    @property
    def node_policy(self) -> str:
        return f"{self.domain}/vcuda-node-policy"

    @property
    def gpu_policy(self) -> str:
        return f"{self.domain}/vcuda-gpu-policy"

    @property
    def use_models(self) -> str:
        return f"{self.domain}/vcuda-use-models"

    @property
    def avoid_models(self) -> str:
        return f"{self.domain}/vcuda-avoid-models"

    @property
    def use_gpus(self) -> str:
        return f"{self.domain}/vcuda-use-gpus"

    @property
    def avoid_gpus(self) -> str:
        return f"{self.domain}/vcuda-avoid-gpus"

    @property
    def numa(self) -> str:
        return f"{self.domain}/vcuda-numa"

    @property
    def preferences(self) -> tuple[str, ...]:
        """Where the pod's GPUs shall be; all written by users."""
        policies = (self.node_policy, self.gpu_policy)
        return (*policies, self.use_models, self.avoid_models, self.use_gpus, self.avoid_gpus, self.numa)

    @property
    def cordon(self) -> str:
        """On a node, written by its operator: GPUs that take no new work, by UUID or minor."""
        return f"{self.domain}/vcuda-cordon"

    @property
    def freed(self) -> str:
        """On a node, written by the extender: changed when GPUs became free, so that kube-scheduler tries again."""
        return f"{self.domain}/vcuda-freed"

    @property
    def node_labels(self) -> str:
        """On a node: the keys of the labels that the agent set, so that it removes only its own."""
        return f"{self.domain}/vcuda-node-labels"

    @property
    def container_core(self) -> str:
        return f"{self.domain}/vcuda-core"

    @property
    def container_memory(self) -> str:
        return f"{self.domain}/vcuda-memory"

    @property
    def container_device(self) -> str:
        return f"{self.domain}/vcuda-device"

    def gpu_indices(self, container: int) -> str:
        """`container` counts the app containers of the pod, in spec order."""
        return f"{self.gpu_index_prefix}{container}"

    @property
    def machine_written(self) -> tuple[str, ...]:
        """Of a pod; `gpu_index_prefix` stands for more."""
        return (self.predicate_time, self.predicate_node, self.gpu_assigned, self.allocation)

    @property
    def gpu_index_prefix(self) -> str:
        return f"{self.domain}/predicate-gpu-idx-"

    def is_machine_written(self, name: str) -> bool:
        return name in self.machine_written or name.startswith(self.gpu_index_prefix)
