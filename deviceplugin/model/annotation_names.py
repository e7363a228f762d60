"""The names of the annotations on pods and nodes, and who writes each.

In: the domain (`--resource-domain`). Out: full names. `machine_written` are the names that only vcuda's programs may
write: the webhook removes them from new pods, and the admission policy protects them from change. Not here: what their
texts say (`annotations`, `preferences`, `pod_request`, `inventory_annotation`).
"""

from dataclasses import dataclass, field
from functools import cache
from typing import Any

from deviceplugin.model.units import DEFAULT_DOMAIN


def _named(name: str) -> Any:  # noqa: ANN401 - as `field` itself is typed
    """A field that holds `<domain>/<name>`; the names are read for every request, so they are built once."""
    return field(init=False, repr=False, compare=False, metadata={"name": name})


@dataclass(frozen=True)
class AnnotationNames:
    """Full names under one domain; `--resource-domain` changes the domain everywhere."""

    domain: str = DEFAULT_DOMAIN

    # On a pod, written by the scheduler extender or by the agent.
    predicate_time: str = _named("predicate-time")
    predicate_node: str = _named("predicate-node")
    gpu_assigned: str = _named("gpu-assigned")
    allocation: str = _named("vcuda-allocation")
    gpu_index_prefix: str = _named("predicate-gpu-idx-")

    # On a pod, written by its user.
    core_limit: str = _named("vcuda-core-limit")
    gpus: str = _named("vcuda-gpus")  # over how many GPUs the share of a container goes
    node_policy: str = _named("vcuda-node-policy")
    gpu_policy: str = _named("vcuda-gpu-policy")
    use_models: str = _named("vcuda-use-models")
    avoid_models: str = _named("vcuda-avoid-models")
    use_gpus: str = _named("vcuda-use-gpus")
    avoid_gpus: str = _named("vcuda-avoid-gpus")
    numa: str = _named("vcuda-numa")

    # On a node.
    inventory: str = _named("vcuda-inventory")  # written by the agent
    node_labels: str = _named("vcuda-node-labels")  # the keys of the labels that the agent set: it removes no others
    cordon: str = _named("vcuda-cordon")  # written by the operator: GPUs that take no new work, by UUID or minor
    freed: str = _named("vcuda-freed")  # changed by the extender when GPUs became free: kube-scheduler tries again

    # In Allocate's answer.
    container_core: str = _named("vcuda-core")
    container_memory: str = _named("vcuda-memory")
    container_device: str = _named("vcuda-device")

    preferences: tuple[str, ...] = field(init=False, repr=False, compare=False)
    """Where the pod's GPUs shall be; all written by users."""
    machine_written: tuple[str, ...] = field(init=False, repr=False, compare=False)
    """Of a pod; `gpu_index_prefix` stands for more."""

    def __post_init__(self) -> None:
        built = {
            each: f"{self.domain}/{declared.metadata['name']}"
            for each, declared in self.__dataclass_fields__.items()
            if declared.metadata
        }
        self.__dict__.update(built)
        policies = (self.node_policy, self.gpu_policy)
        filters = (self.use_models, self.avoid_models, self.use_gpus, self.avoid_gpus, self.numa)
        self.__dict__["preferences"] = (*policies, *filters)
        self.__dict__["machine_written"] = (
            self.predicate_time,
            self.predicate_node,
            self.gpu_assigned,
            self.allocation,
        )

    def gpu_indices(self, container: int) -> str:
        """`container` counts the app containers of the pod, in spec order."""
        return f"{self.gpu_index_prefix}{container}"

    def is_machine_written(self, name: str) -> bool:
        return name in self.machine_written or name.startswith(self.gpu_index_prefix)


@cache
def annotation_names(domain: str) -> AnnotationNames:
    """The names under a domain; a process meets one domain, or a few in tests."""
    return AnnotationNames(domain)
