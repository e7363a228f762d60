"""The release as a newcomer makes it: Helm with the README's words, and waiting for what it started.

In: the cluster, Helm. Out: a `Release` that can be upgraded and waited for. Not here: images, pods of users.
Invariant: whatever happens, the release is gone when the context ends.
"""

import base64
import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

from deviceplugin.model.annotation_names import AnnotationNames
from sandbox.cluster.client import ApiError, Client
from sandbox.cluster.cluster import Cluster
from sandbox.cluster.waiting import wait_until
from tests.daemonset.chart import Object
from tests.e2e.installed.audit import Asked, asked, audited
from tests.e2e.installed.registry import Registry
from tests.e2e.node.usage import Usage, parse_usage
from tests.e2e.released import Helm

NAMESPACE = "kube-system"
LABEL = {"nvidia-device-enable": "enable"}
EMULATED = ("--set", "agent.driver.from=emulated")
FASTER = ("--set", "agent.flags.allocation-check-period=1s")
"""A newcomer waits half a minute until the agent has noticed that a pod is gone."""
AT_ONCE = ("--set", "scheduler.flags.drain=0s")
"""For a release that is thrown away: nobody has to go elsewhere first."""
_APPS = f"/apis/apps/v1/namespaces/{NAMESPACE}"
_PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"


@dataclass(frozen=True, slots=True)
class Release:
    """`say` is Helm with the admin's kubeconfig. `registry` has chart and image. `begin`: of its audit log."""

    cluster: Cluster
    helm: str
    registry: Registry
    begin: int

    @property
    def admin(self) -> Client:
        return self.cluster.admin

    def say(self, *words: str) -> str:
        return Helm(self.helm, self.cluster.control_plane.admin_kubeconfig, NAMESPACE)(*words)

    def install(self, *values: str) -> None:
        image = f"image.repository={self.registry.image}"
        self.say("install", "vcuda", *self.registry.chart, "--set", image, *EMULATED, *values)

    def upgrade(self, *values: str) -> None:
        self.say("upgrade", "vcuda", *self.registry.chart, "--reset-then-reuse-values", *values)

    def asked(self) -> list[Asked]:
        """What the release asked of the API server."""
        return list(asked(self.cluster, self.begin))

    def has_rolled_out(self) -> bool:
        """What `kubectl rollout status` looks at, of both."""
        return self.schedulers_have_rolled_out() and self.agents_have_rolled_out()

    def schedulers_have_rolled_out(self) -> bool:
        deployment = self.admin.get(f"{_APPS}/deployments/vcuda-scheduler")
        wanted, told = deployment["spec"]["replicas"], deployment["status"]
        if told.get("observedGeneration") != deployment["metadata"]["generation"]:
            return False
        return bool(wanted == told.get("updatedReplicas") == told.get("readyReplicas") == told.get("replicas"))

    def agents_have_rolled_out(self) -> bool:
        """With OnDelete: when those of before were deleted."""
        agents = self.admin.get(f"{_APPS}/daemonsets/vcuda-agent")
        told = agents["status"]
        if told.get("observedGeneration") != agents["metadata"]["generation"]:
            return False
        nodes = told["desiredNumberScheduled"]
        return bool(0 < nodes == told.get("updatedNumberScheduled") == told["numberReady"])

    def wait_rolled_out(self) -> None:
        wait_until(self.has_rolled_out, "the release is rolled out", evidence=self.evidence)

    def pods(self, name: str) -> list[Object]:
        """Those of the DaemonSet or of the Deployment that do not end."""
        found = self.admin.get(f"{_PODS}?labelSelector=app.kubernetes.io/name={name}")["items"]
        return [item for item in found if "deletionTimestamp" not in item["metadata"]]

    def usage(self) -> Usage:
        """As the agent's ledger has it."""
        (agent,) = self.pods("vcuda-agent")
        shown = Client(self.admin.server, self.admin.pool, {**self.admin.headers, "X-Vcuda-Token": self.names_token()})
        return parse_usage(shown.text("GET", f"{_PODS}/{agent['metadata']['name']}:5678/proxy/usage"))

    def names_token(self) -> str:
        """For which the agents tell who uses their GPUs."""
        secret = self.admin.get(f"/api/v1/namespaces/{NAMESPACE}/secrets/vcuda-agent-names")
        return base64.b64decode(secret["data"]["token"]).decode()

    def restarts(self, name: str) -> dict[str, int]:
        """Of each container, by its name: the most of any pod."""
        counts: dict[str, int] = {}
        for pod in self.pods(name):
            status = pod["status"]
            for each in (*status.get("initContainerStatuses", []), *status.get("containerStatuses", [])):
                counts[each["name"]] = max(counts.get(each["name"], 0), each["restartCount"])
        return counts

    def log(self, pod: str, container: str, query: str = "") -> str:
        with contextlib.suppress(ApiError):
            return self.admin.text("GET", f"{_PODS}/{pod}/log?container={container}{query}")
        return "(no log)"

    def evidence(self) -> str:
        """Each pod's state and the end of what its containers say."""
        said = []
        for name in ("vcuda-agent", "vcuda-scheduler"):
            for pod in self.pods(name):
                title, status = pod["metadata"]["name"], pod["status"]
                said.append(f"--- {title}: {status['phase']} {status.get('message', '')}")
                for each in (*status.get("initContainerStatuses", []), *status.get("containerStatuses", [])):
                    said.append(f"{each['name']}: {each['state']} restarts {each['restartCount']}")
                    said.append(self.log(title, each["name"], "&tailLines=15"))
                    if each["restartCount"]:
                        said.append("before: " + self.log(title, each["name"], "&tailLines=15&previous=true"))
                said.extend(_events(self.admin, title))
        return "\n".join(said)


def _events(admin: Client, pod: str) -> list[str]:
    path = f"/api/v1/namespaces/{NAMESPACE}/events?fieldSelector=involvedObject.name={pod}"
    return [f"{item['reason']}: {item['message']}" for item in admin.get(path)["items"]]


@contextlib.contextmanager
def released(cluster: Cluster, helm: str, registry: Registry, *values: str) -> Iterator[Release]:
    """The README's two commands; the node's label and the release are gone afterwards."""
    node = f"/api/v1/nodes/{cluster.kubelet.node}"
    release = Release(cluster, helm, registry, audited(cluster))
    unknown = {AnnotationNames().inventory: None}  # agents of other tests may have told the same
    cluster.admin.merge(node, {"metadata": {"labels": LABEL, "annotations": unknown}})
    try:
        release.install(*FASTER, *values)
        yield release
    finally:
        if "vcuda" in release.say("list", "--short").split():
            release.say("uninstall", "vcuda", "--wait")
        cluster.admin.merge(node, {"metadata": {"labels": dict.fromkeys(LABEL)}})
