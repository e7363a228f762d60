"""Service accounts with exactly the permissions that a test gives them.

In: the admin's client. Out: an account, its token, its kubeconfig. Not here: which permissions vcuda needs.
Invariant: `permit` replaces what the account might do before; nothing is added silently.
"""

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sandbox.cluster.client import ApiError, Client, JsonObject
from sandbox.cluster.kubeconfig import write_kubeconfig

SYSTEM = "kube-system"
RBAC = "/apis/rbac.authorization.k8s.io/v1"
ROLE = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole"}
BINDING = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding"}


@dataclass(frozen=True, slots=True)
class Rule:
    """What may be done to which resources of one API group."""

    group: str
    resources: Sequence[str]
    verbs: Sequence[str]

    def as_json(self) -> JsonObject:
        return {"apiGroups": [self.group], "resources": list(self.resources), "verbs": list(self.verbs)}


@dataclass(frozen=True, slots=True)
class Identity:
    """A service account in kube-system, with a cluster role of its own name."""

    admin: Client
    name: str

    @classmethod
    def create(cls, admin: Client, name: str, rules: Sequence[JsonObject]) -> "Identity":
        admin.post(f"/api/v1/namespaces/{SYSTEM}/serviceaccounts", {"metadata": {"name": name}})
        admin.post(f"{RBAC}/clusterroles", {**ROLE, "metadata": {"name": name}, "rules": list(rules)})
        subject = {"kind": "ServiceAccount", "name": name, "namespace": SYSTEM}
        role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name}
        binding = {**BINDING, "metadata": {"name": name}, "subjects": [subject], "roleRef": role}
        admin.post(f"{RBAC}/clusterrolebindings", binding)
        return cls(admin, name)

    def permit(self, rules: Sequence[JsonObject]) -> None:
        self.admin.merge(f"{RBAC}/clusterroles/{self.name}", {"rules": list(rules)})

    def token(self, *, node: str = "") -> str:
        """`node`: it says this node, as the token of a pod does."""
        path = f"/api/v1/namespaces/{SYSTEM}/serviceaccounts/{self.name}/token"
        spec: JsonObject = {"expirationSeconds": 7200}
        if node:
            uid = self.admin.get(f"/api/v1/nodes/{node}")["metadata"]["uid"]
            spec["boundObjectRef"] = {"kind": "Node", "apiVersion": "v1", "name": node, "uid": uid}
        return str(self.admin.post(path, {"spec": spec})["status"]["token"])

    def kubeconfig(self, path: Path, *, server: str, ca: Path, node: str = "") -> Path:
        return write_kubeconfig(path, server=server, ca=ca, identity=self.token(node=node))

    def remove(self) -> None:
        for path in (
            f"{RBAC}/clusterrolebindings/{self.name}",
            f"{RBAC}/clusterroles/{self.name}",
            f"/api/v1/namespaces/{SYSTEM}/serviceaccounts/{self.name}",
        ):
            with contextlib.suppress(ApiError):
                self.admin.delete(path)
