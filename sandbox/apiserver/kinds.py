"""The resources that the stand-in serves: their kinds, groups and rules of naming and replacing."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ResourceKind:
    """`blind_put`: whether a PUT without a version replaces whatever is there; the real server asks some for one."""

    word: str
    group: str = ""
    namespaced: bool = False
    blind_put: bool = True

    @property
    def api_version(self) -> str:
        return f"{self.group}/v1" if self.group else "v1"

    @property
    def root(self) -> str:
        return f"/apis/{self.group}/v1" if self.group else "/api/v1"


_ADMISSION = "admissionregistration.k8s.io"
_RESOURCE = "resource.k8s.io"
KINDS = {
    "pods": ResourceKind("Pod", namespaced=True),
    "nodes": ResourceKind("Node"),
    "events": ResourceKind("Event", namespaced=True),
    "secrets": ResourceKind("Secret", namespaced=True),
    "leases": ResourceKind("Lease", "coordination.k8s.io", namespaced=True, blind_put=False),
    "endpointslices": ResourceKind("EndpointSlice", "discovery.k8s.io", namespaced=True),
    "resourceslices": ResourceKind("ResourceSlice", _RESOURCE, blind_put=False),
    "resourceclaims": ResourceKind("ResourceClaim", _RESOURCE, namespaced=True, blind_put=False),
    "resourceclaimtemplates": ResourceKind("ResourceClaimTemplate", _RESOURCE, namespaced=True, blind_put=False),
    "mutatingwebhookconfigurations": ResourceKind("MutatingWebhookConfiguration", _ADMISSION, blind_put=False),
    "validatingwebhookconfigurations": ResourceKind("ValidatingWebhookConfiguration", _ADMISSION, blind_put=False),
}


def qualified(resource: str) -> str:
    """As refusals name it: `leases.coordination.k8s.io`."""
    kind = KINDS[resource]
    return f"{resource}.{kind.group}" if kind.group else resource
